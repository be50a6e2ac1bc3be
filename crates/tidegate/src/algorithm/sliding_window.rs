//! An exact sliding window: a log of what was spent, and when.
//!
//! Promise: never more than the limit in any (now − window, now]; an entry exactly one window old
//! is gone. The log is bounded; where it would grow longer it errs on the strict side.

mod log;

use serde::{Deserialize, Serialize};

use super::{
    Amount, DENIED_FOR_GOOD, Reading, Verdict, as_micros, debitable, denied_until, fits, rest,
    surchargeable,
};
use log::{Entries, Log};

/// The longest log of one key.
pub const ENTRIES_MAX: usize = 65_536;

/// The room that even a small limit has, so that costs below 1 stay exact for a while.
const ENTRIES_MIN: usize = 1_024;

/// A limit in any window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The most in any window.
    #[serde(with = "as_micros")]
    pub limit: Amount,
    /// The length of the window.
    pub window_us: u64,
}

/// The log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Entry>", into = "Vec<Entry>")]
pub struct State {
    log: Option<Box<Log>>,
}

/// What was spent at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub at_us: u64,
    /// How much.
    pub cost_micros: u64,
}

impl State {
    /// The entries, oldest first; some may be older than the window.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry> {
        self.all()
    }

    fn all(&self) -> Entries<'_> {
        self.log.as_deref().map(Log::entries).unwrap_or_default()
    }

    fn newest_us(&self) -> Option<u64> {
        self.log.as_deref().and_then(Log::newest_us)
    }

    fn total_micros(&self) -> u64 {
        self.log.as_deref().map_or(0, Log::total_micros)
    }

    fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut log = Log::default();
        entries.into_iter().for_each(|entry| log.push(entry));
        Self { log: log.newest_us().map(|_| Box::new(log)) }
    }

    /// Changes the cost of the entry that holds a charge; one that costs nothing then is none.
    fn change(&mut self, charged_at_us: u64, change: impl FnOnce(u64) -> u64) {
        let Some(log) = self.log.as_deref_mut() else { return };
        let mut later = Vec::new();
        while log.newest_us().is_some_and(|at_us| at_us >= charged_at_us) {
            later.extend(log.pop());
        }
        if let Some(entry) = later.last_mut() {
            entry.cost_micros = change(entry.cost_micros);
        }
        later
            .into_iter()
            .rev()
            .filter(|entry| entry.cost_micros > 0)
            .for_each(|entry| log.push(entry));
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.all().eq(other.all())
    }
}

impl Eq for State {}

impl TryFrom<Vec<Entry>> for State {
    type Error = &'static str;

    /// A log that was written down; the total is what its entries come to.
    fn try_from(entries: Vec<Entry>) -> Result<Self, Self::Error> {
        if entries.len() > ENTRIES_MAX {
            return Err("found a log of too many entries");
        }
        if !entries.is_sorted_by_key(|entry| entry.at_us) {
            return Err("found a log out of order");
        }
        let add = |total: u64, entry: &Entry| total.checked_add(entry.cost_micros);
        entries.iter().try_fold(0, add).ok_or("found a log of too much")?;
        Ok(Self::of(entries))
    }
}

impl From<State> for Vec<Entry> {
    fn from(state: State) -> Self {
        state.all().collect()
    }
}

/// Would this cost fit now, and if not, when?
#[must_use]
pub fn evaluate(state: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    let (entries, mut spent) = inside(state, spec, now_us);
    if fits(spec.limit, spent, cost) {
        return Verdict::Allowed;
    }
    if cost > spec.limit {
        return DENIED_FOR_GOOD;
    }
    let mut free_at_us = now_us;
    for entry in entries {
        spent = spent.saturating_sub(entry.cost_micros);
        free_at_us = entry.at_us.saturating_add(spec.window_us);
        if fits(spec.limit, spent, cost) {
            break;
        }
    }
    denied_until(free_at_us, now_us)
}

