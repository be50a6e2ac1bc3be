//! Quotas: windows of the calendar, a day, a week or a month in the policy's timezone.
//!
//! The window arrives as numbers, so that a plan can travel to a store that knows no time zones.
//! It brings the windows before and after it too: the store's clock may still be in the one, or in
//! the other already.
//!
//! Promise: at most the limit in each window, so up to twice the limit across an edge.

use serde::{Deserialize, Serialize};

use super::window::Window;
use super::{Amount, Reading, Verdict, as_micros};

pub use super::window::State;

/// A limit in each calendar window, and the three windows that matter. See
/// [`boundaries`](super::calendar::boundaries).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The most in each window.
    #[serde(with = "as_micros")]
    pub limit: Amount,
    /// What kind of window it is.
    pub unit: super::calendar::Unit,
    /// Where the window before the planner's starts.
    pub previous_us: u64,
    /// Where the window that the planner saw starts.
    pub start_us: u64,
    /// Where it ends and the next one starts.
    pub end_us: u64,
    /// Where the next one ends.
    pub next_end_us: u64,
}

impl Spec {
    /// The same, whatever the time is.
    pub(crate) const fn without_edges(self) -> Self {
        Self { previous_us: 0, start_us: 0, end_us: 0, next_end_us: 0, ..self }
    }

    /// The same in a window of which only an instant after its start and its end are known.
    pub(crate) const fn around(self, begun_us: u64, end_us: u64) -> Self {
        let next_end_us = end_us.saturating_add(end_us.saturating_sub(begun_us));
        Self { previous_us: 0, start_us: begun_us, end_us, next_end_us, ..self }
    }
}

/// Would this cost fit now, and if not, when?
#[must_use]
pub fn evaluate(state: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    window(state, spec, now_us).evaluate(state, spec.limit, now_us, cost)
}

/// Takes the cost, whether it fits or not.
pub fn charge(state: &mut State, spec: &Spec, now_us: u64, cost: Amount) {
    window(state, spec, now_us).charge(state, now_us, cost);
}

/// Takes the amount, into debt of at most one further limit.
pub fn debit(state: &mut State, spec: &Spec, now_us: u64, amount: Amount) {
    window(state, spec, now_us).debit(state, spec.limit, now_us, amount);
}

/// Gives an earlier charge back; void once its window is over.
pub fn refund(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, cost: Amount) {
    window(state, spec, now_us).refund(state, charged_at_us, cost);
}

/// Adds to an earlier charge; void once its window is over.
pub fn surcharge(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, extra: Amount) {
    window(state, spec, now_us).surcharge(state, spec.limit, charged_at_us, extra);
}

/// What is left of the window, and when it is over, used or not.
#[must_use]
pub fn reading(state: &State, spec: &Spec, now_us: u64) -> Reading {
    window(state, spec, now_us).reading(state, spec.limit, now_us)
}

/// When the window of the last charge is over.
#[must_use]
pub fn meaningless_at_us(state: &State, spec: &Spec) -> Option<u64> {
    Some(window(state, spec, state.at_us).meaningless_at_us(state))
}

/// When the window of the last charge is over, whatever was given back of it.
pub(crate) fn window_end_us(state: &State, spec: &Spec) -> u64 {
    window(state, spec, state.at_us).end_us
}

/// The store's clock says which window it is, whatever the planner's said.
fn window(state: &State, spec: &Spec, now_us: u64) -> Window {
    let now_us = now_us.max(state.at_us);
    if now_us < spec.start_us {
        return window_before(spec, now_us);
    }
    if now_us < spec.end_us {
        return Window { start_us: spec.start_us, end_us: spec.end_us };
    }
    if now_us < spec.next_end_us {
        return Window { start_us: spec.end_us, end_us: spec.next_end_us };
    }
    // Only clocks that differ by whole windows come here. What is beyond the plan repeats its last
    // window: enough to keep counting, and never to run back.
    let length_us = spec.next_end_us.saturating_sub(spec.end_us).max(1);
    let start_us = now_us - (now_us - spec.next_end_us) % length_us;
    Window { start_us, end_us: start_us.saturating_add(length_us) }
}

