//! Fixed windows, aligned to multiples of their length since the epoch.
//!
//! Promise: at most the limit in each window, so up to twice the limit across an edge.

use serde::{Deserialize, Serialize};

use super::window::Window;
use super::{Amount, Reading, Verdict, as_micros};

pub use super::window::State;

/// A limit in each window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The most in each window.
    #[serde(with = "as_micros")]
    pub limit: Amount,
    /// The length of the windows.
    pub window_us: u64,
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

/// Takes the cost whether it fits or not, and says whether it does and what is left then: all three in
/// one, since to find the window takes a division. The window of a charge is that of its instant, so
/// that it is the same before and after.
#[inline]
pub(crate) fn take(
    state: &mut State,
    spec: &Spec,
    now_us: u64,
    cost: Amount,
) -> (Verdict, Reading) {
    let window = window(state, spec, now_us);
    let verdict = window.evaluate(state, spec.limit, now_us, cost);
    window.charge(state, now_us, cost);
    (verdict, window.reading(state, spec.limit, now_us))
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

fn window(state: &State, spec: &Spec, now_us: u64) -> Window {
    let now_us = now_us.max(state.at_us);
    let window_us = spec.window_us.max(1);
    let start_us = now_us - now_us % window_us;
    Window { start_us, end_us: start_us.saturating_add(window_us) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Spec as AnySpec;
    use super::super::denied_until;
    use super::super::reference::{
        Admission, Run, UNIT, amount, assert_changes_keep_what_is_owed, assert_extremes_do_no_harm,
        costs, spends, spent, steps_with_changes, steps_with_refunds, windows_us,
    };
    use super::*;

    fn specs() -> impl Strategy<Value = Spec> {
        (1..=8 * UNIT, windows_us())
            .prop_map(|(limit, window_us)| Spec { limit: amount(limit), window_us })
    }

    fn naive(spec: &AnySpec, log: &[Admission], now_us: u64, cost: u64) -> bool {
        let AnySpec::FixedWindow(spec) = spec else { return false };
        let same_window = |at_us| at_us / spec.window_us == now_us / spec.window_us;
        spent(log, same_window) + cost <= spec.limit.micros()
    }

    fn assert_promise(limit: Amount, window_us: u64, log: &[Admission]) {
        for last in log {
            let window = spent(log, |at_us| at_us / window_us == last.at_us / window_us);
            assert!(window <= limit.micros(), "more than the limit in one window");
        }
    }

    proptest! {
        #[test]
        fn every_verdict_is_that_of_the_windows_sum(
            spec in specs(), steps in spends(costs()), start_us in 0..1_u64 << 50,
        ) {
            let run = Run::new(AnySpec::FixedWindow(spec), start_us);
            let log = run.take(&steps, spec.window_us, Some(naive));
            assert_promise(spec.limit, spec.window_us, &log);
        }

        #[test]
        fn a_refunded_charge_counts_as_never_made(
            spec in specs(), steps in steps_with_refunds(costs(), 0..=100_u64),
        ) {
            let run = Run::new(AnySpec::FixedWindow(spec), 77);
            let log = run.take(&steps, spec.window_us, Some(naive));
            assert_promise(spec.limit, spec.window_us, &log);
        }

        #[test]
        fn a_changed_limit_sees_the_same_counter(
            spec in specs(), limit in 1..=8 * UNIT, steps in steps_with_changes(costs()),
        ) {
            let mut run = Run::new(AnySpec::FixedWindow(spec), 77);
            run.other_spec = AnySpec::FixedWindow(Spec { limit: amount(limit), ..spec });
            let log = run.take(&steps, spec.window_us, Some(naive));
            assert_promise(spec.limit.max(amount(limit)), spec.window_us, &log);
        }

        #[test]
        fn a_changed_window_keeps_what_is_owed(
            old in specs(), new in specs(), steps in spends(costs()),
        ) {
            let run = Run::new(AnySpec::FixedWindow(old), 77);
            let new = AnySpec::FixedWindow(new);
            assert_changes_keep_what_is_owed(run, new, &steps, old.window_us);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_opens_no_earlier_window() {
        let spec = Spec { limit: Amount::ONE, window_us: 100 };
        let mut state = State::default();
        charge(&mut state, &spec, 250, Amount::ONE);
        assert_eq!(evaluate(&state, &spec, 120, Amount::ONE), denied_until(300, 120));
        assert_eq!(reading(&state, &spec, 120).reset_us, Some(180));
    }

    #[test]
    fn an_unused_window_still_says_when_it_is_over() {
        let spec = Spec { limit: Amount::ONE, window_us: 100 };
        assert_eq!(reading(&State::default(), &spec, 230).reset_us, Some(70));
        assert_eq!(meaningless_at_us(&State::default(), &spec), Some(0));
    }

    #[test]
    fn a_surcharge_owes_at_most_two_limits_and_ends_with_the_window() {
        let spec = Spec { limit: amount(2 * UNIT), window_us: 100 };
        let mut state = State::default();
        charge(&mut state, &spec, 30, Amount::ONE);
        surcharge(&mut state, &spec, 40, 30, Amount::MAX);
        assert_eq!(state.used_micros, 4 * UNIT);
        assert_eq!(evaluate(&state, &spec, 40, Amount::ZERO), denied_until(100, 40));
        charge(&mut state, &spec, 110, Amount::ONE);
        surcharge(&mut state, &spec, 110, 30, Amount::ONE);
        assert_eq!(reading(&state, &spec, 110).available, Amount::ONE, "void by now");
    }

    #[test]
    fn extremes_do_no_harm() {
        for (limit, window_us) in [(Amount::MAX, u64::MAX), (Amount::ZERO, 0), (Amount::ONE, 1)] {
            assert_extremes_do_no_harm(AnySpec::FixedWindow(Spec { limit, window_us }));
        }
    }
}