/// Takes the cost, whether it fits or not, and forgets what is older than the window.
pub fn charge(state: &mut State, spec: &Spec, now_us: u64, cost: Amount) {
    let now_us = now_us.max(state.newest_us().unwrap_or(0));
    // Only an absurd sum is cut, so that the total stays the sum of its entries.
    let cost_micros = cost.micros().min(u64::MAX - state.total_micros());
    if cost_micros == 0 {
        return;
    }
    let kept = inside(state, spec, now_us).0.len();
    let log = state.log.get_or_insert_default();
    if kept == 0 {
        **log = Log::default();
    }
    log.forget_oldest(log.entries().len() - kept);
    // Everything in a merged entry leaves the window together, when its last part does: some of it
    // counts longer than it had to, none of it shorter, so nothing more is admitted.
    if kept >= entries_max(spec) || log.newest_us() == Some(now_us) {
        log.add_to_newest(now_us, cost_micros);
    } else {
        log.push(Entry { at_us: now_us, cost_micros });
    }
}

/// Takes the amount, into debt of at most one further limit.
pub fn debit(state: &mut State, spec: &Spec, now_us: u64, amount: Amount) {
    let (_, spent) = inside(state, spec, now_us);
    charge(state, spec, now_us, debitable(spec.limit, spent, amount));
}

/// Takes an earlier charge back out of the log; void once it is older than the window.
pub fn refund(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, cost: Amount) {
    if is_held(state, spec, now_us, charged_at_us) {
        state.change(charged_at_us, |held| held.saturating_sub(cost.micros()));
    }
}

/// Adds to an earlier charge at its own instant; void once it is older than the window.
pub fn surcharge(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, extra: Amount) {
    if is_held(state, spec, now_us, charged_at_us) {
        let (_, spent) = inside(state, spec, now_us);
        let most = u64::MAX - state.total_micros();
        let raised = surchargeable(spec.limit, spent, extra).min(most);
        state.change(charged_at_us, |held| held + raised);
    }
}

/// What is left of the window, and when its newest entry will be gone.
#[must_use]
pub fn reading(state: &State, spec: &Spec, now_us: u64) -> Reading {
    let (_, spent) = inside(state, spec, now_us);
    let reset_at_us = state.newest_us().map_or(0, |at_us| at_us.saturating_add(spec.window_us));
    Reading {
        available: rest(spec.limit, spent),
        reset_us: Some(reset_at_us.saturating_sub(now_us)),
    }
}

/// Until when every cost of one is refused, if nothing is charged or given back meanwhile; `None` if something is left,
/// or if the oldest entry alone does not decide it.
#[must_use]
pub fn full_until_us(state: &State, spec: &Spec) -> Option<u64> {
    let (mut entries, spent) = inside(state, spec, state.newest_us()?);
    let oldest = entries.next()?;
    let is_full = spent == spec.limit.micros() && oldest.cost_micros >= Amount::ONE.micros();
    is_full.then(|| oldest.at_us.saturating_add(spec.window_us))
}

/// When the newest entry will be gone.
#[must_use]
pub fn meaningless_at_us(state: &State, spec: &Spec) -> Option<u64> {
    Some(state.newest_us().map_or(0, |at_us| at_us.saturating_add(spec.window_us)))
}

/// Moves every instant.
pub(super) fn shift(state: &mut State, by_us: i64) {
    let moved = |entry: Entry| Entry { at_us: entry.at_us.saturating_add_signed(by_us), ..entry };
    *state = State::of(state.all().map(moved));
}

/// The entries in the window, and what they come to.
fn inside<'s>(state: &'s State, spec: &Spec, now_us: u64) -> (Entries<'s>, u64) {
    let Some(newest_us) = state.newest_us() else { return Default::default() };
    let now_us = now_us.max(newest_us);
    let is_gone = |at_us: u64| at_us.saturating_add(spec.window_us) <= now_us;
    if is_gone(newest_us) {
        return Default::default();
    }
    let (mut entries, mut spent) = (state.all(), state.total_micros());
    loop {
        let rest = entries.clone();
        match entries.next() {
            Some(entry) if is_gone(entry.at_us) => spent -= entry.cost_micros,
            _ => return (rest, spent),
        }
    }
}

