//! What the tests of all algorithms share: random steps, a run that compares every one of them with
//! a naive limiter over the list of past admissions, and checkers of the promises.

use proptest::prelude::*;

use super::{
    Amount, Reading, Spec, State, Verdict, charge, evaluate, meaningless_at_us, reading, refund,
    release,
};
use crate::clock::micros;

/// One unit in millionths.
pub(super) const UNIT: u64 = 1_000_000;

/// Something that was let through, net of what was given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    pub(super) at_us: u64,
    pub(super) cost: u64,
}

/// How the clock moves before a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Advance {
    Us(u64),
    /// This many twelfths of a window.
    Twelfths(u64),
    /// To the instant that the last denial promised, or one microsecond short of it.
    Retry,
    BeforeRetry,
}

/// What a step does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Spend(u64),
    /// Gives a percentage of an earlier admission back.
    Refund {
        which: usize,
        percent: u64,
    },
    /// Goes on with the other of the two specs.
    Change,
}

pub(super) type Step = (Advance, Act);

/// Would the naive limiter admit this cost beside these admissions?
pub(super) type Naive = fn(&Spec, &[Admission], u64, u64) -> bool;

pub(super) fn amount(micros: u64) -> Amount {
    Amount::from_micros(micros).unwrap()
}

pub(super) fn advances() -> impl Strategy<Value = Advance> {
    prop_oneof![
        2 => Just(Advance::Us(0)),
        2 => Just(Advance::Us(1)),
        3 => (1..=30_u64).prop_map(Advance::Twelfths),
        2 => Just(Advance::Retry),
        1 => Just(Advance::BeforeRetry),
        2 => (0..200_000_000_u64).prop_map(Advance::Us),
    ]
}

/// Costs of any fraction, sometimes nothing, sometimes more than any limit of the tests.
pub(super) fn costs() -> impl Strategy<Value = u64> {
    prop_oneof![
        5 => Just(UNIT),
        4 => 1..3 * UNIT,
        1 => Just(0),
        1 => 0..12 * UNIT,
    ]
}

/// Costs of whole units.
pub(super) fn whole_costs() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(UNIT), 3 => (0..10_u64).prop_map(|units| units * UNIT)]
}

pub(super) fn windows_us() -> impl Strategy<Value = u64> {
    prop_oneof![1..50_u64, Just(UNIT), Just(60 * UNIT), 1..100_000_000_u64]
}

pub(super) fn spends(costs: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((advances(), costs.prop_map(Act::Spend)), 1..60)
}

/// Spending with refunds between.
pub(super) fn steps_with_refunds(
    costs: impl Strategy<Value = u64>,
    percents: impl Strategy<Value = u64>,
) -> impl Strategy<Value = Vec<Step>> {
    let refund =
        (0..60_usize, percents).prop_map(|(which, percent)| Act::Refund { which, percent });
    let acts = prop_oneof![3 => costs.prop_map(Act::Spend), 1 => refund];
    prop::collection::vec((advances(), acts), 1..60)
}

/// Spending under two specs in turn.
pub(super) fn steps_with_changes(
    costs: impl Strategy<Value = u64>,
) -> impl Strategy<Value = Vec<Step>> {
    let acts = prop_oneof![4 => costs.prop_map(Act::Spend), 1 => Just(Act::Change)];
    prop::collection::vec((advances(), acts), 1..60)
}

/// One key under test, with the log of what it admitted.
pub(super) struct Run {
    pub(super) spec: Spec,
    pub(super) other_spec: Spec,
    pub(super) state: State,
    pub(super) now_us: u64,
    pub(super) log: Vec<Admission>,
    /// When each admission was charged, and what it had cost then.
    charges: Vec<Admission>,
    retry_us: u64,
}

impl Run {
    pub(super) fn new(spec: Spec, now_us: u64) -> Self {
        let state = spec.new_state().unwrap();
        let (log, charges) = (Vec::new(), Vec::new());
        Self { spec, other_spec: spec, state, now_us, log, charges, retry_us: 0 }
    }

    /// Takes all steps, compares each with the naive limiter if there is one, and returns the log.
    pub(super) fn take(
        mut self,
        steps: &[Step],
        window_us: u64,
        naive: Option<Naive>,
    ) -> Vec<Admission> {
        for (advance, act) in steps {
            self.advance(*advance, window_us);
            self.act(*act, naive);
        }
        self.log
    }

    pub(super) fn advance(&mut self, advance: Advance, window_us: u64) {
        self.now_us += match advance {
            Advance::Us(us) => us,
            Advance::Twelfths(twelfths) => window_us * twelfths / 12,
            Advance::Retry => self.retry_us,
            Advance::BeforeRetry => self.retry_us.saturating_sub(1),
        };
        self.retry_us = 0;
    }

    pub(super) fn act(&mut self, act: Act, naive: Option<Naive>) {
        match act {
            Act::Spend(cost) => self.spend(cost, naive),
            Act::Refund { which, percent } => self.refund(which, percent),
            Act::Change => std::mem::swap(&mut self.spec, &mut self.other_spec),
        }
        self.check_reading(naive);
    }

    fn spend(&mut self, cost: u64, naive: Option<Naive>) {
        let verdict = evaluate(&self.state, &self.spec, self.now_us, amount(cost));
        if let Some(naive) = naive {
            let expected = naive(&self.spec, &self.log, self.now_us, cost);
            assert_eq!(verdict == Verdict::Allowed, expected, "verdict on {cost}");
        }
        match verdict {
            Verdict::Allowed => self.admit(cost),
            Verdict::Denied { retry_after: None } => {
                let for_good = matches!(self.spec, Spec::Total(_));
                assert!(for_good || amount(cost) > self.spec.capacity(), "{cost} fits some day");
            }
            Verdict::Denied { retry_after: Some(wait) } => self.check_retry(cost, micros(wait)),
        }
    }

