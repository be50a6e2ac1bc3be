//! An exact sliding window: a log of what was spent, and when.
//!
//! Promise: never more than the limit in any (now − window, now]; an entry exactly one window old
//! is gone. The log is bounded; where it would grow longer it errs on the strict side.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{
    Amount, DENIED_FOR_GOOD, Reading, Verdict, as_micros, debitable, denied_until, fits, rest,
    surchargeable,
};

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

/// The log, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Entry>", into = "Vec<Entry>")]
pub struct State {
    entries: VecDeque<Entry>,
    total_micros: u64,
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
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    fn newest_us(&self) -> u64 {
        self.entries.back().map_or(0, |entry| entry.at_us)
    }
}

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
        let total_micros = entries.iter().try_fold(0, add).ok_or("found a log of too much")?;
        Ok(Self { entries: entries.into(), total_micros })
    }
}

impl From<State> for Vec<Entry> {
    fn from(state: State) -> Self {
        state.entries.into()
    }
}

/// Would this cost fit now, and if not, when?
#[must_use]
pub fn evaluate(state: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    let gone = gone(state, spec, now_us);
    let mut spent = spent_after(state, gone);
    if fits(spec.limit, spent, cost) {
        return Verdict::Allowed;
    }
    if cost > spec.limit {
        return DENIED_FOR_GOOD;
    }
    let mut free_at_us = now_us;
    for entry in state.entries.range(gone..) {
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
    let now_us = now_us.max(state.newest_us());
    // Only an absurd sum is cut, so that the total stays the sum of its entries.
    let cost_micros = cost.micros().min(u64::MAX - state.total_micros);
    if cost_micros == 0 {
        return;
    }
    let gone = gone(state, spec, now_us);
    state.total_micros = spent_after(state, gone);
    state.entries.drain(..gone);
    state.total_micros += cost_micros;
    let full = state.entries.len() >= entries_max(spec);
    match state.entries.back_mut() {
        // Everything in a merged entry leaves the window together, when its last part does: some
        // of it counts longer than it had to, none of it shorter, so nothing more is admitted.
        Some(newest) if full || newest.at_us == now_us => {
            newest.at_us = now_us;
            newest.cost_micros += cost_micros;
        }
        _ => state.entries.push_back(Entry { at_us: now_us, cost_micros }),
    }
}

/// Takes the amount, into debt of at most one further limit.
pub fn debit(state: &mut State, spec: &Spec, now_us: u64, amount: Amount) {
    let spent = spent_after(state, gone(state, spec, now_us));
    charge(state, spec, now_us, debitable(spec.limit, spent, amount));
}

/// Takes an earlier charge back out of the log; void once it is older than the window.
pub fn refund(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, cost: Amount) {
    let Some(index) = entry_of(state, spec, now_us, charged_at_us) else { return };
    let entry = &mut state.entries[index];
    let lowered = cost.micros().min(entry.cost_micros);
    entry.cost_micros -= lowered;
    state.total_micros -= lowered;
    if entry.cost_micros == 0 {
        state.entries.remove(index);
    }
}

/// Adds to an earlier charge at its own instant; void once it is older than the window.
pub fn surcharge(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, extra: Amount) {
    let Some(index) = entry_of(state, spec, now_us, charged_at_us) else { return };
    let spent = spent_after(state, gone(state, spec, now_us));
    let raised = surchargeable(spec.limit, spent, extra).min(u64::MAX - state.total_micros);
    state.entries[index].cost_micros += raised;
    state.total_micros += raised;
}

/// What is left of the window, and when its newest entry will be gone.
#[must_use]
pub fn reading(state: &State, spec: &Spec, now_us: u64) -> Reading {
    let spent = spent_after(state, gone(state, spec, now_us));
    let reset_at_us =
        state.entries.back().map_or(0, |newest| newest.at_us.saturating_add(spec.window_us));
    Reading {
        available: rest(spec.limit, spent),
        reset_us: Some(reset_at_us.saturating_sub(now_us)),
    }
}

/// When the newest entry will be gone.
#[must_use]
pub fn meaningless_at_us(state: &State, spec: &Spec) -> Option<u64> {
    Some(state.entries.back().map_or(0, |newest| newest.at_us.saturating_add(spec.window_us)))
}

/// Moves every instant by so much.
pub(super) fn shift(state: &mut State, by_us: i64) {
    for entry in &mut state.entries {
        entry.at_us = entry.at_us.saturating_add_signed(by_us);
    }
}

/// How many of the oldest entries are out of the window.
fn gone(state: &State, spec: &Spec, now_us: u64) -> usize {
    let now_us = now_us.max(state.newest_us());
    state.entries.partition_point(|entry| entry.at_us.saturating_add(spec.window_us) <= now_us)
}

/// What the entries behind the first so many come to, added up from the shorter side.
fn spent_after(state: &State, gone: usize) -> u64 {
    if gone > state.entries.len() / 2 {
        return state.entries.range(gone..).map(|entry| entry.cost_micros).sum();
    }
    let spent_before: u64 = state.entries.range(..gone).map(|entry| entry.cost_micros).sum();
    state.total_micros - spent_before
}

/// The entry that holds a charge: its own, or the later one that it was merged into. A charge that
/// has left the window has none, or a stranger's entry would be changed in its place.
fn entry_of(state: &State, spec: &Spec, now_us: u64, charged_at_us: u64) -> Option<usize> {
    let now_us = now_us.max(state.newest_us());
    if charged_at_us.saturating_add(spec.window_us) <= now_us {
        return None;
    }
    let index = state.entries.partition_point(|entry| entry.at_us < charged_at_us);
    (index < state.entries.len()).then_some(index)
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
        assert_eq!((sum, state.total_micros), (2 * ENTRIES_MIN as u64, sum));
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
        assert_eq!(state.total_micros, 4 * UNIT);
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