/// Whether the log still holds a charge, in an entry of its own or in the later one that it was merged
/// into. A charge that has left the window has none, or a stranger's would be changed in its place.
fn is_held(state: &State, spec: &Spec, now_us: u64, charged_at_us: u64) -> bool {
    let newest_us = state.newest_us().unwrap_or(0);
    charged_at_us <= newest_us
        && charged_at_us.saturating_add(spec.window_us) > now_us.max(newest_us)
}

fn entries_max(spec: &Spec) -> usize {
    usize::try_from(spec.limit.whole()).unwrap_or(ENTRIES_MAX).clamp(ENTRIES_MIN, ENTRIES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Spec as AnySpec;
    use super::super::reference::{
        Admission, Run, UNIT, amount, assert_changes_keep_what_is_owed, assert_extremes_do_no_harm,
        costs, spends, spent, steps_with_changes, steps_with_refunds, whole_costs, windows_us,
    };
    use super::*;

    fn specs() -> impl Strategy<Value = Spec> {
        (1..=8_u64, windows_us()).prop_map(|(limit, window_us)| per(limit, window_us))
    }

    fn per(limit: u64, window_us: u64) -> Spec {
        Spec { limit: amount(limit * UNIT), window_us }
    }

    fn naive(spec: &AnySpec, log: &[Admission], now_us: u64, cost: u64) -> bool {
        let AnySpec::SlidingWindow(spec) = spec else { return false };
        spent(log, |at_us| at_us + spec.window_us > now_us) + cost <= spec.limit.micros()
    }

    fn assert_promise(limit: Amount, window_us: u64, log: &[Admission]) {
        for last in log {
            let seen = |at_us| at_us + window_us > last.at_us && at_us <= last.at_us;
            assert!(spent(log, seen) <= limit.micros(), "more than the limit in one window");
        }
    }

    proptest! {
        #[test]
        fn every_verdict_is_that_of_the_full_log(
            spec in specs(), steps in spends(whole_costs()), start_us in 0..1_u64 << 50,
        ) {
            let run = Run::new(AnySpec::SlidingWindow(spec), start_us);
            let log = run.take(&steps, spec.window_us, Some(naive));
            assert_promise(spec.limit, spec.window_us, &log);
        }

        #[test]
        fn fractions_may_merge_but_never_admit_more(
            spec in specs(),
            steps in steps_with_refunds(prop_oneof![costs(), 1..UNIT / 3], 0..=100_u64),
        ) {
            let run = Run::new(AnySpec::SlidingWindow(spec), 77);
            assert_promise(spec.limit, spec.window_us, &run.take(&steps, spec.window_us, None));
        }

        #[test]
        fn a_refunded_charge_counts_as_never_made(
            spec in specs(), steps in steps_with_refunds(whole_costs(), Just(100)),
        ) {
            let run = Run::new(AnySpec::SlidingWindow(spec), 77);
            let log = run.take(&steps, spec.window_us, Some(naive));
            assert_promise(spec.limit, spec.window_us, &log);
        }

        #[test]
        fn a_changed_limit_sees_the_same_log(
            spec in specs(), limit in 1..=8_u64, steps in steps_with_changes(whole_costs()),
        ) {
            let mut run = Run::new(AnySpec::SlidingWindow(spec), 77);
            run.other_spec = AnySpec::SlidingWindow(per(limit, spec.window_us));
            let log = run.take(&steps, spec.window_us, Some(naive));
            let larger = spec.limit.max(amount(limit * UNIT));
            assert_promise(larger, spec.window_us, &log);
        }

        #[test]
        fn one_that_is_full_says_until_when_and_is_so_until_then(
            spec in specs(),
            steps in prop::collection::vec((0..=50_u64, prop_oneof![whole_costs(), Just(UNIT / 2)]), 1..60),
            late_us in 0..99_u64,
        ) {
            let (mut state, mut now_us) = (State::default(), 99);
            for (percent, cost) in steps {
                now_us += spec.window_us * percent / 100;
                let cost = amount(cost);
                if evaluate(&state, &spec, now_us, cost) == Verdict::Allowed {
                    charge(&mut state, &spec, now_us, cost);
                }
                let Some(until_us) = full_until_us(&state, &spec) else { continue };
                let newest_us = state.newest_us().unwrap();
                for now_us in [newest_us - late_us, newest_us, until_us - 1] {
                    let verdict = evaluate(&state, &spec, now_us, Amount::ONE);
                    prop_assert_eq!(verdict, denied_until(until_us, now_us));
                    prop_assert_eq!(reading(&state, &spec, now_us).available, Amount::ZERO);
                }
                prop_assert_eq!(evaluate(&state, &spec, until_us, Amount::ONE), Verdict::Allowed);
            }
        }

        #[test]
        fn a_changed_window_keeps_what_is_owed(
            old in specs(), new in specs(), steps in spends(costs()),
        ) {
            let run = Run::new(AnySpec::SlidingWindow(old), 77);
            let new = AnySpec::SlidingWindow(new);
            assert_changes_keep_what_is_owed(run, new, &steps, old.window_us);
        }
    }

    #[test]
    fn the_log_is_bounded_and_errs_on_the_strict_side() {
        let spec = per(3, 60 * UNIT);
        let mut state = State::default();
        for now_us in 0..2 * ENTRIES_MIN as u64 {
            charge(&mut state, &spec, now_us, amount(1));
        }
        assert_eq!(state.entries().len(), entries_max(&spec));
        let sum: u64 = state.entries().map(|entry| entry.cost_micros).sum();
        assert_eq!((sum, state.total_micros()), (2 * ENTRIES_MIN as u64, sum));
        let newest = state.entries().last().map(|entry| entry.at_us);
        assert_eq!(newest, Some(2 * ENTRIES_MIN as u64 - 1), "what is merged is gone later");
    }

    #[test]
    fn an_entry_exactly_one_window_old_is_gone() {
        let spec = per(1, 60 * UNIT);
        let mut state = State::default();
        charge(&mut state, &spec, 5, Amount::ONE);
        assert_eq!(evaluate(&state, &spec, 60 * UNIT + 4, Amount::ONE), denied_until(1, 0));
        assert_eq!(evaluate(&state, &spec, 60 * UNIT + 5, Amount::ONE), Verdict::Allowed);
    }

    #[test]
    fn a_refund_never_touches_a_strangers_entry() {
        let spec = per(2, 100);
        let mut state = State::default();
        charge(&mut state, &spec, 0, Amount::ONE);
        charge(&mut state, &spec, 100, Amount::ONE);
        refund(&mut state, &spec, 120, 0, Amount::ONE);
        assert_eq!(reading(&state, &spec, 120).available, Amount::ONE);
    }

    #[test]
    fn a_surcharge_fades_with_its_charge_and_owes_at_most_two_limits() {
        let spec = per(2, 100);
        let mut state = State::default();
        charge(&mut state, &spec, 0, Amount::ONE);
        charge(&mut state, &spec, 50, Amount::ONE);
        surcharge(&mut state, &spec, 60, 0, Amount::MAX);
        assert_eq!(state.total_micros(), 4 * UNIT);
        assert_eq!(evaluate(&state, &spec, 60, Amount::ZERO), denied_until(100, 60));
        surcharge(&mut state, &spec, 110, 0, Amount::ONE);
        assert_eq!(reading(&state, &spec, 110).available, Amount::ONE, "void by now");
    }

    #[test]
    fn extremes_do_no_harm() {
        for (limit, window_us) in [(Amount::MAX, u64::MAX), (Amount::ZERO, 0), (Amount::ONE, 1)] {
            assert_extremes_do_no_harm(AnySpec::SlidingWindow(Spec { limit, window_us }));
        }
    }
}
