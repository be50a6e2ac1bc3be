//! A sliding window estimated from two counters: constant memory for high limits.
//!
//! Windows are aligned to multiples of their length. The previous one counts by the share of it
//! that a sliding window would still see, rounded up.
//!
//! Promise: admitted in any δ ≤ limit + limit · δ / window, so up to twice the limit in one window.

use serde::{Deserialize, Serialize};

use super::{
    Amount, DENIED_FOR_GOOD, Reading, Verdict, as_micros, debitable, denied_until, fits, rest,
    saturate, surchargeable,
};

/// A limit for each window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The most that the estimate may reach.
    #[serde(with = "as_micros")]
    pub limit: Amount,
    /// The length of the window.
    pub window_us: u64,
}

/// Two neighbouring windows. They have the length that they were counted with: while the spec says
/// another one they go on fading by their own, until the next charge carries the estimate over.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// Where the current window starts.
    pub start_us: u64,
    /// How long both windows are; zero in a new state.
    pub window_us: u64,
    /// What was spent in the current window.
    pub current_micros: u64,
    /// What was spent in the window before it.
    pub previous_micros: u64,
}

/// Would this cost fit now, and if not, when?
#[must_use]
pub fn evaluate(state: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    let rolled = roll(state, now_us);
    if fits(spec.limit, estimate(&rolled, now_us), cost) {
        return Verdict::Allowed;
    }
    if cost > spec.limit {
        return DENIED_FOR_GOOD;
    }
    let room = spec.limit.saturating_sub(cost).micros();
    let end_us = rolled.start_us.saturating_add(rolled.window_us);
    let instant_us = match room.checked_sub(rolled.current_micros) {
        Some(room) => faded_at_us(rolled.start_us, rolled.window_us, rolled.previous_micros, room),
        // The current counter alone is too much: it has to become the previous one and fade.
        None => faded_at_us(end_us, rolled.window_us, rolled.current_micros, room),
    };
    denied_until(instant_us, now_us)
}

/// Takes the cost, whether it fits or not.
pub fn charge(state: &mut State, spec: &Spec, now_us: u64, cost: Amount) {
    if cost.is_zero() {
        return;
    }
    let mut rolled = roll(state, now_us);
    if rolled.window_us != spec.window_us.max(1) {
        rolled = carry_over(&rolled, spec, now_us);
    }
    rolled.current_micros = rolled.current_micros.saturating_add(cost.micros());
    *state = rolled;
}

/// Takes the amount, into debt of at most one further limit.
pub fn debit(state: &mut State, spec: &Spec, now_us: u64, amount: Amount) {
    let owed = estimate(&roll(state, now_us), now_us);
    charge(state, spec, now_us, debitable(spec.limit, owed, amount));
}

/// Takes an earlier charge out of the counter that holds it; void once neither does.
///
/// A charge that was carried over from windows of another length may have faded before it was: its
/// refund then gives back more than is left of it, at most the charge itself.
pub fn refund(state: &mut State, _spec: &Spec, now_us: u64, charged_at_us: u64, cost: Amount) {
    let mut rolled = roll(state, now_us);
    if let Some(counter) = counter_of(&mut rolled, charged_at_us) {
        *counter = counter.saturating_sub(cost.micros());
        *state = rolled;
    }
}

/// Adds to an earlier charge in the counter that holds it; void once neither does.
pub fn surcharge(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, extra: Amount) {
    let mut rolled = roll(state, now_us);
    let raised = surchargeable(spec.limit, estimate(&rolled, now_us), extra);
    if let Some(counter) = counter_of(&mut rolled, charged_at_us).filter(|counter| **counter > 0) {
        *counter = counter.saturating_add(raised);
        *state = rolled;
    }
}

/// What is left beside the estimate, and when both counters will be gone.
#[must_use]
pub fn reading(state: &State, spec: &Spec, now_us: u64) -> Reading {
    let rolled = roll(state, now_us);
    Reading {
        available: rest(spec.limit, estimate(&rolled, now_us)),
        reset_us: Some(empty_at_us(&rolled).saturating_sub(now_us)),
    }
}

