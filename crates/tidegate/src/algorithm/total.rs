//! A total that never resets by itself: only refunds and an operator's reset lower it.

use serde::{Deserialize, Serialize};

use super::{
    Amount, DENIED_FOR_GOOD, Reading, Verdict, as_micros, debitable, fits, rest, surchargeable,
};

/// The most in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The limit.
    #[serde(with = "as_micros")]
    pub limit: Amount,
}

/// What has been used in all.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// The sum of what was charged and not given back.
    pub used_micros: u64,
}

/// Would this cost fit? If not, no waiting helps.
#[must_use]
pub fn evaluate(state: &State, spec: &Spec, _now_us: u64, cost: Amount) -> Verdict {
    if fits(spec.limit, state.used_micros, cost) { Verdict::Allowed } else { DENIED_FOR_GOOD }
}

/// Takes the cost, whether it fits or not.
pub fn charge(state: &mut State, _spec: &Spec, _now_us: u64, cost: Amount) {
    state.used_micros = state.used_micros.saturating_add(cost.micros());
}

/// Takes the amount, into debt of at most one further limit.
pub fn debit(state: &mut State, spec: &Spec, now_us: u64, amount: Amount) {
    charge(state, spec, now_us, debitable(spec.limit, state.used_micros, amount));
}

/// Gives an earlier charge back, however old.
pub fn refund(state: &mut State, _spec: &Spec, _now_us: u64, _charged_at_us: u64, cost: Amount) {
    state.used_micros = state.used_micros.saturating_sub(cost.micros());
}

/// Adds to an earlier charge; void if nothing is left of any charge, as after a reset.
pub fn surcharge(state: &mut State, spec: &Spec, _now_us: u64, _charged_at_us: u64, extra: Amount) {
    if state.used_micros > 0 {
        let raised = surchargeable(spec.limit, state.used_micros, extra);
        state.used_micros = state.used_micros.saturating_add(raised);
    }
}

/// What is left. Nothing resets it by itself.
#[must_use]
pub fn reading(state: &State, spec: &Spec, _now_us: u64) -> Reading {
    Reading { available: rest(spec.limit, state.used_micros), reset_us: None }
}

/// At once if nothing is used, else never.
#[must_use]
pub fn meaningless_at_us(state: &State, _spec: &Spec) -> Option<u64> {
    (state.used_micros == 0).then_some(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Spec as AnySpec;
    use super::super::reference::{
        Admission, Run, UNIT, amount, assert_extremes_do_no_harm, costs, spent, steps_with_changes,
        steps_with_refunds,
    };
    use super::*;

    fn naive(spec: &AnySpec, log: &[Admission], _now_us: u64, cost: u64) -> bool {
        spent(log, |_| true) + cost <= spec.capacity().micros()
    }

    proptest! {
        #[test]
        fn the_sum_of_all_admissions_never_exceeds_the_limit(
            limit in 1..=20 * UNIT, steps in steps_with_refunds(costs(), 0..=100_u64),
        ) {
            let run = Run::new(AnySpec::Total(Spec { limit: amount(limit) }), 77);
            let log = run.take(&steps, UNIT, Some(naive));
            prop_assert!(spent(&log, |_| true) <= limit);
        }

        #[test]
        fn a_changed_limit_sees_the_same_total(
            old in 1..=20 * UNIT, new in 1..=20 * UNIT, steps in steps_with_changes(costs()),
        ) {
            let mut run = Run::new(AnySpec::Total(Spec { limit: amount(old) }), 77);
            run.other_spec = AnySpec::Total(Spec { limit: amount(new) });
            let log = run.take(&steps, UNIT, Some(naive));
            prop_assert!(spent(&log, |_| true) <= old.max(new));
        }
    }

    #[test]
    fn a_surcharge_owes_at_most_two_limits_and_is_void_after_a_reset() {
        let spec = Spec { limit: amount(3 * UNIT) };
        let mut state = State::default();
        surcharge(&mut state, &spec, 0, 0, Amount::ONE);
        assert_eq!(state, State::default());
        charge(&mut state, &spec, 0, Amount::ONE);
        surcharge(&mut state, &spec, 0, 0, Amount::MAX);
        assert_eq!(state.used_micros, 6 * UNIT);
        assert_eq!(evaluate(&state, &spec, 0, Amount::ZERO), DENIED_FOR_GOOD);
    }

    #[test]
    fn extremes_do_no_harm() {
        for limit in [Amount::ZERO, Amount::MAX] {
            assert_extremes_do_no_harm(AnySpec::Total(Spec { limit }));
        }
    }
}
