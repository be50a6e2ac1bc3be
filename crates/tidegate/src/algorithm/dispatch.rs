//! The algorithms behind one set of functions, for stores that hold many kinds of state.
//!
//! A state of another algorithm than the spec's counts as new. Keys contain the algorithm, so that does not happen; but
//! no input may bring a limiter down.

use super::{
    Amount, Reading, Spec, State, Verdict, ceiling, concurrency, fixed_window, quota,
    sliding_counter, sliding_window, token_bucket, total,
};

/// Calls a function of the algorithm that state and spec belong to; `None` if they belong to different ones, or to one
/// that is not listed. Places have holders, and so functions of their own.
macro_rules! dispatch {
    ($state:expr, $spec:expr, $function:ident($($argument:expr),*)) => {
        match ($state, $spec) {
            (State::TokenBucket(state), Spec::TokenBucket(spec)) => {
                Some(token_bucket::$function(state, spec $(, $argument)*))
            }
            (State::SlidingWindow(state), Spec::SlidingWindow(spec)) => {
                Some(sliding_window::$function(state, spec $(, $argument)*))
            }
            (State::SlidingCounter(state), Spec::SlidingCounter(spec)) => {
                Some(sliding_counter::$function(state, spec $(, $argument)*))
            }
            (State::FixedWindow(state), Spec::FixedWindow(spec)) => {
                Some(fixed_window::$function(state, spec $(, $argument)*))
            }
            (State::Quota(state), Spec::Quota(spec)) => {
                Some(quota::$function(state, spec $(, $argument)*))
            }
            (State::Total(state), Spec::Total(spec)) => {
                Some(total::$function(state, spec $(, $argument)*))
            }
            _ => None,
        }
    };
}

/// Would this cost (under a ceiling: this value) fit now, and if not, when?
#[must_use]
pub fn evaluate(state: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    match (state, spec) {
        (State::Concurrency(state), Spec::Concurrency(spec)) => {
            concurrency::evaluate(state, spec, now_us, cost)
        }
        (_, Spec::Ceiling(spec)) => ceiling::evaluate(spec, cost),
        _ => dispatch!(state, spec, evaluate(now_us, cost)).unwrap_or_else(|| {
            let new = spec.new_state();
            new.map_or(Verdict::Allowed, |new| evaluate(&new, spec, now_us, cost))
        }),
    }
}

/// Takes the cost, unconditionally. Under concurrency, `holder` holds the place.
pub fn charge(state: &mut State, spec: &Spec, now_us: u64, holder: u64, cost: Amount) {
    make_match(state, spec);
    match (&mut *state, spec) {
        (State::Concurrency(state), Spec::Concurrency(spec)) => {
            concurrency::hold(state, spec, now_us, holder, cost);
        }
        _ => dispatch!(state, spec, charge(now_us, cost)).unwrap_or_default(),
    }
}

/// Takes the cost, whether it fits or not; returns whether it does, and what is left then.
pub(crate) fn take(
    state: &mut State,
    spec: &Spec,
    now_us: u64,
    cost: Amount,
) -> (Verdict, Reading) {
    if let (State::FixedWindow(state), Spec::FixedWindow(spec)) = (&mut *state, spec) {
        return fixed_window::take(state, spec, now_us, cost);
    }
    let verdict = evaluate(state, spec, now_us, cost);
    charge(state, spec, now_us, 0, cost);
    (verdict, reading(state, spec, now_us))
}

/// Takes the amount, whether it fits or not, into debt of at most one further limit. Places have holders, and know no
/// debits.
pub fn debit(state: &mut State, spec: &Spec, now_us: u64, amount: Amount) {
    make_match(state, spec);
    dispatch!(state, spec, debit(now_us, amount)).unwrap_or_default();
}

/// Gives back what is left of a charge made at `charged_at_us`. A held place is released instead.
pub fn refund(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, cost: Amount) {
    dispatch!(state, spec, refund(now_us, charged_at_us, cost)).unwrap_or_default();
}

/// Adds to a charge made at `charged_at_us`, while it still has an effect.
pub fn surcharge(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, extra: Amount) {
    dispatch!(state, spec, surcharge(now_us, charged_at_us, extra)).unwrap_or_default();
}

/// Gives a held place back; false if there is none.
pub fn release(state: &mut State, holder: u64) -> bool {
    match state {
        State::Concurrency(state) => concurrency::release(state, holder),
        _ => false,
    }
}

/// Starts a holder's lease anew; false if its place has been lost.
pub fn renew(state: &mut State, spec: &Spec, now_us: u64, holder: u64) -> bool {
    match (state, spec) {
        (State::Concurrency(state), Spec::Concurrency(spec)) => {
            concurrency::renew(state, spec, now_us, holder)
        }
        _ => false,
    }
}