/// The window before the planner's, which windows of the same length precede.
fn window_before(spec: &Spec, now_us: u64) -> Window {
    if now_us >= spec.previous_us {
        return Window { start_us: spec.previous_us, end_us: spec.start_us };
    }
    let length_us = spec.start_us.saturating_sub(spec.previous_us).max(1);
    let windows = (spec.previous_us - 1 - now_us) / length_us;
    let end_us = spec.previous_us - windows * length_us;
    Window { start_us: end_us.saturating_sub(length_us), end_us }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Spec as AnySpec;
    use super::super::calendar::Unit;
    use super::super::denied_until;
    use super::super::reference::{
        Admission, Run, UNIT, amount, assert_extremes_do_no_harm, costs, spends, spent,
        steps_with_changes, steps_with_refunds, windows_us,
    };
    use super::*;

    const START_US: u64 = 1_000_000;

    fn specs() -> impl Strategy<Value = Spec> {
        (1..=8 * UNIT, windows_us(), windows_us()).prop_map(|(limit, this_us, next_us)| {
            let (previous_us, start_us) = (START_US.saturating_sub(next_us), START_US);
            let end_us = START_US + this_us;
            let next_end_us = end_us + next_us;
            let (limit, unit) = (amount(limit), Unit::Day);
            Spec { limit, unit, previous_us, start_us, end_us, next_end_us }
        })
    }

    /// Which window a time lies in; those beyond the plan are as long as its last.
    fn index(spec: &Spec, at_us: u64) -> u64 {
        match at_us.checked_sub(spec.end_us) {
            None => 0,
            Some(past_us) => 1 + past_us / (spec.next_end_us - spec.end_us),
        }
    }

    fn naive(spec: &AnySpec, log: &[Admission], now_us: u64, cost: u64) -> bool {
        let AnySpec::Quota(spec) = spec else { return false };
        let same_window = |at_us| index(spec, at_us) == index(spec, now_us);
        spent(log, same_window) + cost <= spec.limit.micros()
    }

    fn assert_promise(spec: &Spec, limit: Amount, log: &[Admission]) {
        for last in log {
            let window = spent(log, |at_us| index(spec, at_us) == index(spec, last.at_us));
            assert!(window <= limit.micros(), "more than the limit in one window");
        }
    }

    fn length_us(spec: &Spec) -> u64 {
        spec.end_us - spec.start_us
    }

    proptest! {
        #[test]
        fn every_verdict_is_that_of_the_windows_sum(spec in specs(), steps in spends(costs())) {
            let run = Run::new(AnySpec::Quota(spec), START_US);
            let log = run.take(&steps, length_us(&spec), Some(naive));
            assert_promise(&spec, spec.limit, &log);
        }

        #[test]
        fn a_refunded_charge_counts_as_never_made(
            spec in specs(), steps in steps_with_refunds(costs(), 0..=100_u64),
        ) {
            let run = Run::new(AnySpec::Quota(spec), START_US);
            let log = run.take(&steps, length_us(&spec), Some(naive));
            assert_promise(&spec, spec.limit, &log);
        }

        #[test]
        fn a_changed_limit_sees_the_same_counter(
            spec in specs(), limit in 1..=8 * UNIT, steps in steps_with_changes(costs()),
        ) {
            let mut run = Run::new(AnySpec::Quota(spec), START_US);
            run.other_spec = AnySpec::Quota(Spec { limit: amount(limit), ..spec });
            let log = run.take(&steps, length_us(&spec), Some(naive));
            assert_promise(&spec, spec.limit.max(amount(limit)), &log);
        }
    }

    fn days(today: u64) -> Spec {
        let start_us = today * 100;
        let (previous_us, end_us, next_end_us) = (start_us - 100, start_us + 100, start_us + 200);
        Spec { limit: Amount::ONE, unit: Unit::Day, previous_us, start_us, end_us, next_end_us }
    }

    #[test]
    fn planners_on_both_sides_of_midnight_count_one_window() {
        let mut state = State::default();
        charge(&mut state, &days(5), 600, Amount::ONE);
        assert_eq!(evaluate(&state, &days(6), 601, Amount::ONE), denied_until(700, 601));
        assert_eq!(evaluate(&state, &days(5), 602, Amount::ONE), denied_until(700, 602));
    }

    #[test]
    fn a_planner_that_is_ahead_opens_no_window_before_its_time() {
        let mut state = State::default();
        charge(&mut state, &days(5), 590, Amount::ONE);
        assert_eq!(evaluate(&state, &days(6), 598, Amount::ONE), denied_until(600, 598));
        assert_eq!(meaningless_at_us(&state, &days(6)), Some(600));
        assert_eq!(evaluate(&state, &days(6), 600, Amount::ONE), Verdict::Allowed);
        // Days ahead, even: what is before the plan repeats its first window.
        assert_eq!(evaluate(&state, &days(9), 598, Amount::ONE), denied_until(600, 598));
        assert_eq!(evaluate(&state, &days(9), 600, Amount::ONE), Verdict::Allowed);
    }

    #[test]
    fn a_clock_that_is_set_back_opens_no_earlier_window() {
        let mut state = State::default();
        charge(&mut state, &days(9), 950, Amount::ONE);
        assert_eq!(evaluate(&state, &days(5), 550, Amount::ONE), denied_until(1_000, 550));
    }

    #[test]
    fn a_surcharge_owes_at_most_two_limits_and_ends_with_the_window() {
        let mut state = State::default();
        charge(&mut state, &days(5), 550, Amount::ONE);
        surcharge(&mut state, &days(5), 560, 550, Amount::MAX);
        assert_eq!(state.used_micros, 2 * UNIT);
        surcharge(&mut state, &days(6), 600, 550, Amount::ONE);
        assert_eq!(reading(&state, &days(6), 600).available, Amount::ONE);
        assert_eq!(meaningless_at_us(&state, &days(5)), Some(600));
    }

    #[test]
    fn extremes_do_no_harm() {
        const LAST: u64 = u64::MAX;
        for [previous_us, start_us, end_us, next_end_us] in
            [[0; 4], [12, 9, 5, 3], [LAST; 4], [LAST, 0, LAST, 1], [1, LAST, 1, 1]]
        {
            let (limit, unit) = (Amount::MAX, Unit::Day);
            let spec = Spec { limit, unit, previous_us, start_us, end_us, next_end_us };
            assert_extremes_do_no_harm(AnySpec::Quota(spec));
        }
    }
}