/// When both counters will be gone.
#[must_use]
pub fn meaningless_at_us(state: &State, _spec: &Spec) -> Option<u64> {
    Some(empty_at_us(state))
}

/// Moves every instant.
pub(super) fn shift(state: &mut State, by_us: i64) {
    state.start_us = state.start_us.saturating_add_signed(by_us);
}

/// The state with `now_us` in its current window. A time before that window is taken as its start.
fn roll(state: &State, now_us: u64) -> State {
    let window_us = state.window_us;
    let windows_ahead = now_us.saturating_sub(state.start_us).checked_div(window_us).unwrap_or(0);
    if windows_ahead == 0 {
        return state.clone();
    }
    let start_us = now_us - (now_us - state.start_us) % window_us;
    let previous_micros = if windows_ahead == 1 { state.current_micros } else { 0 };
    State { start_us, window_us, current_micros: 0, previous_micros }
}

/// What a rolled state counts: the previous window by its share that has not yet slid out.
fn estimate(rolled: &State, now_us: u64) -> u64 {
    let elapsed_us = now_us.saturating_sub(rolled.start_us);
    let seen_us = rolled.window_us.saturating_sub(elapsed_us);
    let product = u128::from(rolled.previous_micros) * u128::from(seen_us);
    let faded = saturate(product.div_ceil(u128::from(rolled.window_us.max(1))));
    faded.saturating_add(rolled.current_micros)
}

/// A state with the spec's windows that owes at this moment what the old one owes.
fn carry_over(rolled: &State, spec: &Spec, now_us: u64) -> State {
    let current_micros = estimate(rolled, now_us);
    let now_us = now_us.max(rolled.start_us);
    let window_us = spec.window_us.max(1);
    let start_us = now_us - now_us % window_us;
    State { start_us, window_us, current_micros, previous_micros: 0 }
}

/// The first instant of the window from `start_us` at which a previous counter has faded to `room`.
fn faded_at_us(start_us: u64, window_us: u64, previous_micros: u64, room: u64) -> u64 {
    let seen_us = u128::from(room) * u128::from(window_us) / u128::from(previous_micros.max(1));
    start_us.saturating_add(window_us.saturating_sub(saturate(seen_us)))
}

/// The counter that holds a charge made at this instant.
fn counter_of(rolled: &mut State, charged_at_us: u64) -> Option<&mut u64> {
    if charged_at_us >= rolled.start_us {
        Some(&mut rolled.current_micros)
    } else if charged_at_us >= rolled.start_us.saturating_sub(rolled.window_us) {
        Some(&mut rolled.previous_micros)
    } else {
        None
    }
}

