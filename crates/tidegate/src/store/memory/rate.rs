//! A bucket as it is packed in a slot, charged without being unpacked.
//!
//! The usual case of [`token_bucket`], in which everything fits 64 bits and the spec is the one that it
//! was charged with: fewer steps, and the same answers, which a property tells.

use std::num::NonZeroU64;

use super::slot::Words;
use crate::algorithm::{Spec, Verdict, debt_max, token_bucket};
use crate::units::Amount;

/// What buckets of a spec have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// The spec, whose count and period have no common measure: its remainders are packed as they are.
    pub(super) spec: token_bucket::Spec,
    /// How many bits the largest of them takes.
    pub(super) remainder_bits: u32,
    /// The largest debt that fits a word beside it.
    pub(super) owed_max: u64,
    /// The largest that counts.
    debt_max: u64,
    /// The largest that fits a word and may be run into.
    allowed_max: u64,
    /// The period of the spec, by which it is divided without a look whether it is zero.
    period: NonZeroU64,
}

/// What became of a bucket.
pub(super) struct Taken {
    pub(super) verdict: Verdict,
    /// What its slot says from now on, if that is something else.
    pub(super) words: Option<Words>,
    /// What it owes now.
    pub(super) state: token_bucket::State,
}

impl Rate {
    /// Of buckets of a spec; of anything else, no rate at all.
    pub(super) fn of(spec: &Spec) -> Self {
        let spec = match spec {
            Spec::TokenBucket(spec) => reduced(spec),
            _ => token_bucket::Spec { count: Amount::ZERO, period_us: 1, burst: Amount::ZERO },
        };
        let remainder_bits = u64::BITS - (spec.period_us - 1).leading_zeros();
        let owed_max = u64::MAX.checked_shr(remainder_bits).unwrap_or(0);
        let allowed_max = owed_max.min(spec.burst.micros());
        let period = NonZeroU64::new(spec.period_us).unwrap_or(NonZeroU64::MIN);
        Self { debt_max: debt_max(spec.burst), spec, remainder_bits, owed_max, allowed_max, period }
    }

    /// How much a bucket of this spec may owe for a cost to fit; `None` where it never does.
    pub(super) fn room_for(&self, cost: Amount) -> Option<u64> {
        self.allowed_max.checked_sub(cost.micros())
    }

    /// What a bucket of this spec says once a cost is charged that is not zero and has so much
    /// [room](Self::room_for); `None` where that does not fit, or takes more than this to tell.
    #[inline(always)]
    pub(super) fn charged(
        &self,
        words: Words,
        now_us: u64,
        cost: Amount,
        room: u64,
    ) -> Option<Words> {
        let Settled { at_us, owed, remainder } = self.settle(words, now_us)?;
        debug_assert!(!cost.is_zero(), "which leaves it as it is");
        let owed = (owed <= room).then(|| owed + cost.micros())?;
        self.owing(words, at_us, owed, remainder)
    }

    /// Charges a bucket of this spec, if the cost fits; `None` where it takes more than this to tell.
    #[inline(always)]
    pub(super) fn take(&self, words: Words, now_us: u64, cost: Amount) -> Option<Taken> {
        let Settled { at_us, owed, remainder } = self.settle(words, now_us)?;
        let state = |owed_micros| token_bucket::State {
            owed_micros,
            remainder,
            at_us,
            owing_since_us: at_us,
            low_micros: u64::MAX,
        };
        let owed_then = owed.checked_add(cost.micros())?;
        if owed_then > self.allowed_max || cost.is_zero() {
            return self.leave(state(owed), owed_then, now_us, cost);
        }
        let words = Some(self.owing(words, at_us, owed_then, remainder)?);
        Some(Taken { verdict: Verdict::Allowed, words, state: state(owed_then) })
    }

    /// A bucket that owes something else; `None` where the instant does not fit.
    #[inline(always)]
    fn owing(&self, words: Words, at_us: u64, owed: u64, remainder: u64) -> Option<Words> {
        let owing = || words.owing(at_us, owed, remainder, self.remainder_bits);
        Words::fits(at_us).then(owing)
    }

    /// What a bucket owes now; `None` where it takes more than this to tell.
    #[inline(always)]
    fn settle(&self, words: Words, now_us: u64) -> Option<Settled> {
        let at_us = words.at_us().max(now_us);
        let (owed, carried) = words.debt(self.remainder_bits);
        let passed_us = at_us - words.at_us();
        let accrued = passed_us.checked_mul(self.spec.count.micros())?.checked_add(carried)?;
        if owed > self.debt_max {
            return None;
        }
        let (refilled, remainder) = (accrued / self.period, accrued % self.period);
        let is_paid = refilled >= owed;
        let owed = if is_paid { 0 } else { owed - refilled };
        let remainder = if is_paid { 0 } else { remainder };
        Some(Settled { at_us, owed, remainder })
    }

    /// Leaves a bucket as it is, that nothing is to be taken of, or not as much as is asked for; `None`
    /// where what it would owe does not fit a word.
    fn leave(
        &self,
        state: token_bucket::State,
        owed_then: u64,
        now_us: u64,
        cost: Amount,
    ) -> Option<Taken> {
        let is_refused = owed_then > self.spec.burst.micros();
        let verdict = match (is_refused, cost.is_zero()) {
            (true, _) => token_bucket::refused(&state, &self.spec, now_us, cost),
            (false, true) => Verdict::Allowed,
            (false, false) => return None,
        };
        Some(Taken { verdict, words: None, state })
    }
}