    fn admit(&mut self, cost: u64) {
        let before = self.state.clone();
        let holder = self.log.len() as u64;
        charge(&mut self.state, &self.spec, self.now_us, holder, amount(cost));
        assert!(cost > 0 || self.state == before, "a peek changed the state");
        let admission = Admission { at_us: self.now_us, cost };
        self.log.push(admission);
        self.charges.push(admission);
    }

    fn refund(&mut self, which: usize, percent: u64) {
        if self.log.is_empty() {
            return;
        }
        let index = which % self.log.len();
        let charged = self.charges[index];
        let back = (charged.cost * percent / 100).min(self.log[index].cost);
        if matches!(self.spec, Spec::Concurrency(_)) {
            release(&mut self.state, index as u64);
            self.log[index].cost = 0;
        } else {
            let Self { state, spec, now_us, .. } = self;
            refund(state, spec, *now_us, charged.at_us, amount(back));
            self.log[index].cost -= back;
        }
    }

    /// Denied until the promised instant, admitted at it, also for a caller whose clock lags.
    fn check_retry(&mut self, cost: u64, retry_us: u64) {
        let at = |now_us| evaluate(&self.state, &self.spec, now_us, amount(cost));
        assert!(retry_us > 0, "denied with nothing to wait for");
        let too_early = at(self.now_us + retry_us - 1);
        assert_eq!(too_early, Verdict::denied_for_us(1));
        assert_eq!(at(self.now_us + retry_us), Verdict::Allowed);
        if self.now_us > 0 {
            let lagging = Verdict::denied_for_us(retry_us + 1);
            assert_eq!(at(self.now_us - 1), lagging, "a lagging clock");
        }
        self.retry_us = retry_us;
    }

    fn check_reading(&self, naive: Option<Naive>) {
        let capacity = self.spec.capacity();
        let Reading { available, reset_us } = self.reading_at(self.now_us);
        assert!(available <= capacity);
        if let Some(naive) = naive {
            let fits = |micros| naive(&self.spec, &self.log, self.now_us, micros);
            assert!(available.is_zero() || fits(available.micros()));
            assert!(!fits(available.micros() + 1), "more was available");
        }
        let meaningless_us = meaningless_at_us(&self.state, &self.spec);
        let Some(reset_us) = reset_us else {
            assert_eq!(meaningless_us, (available == capacity).then_some(0));
            return;
        };
        assert_eq!(self.reading_at(self.now_us + reset_us).available, capacity, "at reset");
        let meaningless_us = meaningless_us.unwrap();
        if available < capacity {
            assert!(self.reading_at(self.now_us + reset_us - 1).available < capacity);
            assert_eq!(meaningless_us, self.now_us + reset_us);
        } else {
            assert!(meaningless_us <= self.now_us, "nothing is owed");
        }
    }

    pub(super) fn reading_at(&self, now_us: u64) -> Reading {
        reading(&self.state, &self.spec, now_us)
    }
}

/// A changed spec counts at least what was charged this very instant, whatever else it forgets.
pub(super) fn assert_changes_keep_what_is_owed(mut run: Run, new: Spec, steps: &[Step], us: u64) {
    for (advance, act) in steps {
        run.advance(*advance, us);
        let admitted = run.log.len();
        run.act(*act, None);
        let cost: u64 = run.log[admitted..].iter().map(|admission| admission.cost).sum();
        let most = new.capacity().saturating_sub(amount(cost));
        assert!(reading(&run.state, &new, run.now_us).available <= most, "handed out again");
    }
}

/// No function panics, whatever the state has been through and however extreme the numbers are.
pub(super) fn assert_extremes_do_no_harm(spec: Spec) {
    let mut state = spec.new_state().unwrap();
    for now_us in [0, 1, UNIT, u64::MAX / 4, 5, u64::MAX] {
        for cost in [Amount::ZERO, Amount::ONE, Amount::MAX] {
            let _ = evaluate(&state, &spec, now_us, cost);
            charge(&mut state, &spec, now_us, 7, cost);
            charge(&mut state, &spec, now_us, 8, cost);
            super::surcharge(&mut state, &spec, now_us, now_us / 2, cost);
            refund(&mut state, &spec, now_us, now_us, amount(cost.micros() / 2));
            super::renew(&mut state, &spec, now_us, 7);
            let _ = evaluate(&state, &spec, now_us, cost);
            assert!(reading(&state, &spec, now_us).available <= spec.capacity());
            let _ = meaningless_at_us(&state, &spec);
        }
    }
}

/// The sum of what was admitted at instants that the filter accepts.
pub(super) fn spent(log: &[Admission], accepts: impl Fn(u64) -> bool) -> u64 {
    log.iter().filter(|admission| accepts(admission.at_us)).map(|admission| admission.cost).sum()
}

/// Admissions fit a bucket: `level = max(0, level − r·Δt) + cost` never rises above the burst. The
/// level is exact, in millionths times the period.
pub(super) fn leaky_level(log: &[Admission], count: u64, period_us: u64, now_us: u64) -> u128 {
    let (mut level, mut at_us) = (0_u128, 0);
    let now = Admission { at_us: now_us, cost: 0 };
    for admission in log.iter().chain([&now]) {
        let leaked = u128::from(admission.at_us - at_us) * u128::from(count);
        level = level.saturating_sub(leaked) + u128::from(admission.cost) * u128::from(period_us);
        at_us = admission.at_us;
    }
    level
}