/// What could be spent now, and when nothing will be owed any more.
#[must_use]
pub fn reading(state: &State, spec: &Spec, now_us: u64) -> Reading {
    match (state, spec) {
        (State::Concurrency(state), Spec::Concurrency(spec)) => {
            concurrency::reading(state, spec, now_us)
        }
        (_, Spec::Ceiling(spec)) => ceiling::reading(spec, Amount::ZERO),
        _ => dispatch!(state, spec, reading(now_us)).unwrap_or_else(|| {
            let unused = Reading { available: spec.capacity(), reset_us: None };
            spec.new_state().map_or(unused, |new| reading(&new, spec, now_us))
        }),
    }
}

/// How much of its limit is used, of 255; zero for a bucket, whose expiry says more. A log is not added up for it: it
/// counts as it was when it was last charged.
pub(crate) fn fullness(state: &State, spec: &Spec, now_us: u64) -> u8 {
    let as_of_us = match spec {
        Spec::TokenBucket(_) => return 0,
        Spec::SlidingWindow(_) => 0,
        _ => now_us,
    };
    let limit = spec.capacity();
    let used = limit.saturating_sub(reading(state, spec, as_of_us).available);
    let of_255 = u128::from(used.micros()) * 255 / u128::from(limit.micros().max(1));
    u8::try_from(of_255).unwrap_or(u8::MAX)
}

/// The instant from which the state equals a new one; `None` if that never comes by itself.
#[must_use]
pub fn meaningless_at_us(state: &State, spec: &Spec) -> Option<u64> {
    match (state, spec) {
        (State::Concurrency(state), Spec::Concurrency(spec)) => {
            concurrency::meaningless_at_us(state, spec)
        }
        _ => dispatch!(state, spec, meaningless_at_us()).unwrap_or(Some(0)),
    }
}

/// Moves every instant of steady time.
pub(super) fn shift(state: &mut State, by_us: i64) {
    match state {
        State::TokenBucket(state) => token_bucket::shift(state, by_us),
        State::SlidingWindow(state) => sliding_window::shift(state, by_us),
        State::SlidingCounter(state) => sliding_counter::shift(state, by_us),
        State::Concurrency(state) => concurrency::shift(state, by_us),
        State::FixedWindow(_) | State::Quota(_) | State::Total(_) => {}
    }
}

/// Starts anew if the state belongs to another algorithm.
fn make_match(state: &mut State, spec: &Spec) {
    if let Some(new) = spec.new_state()
        && std::mem::discriminant(&new) != std::mem::discriminant(state)
    {
        *state = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Spec = Spec::TokenBucket(token_bucket::Spec {
        count: Amount::ONE,
        period_us: 100,
        burst: Amount::ONE,
    });
    const TOTAL: Spec = Spec::Total(total::Spec { limit: Amount::ONE });
    const PLACES: Spec =
        Spec::Concurrency(concurrency::Spec { places: Amount::ONE, lease_us: 100 });
    const CEILING: Spec = Spec::Ceiling(ceiling::Spec { limit: Amount::ONE });

    #[test]
    fn a_state_of_another_algorithm_counts_as_new() {
        let mut state = TOTAL.new_state().unwrap();
        charge(&mut state, &TOTAL, 5, 0, Amount::ONE);
        assert_eq!(evaluate(&state, &BUCKET, 5, Amount::ONE), Verdict::Allowed);
        assert_eq!(reading(&state, &BUCKET, 5).available, Amount::ONE);
        assert_eq!(meaningless_at_us(&state, &BUCKET), Some(0));
        charge(&mut state, &BUCKET, 5, 0, Amount::ONE);
        assert_eq!(meaningless_at_us(&state, &BUCKET), Some(105));
    }

    #[test]
    fn places_are_held_under_the_name_of_their_holder() {
        let mut state = PLACES.new_state().unwrap();
        charge(&mut state, &PLACES, 0, 42, Amount::ONE);
        assert!(!renew(&mut state, &PLACES, 50, 41));
        assert!(renew(&mut state, &PLACES, 50, 42));
        assert_eq!(meaningless_at_us(&state, &PLACES), Some(150));
        assert!(release(&mut state, 42));
        assert!(!release(&mut state, 42));
    }

    #[test]
    fn a_ceiling_stores_nothing() {
        assert_eq!(CEILING.new_state(), None);
        let mut state = BUCKET.new_state().unwrap();
        charge(&mut state, &CEILING, 5, 0, Amount::ONE);
        assert_eq!(Some(&state), BUCKET.new_state().as_ref());
        assert_eq!(evaluate(&state, &CEILING, 5, Amount::ONE), Verdict::Allowed);
        let denied = Verdict::Denied { retry_after: None };
        assert_eq!(evaluate(&state, &CEILING, 5, Amount::MAX), denied);
    }

    #[test]
    fn only_windows_that_people_see_use_the_wall_clock() {
        let fixed = fixed_window::Spec { limit: Amount::ONE, window_us: 100 };
        assert!(Spec::FixedWindow(fixed).uses_wall_clock());
        assert!(!BUCKET.uses_wall_clock() && !PLACES.uses_wall_clock());
    }
}