/// What a bucket owes at an instant.
struct Settled {
    at_us: u64,
    owed: u64,
    remainder: u64,
}

/// What is refilled in a microsecond and what a period is have a common measure, and no remainder is
/// finer: 1,000 a day leave 432 different remainders, not 86,400,000,000.
fn reduced(spec: &token_bucket::Spec) -> token_bucket::Spec {
    let period_us = spec.period_us.max(1);
    let (mut unit, mut rest) = (period_us, spec.count.micros());
    while rest != 0 {
        (unit, rest) = (rest, unit % rest);
    }
    let count = Amount::from_micros(spec.count.micros() / unit).unwrap_or(spec.count);
    token_bucket::Spec { count, period_us: period_us / unit, burst: spec.burst }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::specs::Specs;
    use super::*;
    use crate::algorithm::State;

    /// Of every size up to this, small ones as often as large ones.
    fn up_to(bits: u32) -> impl Strategy<Value = u64> + Clone {
        (1..=bits, any::<u64>()).prop_map(|(bits, number)| number >> (u64::BITS - bits))
    }

    type Life = (u64, u64, u64, u64, Vec<(u64, u64, u8)>);

    /// A count, a period, a burst, what is owed at first, and what is asked for, how much later. Half of
    /// them are so small that debts are often paid to the millionth.
    fn lives() -> impl Strategy<Value = Life> {
        prop_oneof![Just([4; 4]), Just([45, 45, 40, 30])].prop_flat_map(|bits| {
            let [numbers, owed, cost, later_us] = bits.map(up_to);
            let asked = prop::collection::vec((cost, later_us, 0..8_u8), 1..20);
            (numbers.clone(), numbers.clone(), numbers, owed, asked)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn to_take_is_to_ask_and_to_charge(life in lives(), common in 1..5_000_u64) {
            let (count, period_us, burst, owed_micros, asked) = life;
            let common = if period_us < 16 { 1 } else { common };
            let amount = |micros| Amount::from_micros(micros).unwrap_or(Amount::MAX);
            let count = amount(count / common * common);
            let period_us = (period_us + 1).div_ceil(common) * common;
            let spec = token_bucket::Spec { count, period_us, burst: amount(burst) };
            let specs = Specs::default();
            let Some(number) = specs.number_of(&Spec::TokenBucket(spec)) else { return Ok(()) };
            let known = specs.get(number).unwrap();
            // Some live at the end of the time that fits.
            let mut now_us = if common % 4 == 0 { (1 << 52) - 1 } else { 1 << 50 };
            let mut state =
                token_bucket::State { owed_micros, at_us: now_us, ..Default::default() };
            for (cost, later_us, turn) in asked {
                let cost = amount(cost);
                match turn {
                    // A clock that lags behind, and a debt that nobody asked for.
                    0 => now_us -= later_us,
                    1 => token_bucket::debit(&mut state, &spec, now_us, cost),
                    _ => now_us += later_us,
                }
                let pack = |state: &token_bucket::State| Words::pack_bucket(state, number, known);
                let Some(words) = pack(&state) else { return Ok(()) };
                let verdict = token_bucket::evaluate(&state, &spec, now_us, cost);
                if verdict == Verdict::Allowed {
                    token_bucket::charge(&mut state, &spec, now_us, cost);
                }
                let taken = known.rate.take(words, now_us, cost);
                if !cost.is_zero() {
                    let room = known.rate.room_for(cost);
                    let charged =
                        room.and_then(|room| known.rate.charged(words, now_us, cost, room));
                    prop_assert_eq!(charged, taken.as_ref().and_then(|taken| taken.words));
                }
                let Some(taken) = taken else { continue };
                prop_assert_eq!(taken.verdict, verdict);
                prop_assert_eq!(Some(taken.words.unwrap_or(words)), pack(&state));
                prop_assert_eq!(
                    token_bucket::reading_taken(&taken.state, &known.rate.spec, now_us),
                    token_bucket::reading(&state, &spec, now_us)
                );
            }
        }
    }

    #[test]
    fn the_usual_bucket_takes_no_more() {
        let amount = |units| Amount::from_units(units).unwrap();
        let spec = Spec::TokenBucket(token_bucket::Spec {
            count: amount(10),
            period_us: 60_000_000,
            burst: amount(20),
        });
        let (specs, mut words, mut now_us) = (Specs::default(), None, 1 << 50);
        let known = specs.get(specs.number_of(&spec).unwrap()).unwrap();
        let fresh = State::TokenBucket(token_bucket::State { at_us: now_us, ..Default::default() });
        for allowed in (0..40).map(|turn| turn < 20) {
            now_us += 1;
            let before = words.or_else(|| Words::pack(&fresh, &spec, 0, known, now_us - 1));
            let taken = known.rate.take(before.unwrap(), now_us, Amount::ONE).unwrap();
            assert_eq!(taken.verdict == Verdict::Allowed, allowed);
            words = taken.words.or(words);
        }
    }
}
