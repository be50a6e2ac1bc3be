//! A bucket of tokens that starts full and refills evenly.
//!
//! The state is a debt (`burst - level`), not a level: a bucket that is full owes nothing whatever
//! its size, and one whose spec changes keeps what it owes. The refill carries its remainder, so
//! that a rate such as 7 per 3 days loses nothing to rounding however often it is asked.
//!
//! Promise: admitted in any δ seconds ≤ burst + rate · δ.

use serde::{Deserialize, Serialize};

use super::{
    Amount, DENIED_FOR_GOOD, Reading, Verdict, as_micros, debitable, debt_max, denied_until, fits,
    rest, saturate, surchargeable,
};

/// A rate and a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// How much is refilled in each period.
    #[serde(with = "as_micros")]
    pub count: Amount,
    /// The period, longer than zero.
    pub period_us: u64,
    /// The capacity.
    #[serde(with = "as_micros")]
    pub burst: Amount,
}

/// What is owed, and since when it is being paid back.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// How much is missing from a full bucket.
    pub owed_micros: u64,
    /// The part of the next millionth that is already refilled, in `1 / period_us` of it. Means
    /// nothing while nothing is owed.
    pub remainder: u64,
    /// The instant at which the two were right.
    pub at_us: u64,
    /// Since when something has been owed without a break.
    pub owing_since_us: u64,
    /// The least that was owed just before any later charge since then.
    pub low_micros: u64,
}

impl State {
    /// Whole millionths of the debt; the last one may be refilled in part.
    fn owed_at_least(&self) -> u64 {
        self.owed_micros.saturating_sub(u64::from(self.remainder > 0))
    }
}

/// Would this cost fit now, and if not, when?
#[must_use]
pub fn evaluate(state: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    weigh(&settle(state, spec, now_us), spec, now_us, cost)
}

/// Takes the cost, whether it fits or not.
pub fn charge(state: &mut State, spec: &Spec, now_us: u64, cost: Amount) {
    if !cost.is_zero() {
        *state = settle(state, spec, now_us);
        add(state, cost);
    }
}

/// Takes the cost if it fits, and settles the state in any case: one refill serves the verdict and the charge.
#[inline(always)]
pub(crate) fn take(state: &mut State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    *state = settle(state, spec, now_us);
    let verdict = weigh(state, spec, now_us, cost);
    if verdict == Verdict::Allowed && !cost.is_zero() {
        add(state, cost);
    }
    verdict
}

/// Whether a cost fits a settled state.
#[inline(always)]
fn weigh(settled: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    if fits(spec.burst, settled.owed_micros, cost) {
        return Verdict::Allowed;
    }
    refused(settled, spec, now_us, cost)
}

/// The refusal of a cost that does not fit.
fn refused(settled: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    if cost > spec.burst {
        return DENIED_FOR_GOOD;
    }
    let owed_by_then = spec.burst.saturating_sub(cost).micros();
    let excess = settled.owed_micros.saturating_sub(owed_by_then);
    match repaid_at_us(settled, spec, excess) {
        Some(instant_us) => denied_until(instant_us, now_us),
        None => DENIED_FOR_GOOD,
    }
}

/// Adds a cost to a settled state.
fn add(settled: &mut State, cost: Amount) {
    if settled.owed_micros == 0 {
        (settled.owing_since_us, settled.low_micros) = (settled.at_us, u64::MAX);
    } else {
        settled.low_micros = settled.low_micros.min(settled.owed_at_least());
    }
    settled.owed_micros = settled.owed_micros.saturating_add(cost.micros());
}

/// Takes the amount, into debt of at most one further burst.
pub fn debit(state: &mut State, spec: &Spec, now_us: u64, amount: Amount) {
    let owed_micros = settle(state, spec, now_us).owed_micros;
    charge(state, spec, now_us, debitable(spec.burst, owed_micros, amount));
}

/// Gives back what is certain to be left of an earlier charge.
///
/// Without the charge the debt would have been lower ever since, but never below zero: where it
/// would have reached zero, the refill paid for later requests, and handing those tokens out
/// again would admit more than the promise. So no more is given back than was owed at all times
/// since, of which the state knows a lower bound: the low-water mark of the present debt, or what
/// the refill cannot have paid yet. A charge from before the present debt is paid.
pub fn refund(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, cost: Amount) {
    if cost.is_zero() {
        return;
    }
    let mut settled = settle(state, spec, now_us);
    let cost = cost.micros();
    let unpaid = cost.saturating_sub(refilled_since(spec, charged_at_us, settled.at_us));
    let same_debt = charged_at_us >= settled.owing_since_us;
    let certain = if same_debt { unpaid.max(cost.min(settled.low_micros)) } else { 0 };
    let given = certain.min(settled.owed_micros);
    // Without the whole charge everything since is lower by it; without a part of it, it touched
    // zero, and nothing more is certain of the others.
    settled.low_micros = if given == cost { settled.low_micros.saturating_sub(cost) } else { 0 };
    settled.owed_micros -= given;
    if settled.owed_micros == 0 {
        settled.remainder = 0;
    }
    *state = settled;
}