fn empty_at_us(state: &State) -> u64 {
    let end_us = state.start_us.saturating_add(state.window_us);
    match (state.current_micros, state.previous_micros) {
        (0, 0) => 0,
        (0, _) => end_us,
        _ => end_us.saturating_add(state.window_us),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Spec as AnySpec;
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
        let AnySpec::SlidingCounter(spec) = spec else { return false };
        let (window_us, index) = (spec.window_us, now_us / spec.window_us);
        let current = spent(log, |at_us| at_us / window_us == index);
        let previous = spent(log, |at_us| at_us / window_us + 1 == index);
        let seen_us = u128::from(window_us - now_us % window_us);
        let faded = (u128::from(previous) * seen_us).div_ceil(u128::from(window_us));
        faded + u128::from(current + cost) <= u128::from(spec.limit.micros())
    }

    /// At most limit + limit · δ / window between any two admissions.
    fn assert_promise(limit: Amount, window_us: u64, log: &[Admission]) {
        let (limit, window) = (u128::from(limit.micros()), u128::from(window_us));
        for (first, from) in log.iter().enumerate() {
            let mut sum = 0;
            for to in &log[first..] {
                sum += u128::from(to.cost);
                let elapsed = u128::from(to.at_us - from.at_us);
                assert!(sum * window <= limit * (window + elapsed), "more than the promise");
            }
        }
    }

    proptest! {
        #[test]
        fn every_verdict_is_that_of_two_weighted_windows(
            spec in specs(), steps in spends(costs()), start_us in 0..1_u64 << 50,
        ) {
            let run = Run::new(AnySpec::SlidingCounter(spec), start_us);
            let log = run.take(&steps, spec.window_us, Some(naive));
            assert_promise(spec.limit, spec.window_us, &log);
        }

        #[test]
        fn a_refunded_charge_counts_as_never_made(
            spec in specs(), steps in steps_with_refunds(costs(), 0..=100_u64),
        ) {
            let run = Run::new(AnySpec::SlidingCounter(spec), 77);
            let log = run.take(&steps, spec.window_us, Some(naive));
            assert_promise(spec.limit, spec.window_us, &log);
        }

        #[test]
        fn a_changed_limit_sees_the_same_counters(
            spec in specs(), limit in 1..=8 * UNIT, steps in steps_with_changes(costs()),
        ) {
            let mut run = Run::new(AnySpec::SlidingCounter(spec), 77);
            run.other_spec = AnySpec::SlidingCounter(Spec { limit: amount(limit), ..spec });
            let log = run.take(&steps, spec.window_us, Some(naive));
            assert_promise(spec.limit.max(amount(limit)), spec.window_us, &log);
        }

        #[test]
        fn a_changed_window_keeps_what_is_owed(
            old in specs(), new in specs(), steps in spends(costs()),
        ) {
            let run = Run::new(AnySpec::SlidingCounter(old), 77);
            let new = AnySpec::SlidingCounter(new);
            assert_changes_keep_what_is_owed(run, new, &steps, old.window_us);
        }

        #[test]
        fn waiting_stays_exact_while_windows_change(
            old in specs(), new in specs(), steps in steps_with_changes(costs()),
        ) {
            let mut run = Run::new(AnySpec::SlidingCounter(old), 77);
            run.other_spec = AnySpec::SlidingCounter(new);
            run.take(&steps, old.window_us, None);
        }

        #[test]
        fn a_changed_window_carries_the_estimate_over(
            old in specs(), new in specs(), first in costs(), second in costs(), wait in 0..UNIT,
        ) {
            let mut state = State::default();
            charge(&mut state, &old, 5, amount(first));
            charge(&mut state, &old, 5 + old.window_us, amount(second));
            let now_us = 5 + old.window_us + wait;
            let owed = estimate(&roll(&state, now_us), now_us);
            charge(&mut state, &new, now_us, Amount::ONE);
            prop_assert_eq!(estimate(&roll(&state, now_us), now_us), owed + UNIT);
        }
    }

    #[test]
    fn where_the_current_window_is_full_only_the_next_one_helps() {
        let spec = Spec { limit: amount(10 * UNIT), window_us: 100 };
        let mut state = State::default();
        charge(&mut state, &spec, 30, spec.limit);
        assert_eq!(evaluate(&state, &spec, 40, Amount::ONE), denied_until(110, 40));
        assert_eq!(evaluate(&state, &spec, 40, spec.limit), denied_until(200, 40));
    }

    #[test]
    fn a_surcharge_owes_at_most_two_limits_and_is_void_after_two_windows() {
        let spec = Spec { limit: amount(2 * UNIT), window_us: 100 };
        let mut state = State::default();
        charge(&mut state, &spec, 30, Amount::ONE);
        surcharge(&mut state, &spec, 40, 30, Amount::MAX);
        assert_eq!(state.current_micros, 4 * UNIT);
        assert_eq!(evaluate(&state, &spec, 40, Amount::ZERO), denied_until(150, 40));
        charge(&mut state, &spec, 210, Amount::ONE);
        surcharge(&mut state, &spec, 210, 30, Amount::ONE);
        assert_eq!(reading(&state, &spec, 210).available, Amount::ONE, "void by now");
    }

    #[test]
    fn extremes_do_no_harm() {
        for (limit, window_us) in [(Amount::MAX, u64::MAX), (Amount::ZERO, 0), (Amount::ONE, 1)] {
            assert_extremes_do_no_harm(AnySpec::SlidingCounter(Spec { limit, window_us }));
        }
    }
}