/// Adds to an earlier charge, void once that charge is certainly paid back: nothing is owed, or a
/// whole bucket has been refilled since.
pub fn surcharge(state: &mut State, spec: &Spec, now_us: u64, charged_at_us: u64, extra: Amount) {
    let mut settled = settle(state, spec, now_us);
    let paid_back = settled.owed_micros == 0
        || refilled_since(spec, charged_at_us, settled.at_us) >= spec.burst.micros();
    if extra.is_zero() || paid_back {
        return;
    }
    settled.low_micros = settled.low_micros.min(settled.owed_at_least());
    settled.owed_micros += surchargeable(spec.burst, settled.owed_micros, extra);
    *state = settled;
}

/// The level of the bucket, and when it will be full.
#[must_use]
pub fn reading(state: &State, spec: &Spec, now_us: u64) -> Reading {
    settled_reading(&settle(state, spec, now_us), spec, now_us)
}

/// As [`reading`], of a settled state.
#[inline(always)]
pub(crate) fn settled_reading(settled: &State, spec: &Spec, now_us: u64) -> Reading {
    let available = rest(spec.burst, settled.owed_micros);
    if settled.owed_micros == 0 {
        return Reading { available, reset_us: Some(0) };
    }
    let full_at_us = repaid_at_us(settled, spec, settled.owed_micros);
    Reading { available, reset_us: full_at_us.map(|at_us| at_us.saturating_sub(now_us)) }
}

/// When the bucket will be full; `None` if it is never refilled.
#[must_use]
pub fn meaningless_at_us(state: &State, spec: &Spec) -> Option<u64> {
    let settled = settle(state, spec, state.at_us);
    if settled.owed_micros == 0 {
        return Some(0);
    }
    repaid_at_us(&settled, spec, settled.owed_micros)
}

/// Moves every instant.
pub(super) fn shift(state: &mut State, by_us: i64) {
    state.at_us = state.at_us.saturating_add_signed(by_us);
    state.owing_since_us = state.owing_since_us.saturating_add_signed(by_us);
}

/// The state as it is now. The debt counts at most twice the burst, so that a lowered limit never
/// makes a wait unbounded; it is cut before the refill, or it would never shrink while nobody
/// writes. A burst lowered to less than half may so forget a part of what is owed, once something
/// is charged under it.
#[inline(always)]
fn settle(state: &State, spec: &Spec, now_us: u64) -> State {
    let at_us = now_us.max(state.at_us);
    let period_us = spec.period_us.max(1);
    let owed = state.owed_micros.min(debt_max(spec.burst));
    // A remainder that is no fraction of this period is left over from another spec.
    let carried = if state.remainder < period_us { state.remainder } else { 0 };
    let (count, elapsed_us) = (spec.count.micros(), at_us - state.at_us);
    match refilled(count, period_us, elapsed_us, carried, owed) {
        Some((refilled, remainder)) => {
            State { owed_micros: owed - refilled, remainder, at_us, ..state.clone() }
        }
        None => State { at_us, ..State::default() },
    }
}

/// What is refilled of a debt, and the remainder; `None` where that is all of it. Almost always it
/// takes 64 bits, whose division is several times faster.
#[inline(always)]
fn refilled(
    count: u64,
    period_us: u64,
    elapsed_us: u64,
    carried: u64,
    owed: u64,
) -> Option<(u64, u64)> {
    let narrow = elapsed_us.checked_mul(count).and_then(|accrued| accrued.checked_add(carried));
    let (refilled, remainder) = match narrow {
        Some(accrued) => (accrued / period_us, accrued % period_us),
        None => refilled_widely(count, period_us, elapsed_us, carried),
    };
    (refilled < owed).then_some((refilled, remainder))
}

/// The same where it takes 128 bits: what does not fit 64 then is more than anybody owes.
#[cold]
fn refilled_widely(count: u64, period_us: u64, elapsed_us: u64, carried: u64) -> (u64, u64) {
    let period = u128::from(period_us);
    let accrued = u128::from(elapsed_us) * u128::from(count) + u128::from(carried);
    (saturate(accrued / period), saturate(accrued % period))
}

/// The first microsecond at which this much of a settled debt is paid back.
#[inline(always)]
fn repaid_at_us(settled: &State, spec: &Spec, micros: u64) -> Option<u64> {
    let (count, period_us) = (spec.count.micros(), spec.period_us.max(1));
    if count == 0 {
        return None;
    }
    let wait_us = match micros.checked_mul(period_us) {
        Some(due) => due.saturating_sub(settled.remainder).div_ceil(count),
        None => long_wait_us(settled, spec, micros),
    };
    Some(settled.at_us.saturating_add(wait_us))
}

/// How long that takes, where it is more than 64 bits count.
#[cold]
fn long_wait_us(settled: &State, spec: &Spec, micros: u64) -> u64 {
    let due = u128::from(micros) * u128::from(spec.period_us.max(1));
    let missing = due.saturating_sub(u128::from(settled.remainder));
    saturate(missing.div_ceil(u128::from(spec.count.micros())))
}

/// What has been refilled since an instant, rounded up.
fn refilled_since(spec: &Spec, since_us: u64, now_us: u64) -> u64 {
    let elapsed = u128::from(now_us.saturating_sub(since_us));
    let accrued = elapsed * u128::from(spec.count.micros());
    saturate(accrued.div_ceil(u128::from(spec.period_us.max(1))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Spec as AnySpec;
    use super::super::reference::{
        Admission, Run, UNIT, amount, assert_changes_keep_what_is_owed, assert_extremes_do_no_harm,
        costs, leaky_level, spends, steps_with_changes, steps_with_refunds, windows_us,
    };
    use super::*;

    fn specs() -> impl Strategy<Value = Spec> {
        let counts = prop_oneof![(1..=8_u64).prop_map(|units| units * UNIT), 1..8 * UNIT];
        (counts, windows_us(), 1..=8 * UNIT).prop_map(|(count, period_us, burst)| Spec {
            count: amount(count),
            period_us,
            burst: amount(burst),
        })
    }

    fn per_second(count: u64, burst: u64) -> Spec {
        Spec { count: amount(count * UNIT), period_us: UNIT, burst: amount(burst * UNIT) }
    }

    fn naive(spec: &AnySpec, log: &[Admission], now_us: u64, cost: u64) -> bool {
        let AnySpec::TokenBucket(spec) = spec else { return false };
        let level = leaky_level(log, spec.count.micros(), spec.period_us, now_us);
        level + u128::from(cost) * u128::from(spec.period_us) <= full(spec)
    }

    fn full(spec: &Spec) -> u128 {
        u128::from(spec.burst.micros()) * u128::from(spec.period_us)
    }

    fn assert_promise(spec: &Spec, log: &[Admission]) {
        for end in 1..=log.len() {
            let now_us = log[end - 1].at_us;
            let level = leaky_level(&log[..end], spec.count.micros(), spec.period_us, now_us);
            assert!(level <= full(spec), "more than burst + rate x time");
        }
    }

    proptest! {
        // A refund that is a millionth too large shows in one of a thousand runs.
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn every_verdict_is_that_of_an_exact_bucket(
            spec in specs(), steps in spends(costs()), start_us in 0..1_u64 << 50,
        ) {
            let run = Run::new(AnySpec::TokenBucket(spec), start_us);
            assert_promise(&spec, &run.take(&steps, spec.period_us, Some(naive)));
        }

        #[test]
        fn refunds_never_admit_more_than_the_promise(
            spec in specs(), steps in steps_with_refunds(costs(), 0..=100_u64),
        ) {
            let run = Run::new(AnySpec::TokenBucket(spec), 77);
            assert_promise(&spec, &run.take(&steps, spec.period_us, None));
        }

        #[test]
        fn a_changed_spec_keeps_what_is_owed(
            old in specs(), new in specs(), steps in spends(costs()),
        ) {
            let run = Run::new(AnySpec::TokenBucket(old), 77);
            assert_changes_keep_what_is_owed(run, AnySpec::TokenBucket(new), &steps, old.period_us);
        }

        #[test]
        fn changes_that_cut_no_debt_hold_the_larger_promise(
            spec in specs(), count in 1..8 * UNIT, percent in 50..=200_u64,
            steps in steps_with_changes(costs()),
        ) {
            let burst = amount((spec.burst.micros() * percent).div_ceil(100));
            let other = Spec { count: amount(count), burst, ..spec };
            let mut run = Run::new(AnySpec::TokenBucket(spec), 77);
            run.other_spec = AnySpec::TokenBucket(other);
            let log = run.take(&steps, spec.period_us, None);
            let (count, burst) = (spec.count.max(other.count), spec.burst.max(burst));
            assert_promise(&Spec { count, burst, ..spec }, &log);
        }

        #[test]
        fn an_immediate_refund_restores_the_level(
            spec in specs(), before in costs(), cost in costs(), wait_us in 0..UNIT,
        ) {
            let mut state = State::default();
            charge(&mut state, &spec, 5, amount(before).min(spec.burst));
            let now_us = 5 + wait_us;
            let level = reading(&state, &spec, now_us);
            let cost = amount(cost).min(spec.burst);
            charge(&mut state, &spec, now_us, cost);
            refund(&mut state, &spec, now_us, now_us, cost);
            prop_assert_eq!(reading(&state, &spec, now_us), level);
        }

        #[test]
        fn a_lowered_limit_never_waits_for_more_than_two_bursts(old in specs(), new in specs()) {
            let mut state = State::default();
            charge(&mut state, &old, 9, old.burst);
            let wait_us = reading(&state, &new, 9).reset_us.unwrap();
            let longest = (2 * full(&new)).div_ceil(u128::from(new.count.micros()));
            prop_assert!(u128::from(wait_us) <= longest);
        }
    }

    #[test]
    fn an_empty_bucket_that_is_slowed_down_stays_empty() {
        let mut state = State::default();
        charge(&mut state, &per_second(10, 20), 50, amount(20 * UNIT));
        let slow = per_second(1, 20);
        assert_eq!(reading(&state, &slow, 50).available, Amount::ZERO);
        assert_eq!(evaluate(&state, &slow, 50, Amount::ONE), denied_until(UNIT, 0));
    }

    #[test]
    fn a_late_refund_is_exact_while_the_bucket_has_not_been_full() {
        let spec = per_second(1, 10);
        let mut state = State::default();
        charge(&mut state, &spec, 0, amount(4 * UNIT));
        charge(&mut state, &spec, 0, amount(6 * UNIT));
        refund(&mut state, &spec, 3 * UNIT, 0, amount(4 * UNIT));
        assert_eq!(reading(&state, &spec, 3 * UNIT).available, amount(7 * UNIT));
    }

    #[test]
    fn a_reservation_is_settled_downwards_after_a_while() {
        let spec =
            Spec { count: amount(1_000 * UNIT), period_us: 60 * UNIT, burst: amount(1_000 * UNIT) };
        let mut state = State::default();
        charge(&mut state, &spec, 0, amount(500 * UNIT));
        charge(&mut state, &spec, 0, amount(500 * UNIT));
        refund(&mut state, &spec, 24 * UNIT, 0, amount(400 * UNIT));
        assert_eq!(reading(&state, &spec, 24 * UNIT).available, amount(800 * UNIT));
    }

    #[test]
    fn a_refund_gives_back_nothing_that_the_refill_paid_for_others() {
        let spec = per_second(1, 1);
        let mut state = State::default();
        charge(&mut state, &spec, 0, Amount::ONE);
        charge(&mut state, &spec, UNIT * 9 / 10, amount(UNIT * 9 / 10));
        refund(&mut state, &spec, UNIT * 9 / 10, 0, Amount::ONE);
        assert_eq!(state.owed_micros, UNIT * 9 / 10, "what came later is owed in full");
    }

    #[test]
    fn a_charge_paid_by_a_faster_rate_is_not_given_back_at_the_slower_one() {
        let (slow, fast) = (per_second(1, 10), per_second(10, 10));
        let mut state = State::default();
        charge(&mut state, &slow, 0, amount(10 * UNIT));
        charge(&mut state, &fast, UNIT, amount(10 * UNIT));
        refund(&mut state, &slow, UNIT, 0, amount(10 * UNIT));
        assert_eq!(state.owed_micros, 10 * UNIT);
    }

    #[test]
    fn a_refund_is_void_once_the_bucket_was_full() {
        let spec = per_second(1, 2);
        let mut state = State::default();
        charge(&mut state, &spec, 0, Amount::ONE);
        charge(&mut state, &spec, UNIT, amount(2 * UNIT));
        refund(&mut state, &spec, UNIT, 0, Amount::ONE);
        assert_eq!(state.owed_micros, 2 * UNIT);
    }

    #[test]
    fn a_surcharge_goes_into_debt_of_one_further_burst_and_is_void_when_paid_back() {
        let spec = per_second(1, 5);
        let mut state = State::default();
        charge(&mut state, &spec, 0, Amount::ONE);
        surcharge(&mut state, &spec, 0, 0, Amount::MAX);
        assert_eq!(state.owed_micros, 10 * UNIT);
        assert_eq!(evaluate(&state, &spec, 0, Amount::ZERO), denied_until(5 * UNIT, 0));
        surcharge(&mut state, &spec, 5 * UNIT, 0, Amount::ONE);
        assert_eq!(reading(&state, &spec, 5 * UNIT).reset_us, Some(5 * UNIT), "void by now");
    }

    #[test]
    fn extremes_do_no_harm() {
        for (count, period_us, burst) in [
            (Amount::MAX, 1, Amount::MAX),
            (amount(1), u64::MAX, Amount::MAX),
            (Amount::ZERO, 0, Amount::ZERO),
        ] {
            assert_extremes_do_no_harm(AnySpec::TokenBucket(Spec { count, period_us, burst }));
        }
    }
}
