//! What a slot says of a key, in two words beside the key itself.
//!
//! The usual states fit: an instant of 52 bits (that lasts until 2112), the number of the spec, and
//! what is owed. A bucket's remainder shares a word with its debt, counted as coarsely as its spec
//! allows. Whatever does not fit is kept in full elsewhere in the segment, and the slot says where.
//!
//! A calendar window writes down when it ends, since the edges in its spec are others each time; the
//! windows of a sliding counter are aligned, so that its last charge tells which it was.
//!
//! Of an exact window, or of places, that are kept elsewhere, the slot still says until when nothing is left,
//! so that whoever is refused by them holds nothing.
//!
//! A packed bucket does not know since when it has owed something, nor its low-water mark: refunds ask
//! for these, so that keys whose charges are meant to be given back are kept in full.

use super::body::{self, pack_counters, pack_quota};
use super::record::Record;
use super::segment::KEYS_MAX;
use super::specs::{Known, Specs};
use crate::algorithm::{
    self, Ledger, Spec, State, fixed_window, quota, sliding_counter, token_bucket, total,
};

const BOXED: u64 = 1;
const BUCKET: u64 = 2;
const WINDOW: u64 = 3;
const TOTAL: u64 = 4;
/// Somebody is just writing it.
const LOCKED: u64 = 5;
const QUOTA: u64 = 6;
const COUNTER: u64 = 7;

const KIND_MASK: u64 = 0b111;
/// Set where the key has changed and nobody has been told.
const CHANGED: u64 = 0b1000;
const SPEC_SHIFT: u32 = 4;
const OF_SPEC: u64 = 0xff << SPEC_SHIFT;
const AT_SHIFT: u32 = 12;
const AT_MAX: u64 = u64::MAX >> AT_SHIFT;
/// How many bits say where a record is kept in its segment,
const PLACE_BITS: u32 = 16;
/// and so many how long before its end it is full no more.
const FULL_MAX: u64 = u64::MAX >> PLACE_BITS;
const _: () = assert!(KEYS_MAX < 1 << PLACE_BITS);

/// Two words of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words {
    /// An instant, the number of a spec, a flag, and what kind of slot it is.
    pub(super) head: u64,
    /// What is owed, or where it is written and until when it is full.
    pub(super) body: u64,
}

impl Words {
    /// Of a slot without a key.
    pub(super) const EMPTY: Self = Self { head: 0, body: 0 };

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.head & KIND_MASK == 0
    }

    /// As it is while somebody charges it.
    #[inline]
    pub(super) const fn locked(self) -> Self {
        Self { head: self.head & !KIND_MASK | LOCKED, ..self }
    }

    #[inline]
    pub(super) const fn is_locked(self) -> bool {
        self.head & KIND_MASK == LOCKED
    }

    /// A state that fits, under a spec whose number this is; `None` where it does not. It was last
    /// charged at its own instant.
    pub(super) fn pack(
        state: &State,
        spec: &Spec,
        number: u8,
        known: &Known,
        charged_us: u64,
    ) -> Option<Self> {
        let (kind, body) = match (state, spec) {
            (State::TokenBucket(state), _) if state.at_us == charged_us => {
                return Self::pack_bucket(state, number, known);
            }
            (State::FixedWindow(state), _) if state.at_us == charged_us => {
                return Self::pack_window(state, number);
            }
            (State::Total(state), _) => (TOTAL, state.used_micros),
            (State::Quota(state), Spec::Quota(spec)) if state.at_us == charged_us => {
                (QUOTA, pack_quota(state.used_micros, quota::window_end_us(state, spec))?)
            }
            (State::SlidingCounter(state), Spec::SlidingCounter(spec))
                if *state == aligned(spec, charged_us, state) =>
            {
                (COUNTER, pack_counters(state.current_micros, state.previous_micros)?)
            }
            _ => return None,
        };
        (charged_us <= AT_MAX).then_some(Self { head: head(charged_us, number, kind), body })
    }

    /// A bucket that fits; `None` where it does not. It was last charged at its own instant.
    pub(super) fn pack_bucket(
        state: &token_bucket::State,
        number: u8,
        known: &Known,
    ) -> Option<Self> {
        let remainder = state.remainder / known.remainder_unit;
        let bits = known.rate.remainder_bits;
        let fits = remainder * known.remainder_unit == state.remainder
            && state.at_us <= AT_MAX
            && state.owed_micros <= known.rate.owed_max
            && remainder < known.rate.spec.period_us;
        let full = Self::full_bucket(number, 0);
        fits.then(|| full.owing(state.at_us, state.owed_micros, remainder, bits))
    }

    /// A bucket that owes nothing.
    #[inline(always)]
    pub(super) const fn full_bucket(number: u8, at_us: u64) -> Self {
        Self { head: head(at_us, number, BUCKET), body: 0 }
    }

    /// A window that fits; `None` where it does not. It was last charged at its own instant.
    #[inline]
    pub(super) fn pack_window(state: &fixed_window::State, number: u8) -> Option<Self> {
        let head = head(state.at_us, number, WINDOW);
        (state.at_us <= AT_MAX).then_some(Self { head, body: state.used_micros })
    }

    /// A record that fits: one that is never to be given back, with one account.
    pub(super) fn pack_record(record: &Record, specs: &Specs) -> Option<Self> {
        let (spec, state) = record.ledger.only().filter(|_| record.is_loose())?;
        let number = specs.number_of(spec)?;
        Self::pack(state, spec, number, specs.get(number)?, record.charged_us)
    }

    /// Says of a record when it will mean nothing any more, and until when it is full, if it is. Where it is
    /// kept is said [later](Self::at_place).
    pub(super) fn boxed(record: &Record, specs: &Specs) -> Self {
        let end_us = record.end_us();
        let boxed = Self { head: end_us.min(AT_MAX) << AT_SHIFT | BOXED, body: 0 };
        let full = || {
            let (spec, until_us) = record.ledger.full_until_us().filter(|_| end_us < AT_MAX)?;
            let before_end_us = end_us.checked_sub(until_us).filter(|us| *us < FULL_MAX)?;
            let number = specs.any_number_of(spec)?;
            let head = boxed.head | u64::from(number) << SPEC_SHIFT;
            Some(Self { head, body: (before_end_us + 1) << PLACE_BITS })
        };
        full().unwrap_or(boxed)
    }

    /// The same of a record that is kept there: a segment has fewer than there are places.
    pub(super) fn at_place(self, place: usize) -> Self {
        debug_assert!(place < 1 << PLACE_BITS, "there are as many places as keys");
        let place = place as u64 & !(u64::MAX << PLACE_BITS);
        Self { body: self.body & u64::MAX << PLACE_BITS | place, ..self }
    }

    /// Where the record is kept; `None` where the slot holds all there is.
    pub(super) fn place(self) -> Option<usize> {
        let place = self.body & !(u64::MAX << PLACE_BITS);
        if self.head & KIND_MASK == BOXED { usize::try_from(place).ok() } else { None }
    }

    /// Until when a record that is kept elsewhere is full, and from when on it means nothing; `None` where
    /// the slot does not tell.
    pub(super) fn full_until_us(self) -> Option<(u64, u64)> {
        let before_end_us = (self.body >> PLACE_BITS).checked_sub(1)?;
        let end_us = self.at_us();
        (self.head & KIND_MASK == BOXED).then(|| (end_us.saturating_sub(before_end_us), end_us))
    }

    /// The number of the spec.
    pub(super) fn number(self) -> u8 {
        (self.head >> SPEC_SHIFT).to_le_bytes()[0]
    }

    /// When it was last charged; of a record that is kept elsewhere, when it ends.
    pub(super) fn at_us(self) -> u64 {
        self.head >> AT_SHIFT
    }

    /// Whether it is a bucket that fits the slot.
    #[inline(always)]
    pub(super) const fn is_bucket(self) -> bool {
        self.head & KIND_MASK == BUCKET
    }

    /// Whether it is one under the spec of a number.
    #[inline(always)]
    pub(super) const fn is_bucket_of(self, number: u8) -> bool {
        self.head & (OF_SPEC | KIND_MASK) == head(0, number, BUCKET)
    }

    /// Whether an instant fits a slot.
    #[inline(always)]
    pub(super) const fn fits(at_us: u64) -> bool {
        at_us <= AT_MAX
    }

    /// What a bucket owes, and its remainder, which takes so many bits.
    #[inline(always)]
    pub(super) const fn debt(self, remainder_bits: u32) -> (u64, u64) {
        let owed = self.body.wrapping_shr(remainder_bits);
        (owed, self.body ^ owed.wrapping_shl(remainder_bits))
    }

    /// The same bucket when it owes something else, without the mark of a change.
    #[inline(always)]
    pub(super) const fn owing(self, at_us: u64, owed: u64, remainder: u64, bits: u32) -> Self {
        let head = at_us << AT_SHIFT | self.head & (OF_SPEC | KIND_MASK);
        Self { head, body: owed.wrapping_shl(bits) | remainder }
    }

    /// A bucket that fits the slot, which has owed what it owes since it was last charged.
    pub(super) fn bucket(self, known: &Known) -> Option<token_bucket::State> {
        let ((owed_micros, remainder), at_us) =
            (self.debt(known.rate.remainder_bits), self.at_us());
        let remainder = remainder.wrapping_mul(known.remainder_unit);
        self.is_bucket().then_some(token_bucket::State {
            owed_micros,
            remainder,
            at_us,
            owing_since_us: at_us,
            low_micros: u64::MAX,
        })
    }

    /// A window that fits the slot.
    #[inline]
    pub(super) fn window(self) -> Option<fixed_window::State> {
        let (at_us, used_micros) = (self.at_us(), self.body);
        let is_window = self.head & KIND_MASK == WINDOW;
        is_window.then_some(fixed_window::State { at_us, used_micros })
    }

    /// The state; `None` where it is kept elsewhere.
    pub(super) fn state(self, known: &Known) -> Option<State> {
        match self.head & KIND_MASK {
            BUCKET => self.bucket(known).map(State::TokenBucket),
            WINDOW => self.window().map(State::FixedWindow),
            TOTAL => Some(State::Total(total::State { used_micros: self.body })),
            QUOTA => {
                let used_micros = body::quota_used_micros(self.body);
                Some(State::Quota(quota::State { at_us: self.at_us(), used_micros }))
            }
            COUNTER => {
                let Spec::SlidingCounter(spec) = &known.spec else { return None };
                let (current_micros, previous_micros) = body::counters_micros(self.body);
                let counters = sliding_counter::State {
                    current_micros,
                    previous_micros,
                    ..sliding_counter::State::default()
                };
                Some(State::SlidingCounter(aligned(spec, self.at_us(), &counters)))
            }
            _ => None,
        }
    }

    /// The spec that it was charged with. Of a calendar, the edges behind the last charge are known to
    /// begin with it, which is all that anybody asks of them.
    fn spec(self, known: &Known) -> Spec {
        match known.spec {
            Spec::Quota(spec) => {
                Spec::Quota(spec.around(self.at_us(), body::quota_end_us(self.body)))
            }
            spec => spec,
        }
    }

    /// All that is known of the key; `None` where it is kept elsewhere.
    pub(super) fn record(self, specs: &Specs) -> Option<Record> {
        let known = specs.get(self.number())?;
        let ledger = Ledger::of(self.spec(known), self.state(known)?);
        Some(Record::loose(ledger, self.at_us()))
    }

    /// From when on it means nothing; the last instant where that never comes by itself.
    pub(super) fn end_us(self, specs: &Specs) -> u64 {
        if self.place().is_some() {
            let end_us = self.at_us();
            return if end_us == AT_MAX { u64::MAX } else { end_us };
        }
        let Some(known) = specs.get(self.number()) else { return 0 };
        let end_us = match (self.bucket(known), &known.spec) {
            (Some(state), Spec::TokenBucket(spec)) => token_bucket::meaningless_at_us(&state, spec),
            _ => {
                let state = self.state(known);
                state.and_then(|state| algorithm::meaningless_at_us(&state, &self.spec(known)))
            }
        };
        end_us.unwrap_or(u64::MAX)
    }

    /// How much of its limit is used; `None` where that is kept elsewhere.
    pub(super) fn fullness(self, specs: &Specs, now_us: u64) -> Option<u8> {
        let known = specs.get(self.number())?;
        match &known.spec {
            Spec::TokenBucket(_) => Some(0),
            _ => Some(algorithm::fullness(&self.state(known)?, &self.spec(known), now_us)),
        }
    }

    pub(super) fn is_changed(self) -> bool {
        self.head & CHANGED != 0
    }

    pub(super) fn marked(self, changed: bool) -> Self {
        let head = if changed { self.head | CHANGED } else { self.head & !CHANGED };
        Self { head, ..self }
    }
}

/// Counters whose windows are those that the last charge was in, and the one before it.
fn aligned(
    spec: &sliding_counter::Spec,
    charged_us: u64,
    counters: &sliding_counter::State,
) -> sliding_counter::State {
    let window_us = spec.window_us.max(1);
    let start_us = charged_us - charged_us % window_us;
    sliding_counter::State { start_us, window_us, ..counters.clone() }
}

const fn head(at_us: u64, number: u8, kind: u64) -> u64 {
    at_us << AT_SHIFT | (number as u64) << SPEC_SHIFT | kind
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{concurrency, sliding_window};
    use crate::units::Amount;

    proptest! {
        #[test]
        fn a_bucket_that_fits_is_read_as_it_was_written(
            count in 0..1_u64 << 45, period_us in 1..1_u64 << 45, burst in 0..1_u64 << 45,
            costs in prop::collection::vec((0..1_u64 << 40, 0..1_u64 << 30), 1..9),
        ) {
            let amount = |micros| Amount::from_micros(micros).unwrap_or(Amount::MAX);
            let spec = token_bucket::Spec {
                count: amount(count), period_us, burst: amount(burst),
            };
            let specs = Specs::default();
            let Some(number) = specs.number_of(&Spec::TokenBucket(spec)) else { return Ok(()) };
            let known = specs.get(number).unwrap();
            let (mut state, mut now_us) = (token_bucket::State::default(), 1 << 50);
            for (cost, later_us) in costs {
                now_us += later_us;
                token_bucket::charge(&mut state, &spec, now_us, amount(cost + 1));
                let any = State::TokenBucket(state.clone());
                let Some(words) = Words::pack(&any, &Spec::TokenBucket(spec), number, known, now_us) else {
                    let widest = 64 - state.owed_micros.leading_zeros() + known.rate.remainder_bits;
                    prop_assert!(widest > 64, "it would have fitted");
                    continue;
                };
                let read = words.bucket(known).unwrap();
                prop_assert_eq!(
                    (read.owed_micros, read.remainder, read.at_us),
                    (state.owed_micros, state.remainder, state.at_us)
                );
                let end_us = token_bucket::meaningless_at_us(&state, &spec);
                prop_assert_eq!(words.end_us(&specs), end_us.unwrap_or(u64::MAX));
                prop_assert!(!words.is_changed() && words.marked(true).is_changed());
                prop_assert_eq!(words.marked(true).bucket(known), words.bucket(known));
            }
        }
    }

    #[test]
    fn what_is_kept_elsewhere_says_where_and_until_when() {
        let (specs, limit) = (Specs::default(), Amount::from_units(2).unwrap());
        let window = Spec::SlidingWindow(sliding_window::Spec { limit, window_us: 100 });
        let mut ledger = Ledger::new(&window).unwrap();
        let mut boxed = |now_us| {
            ledger.charge(&window, now_us, 0, Amount::ONE);
            let words = Words::boxed(&Record::loose(ledger.clone(), now_us), &specs).at_place(7);
            assert_eq!(words.place(), Some(7));
            (words.end_us(&specs), words.full_until_us())
        };
        assert_eq!(boxed(10), (110, None));
        assert_eq!(boxed(30), (130, Some((110, 130))));
        assert_eq!(boxed(40), (140, None), "it owes more than it may");
        let places = Spec::Concurrency(concurrency::Spec { places: limit, lease_us: 100 });
        let mut ledger = Ledger::new(&places).unwrap();
        let mut held = |now_us, holder, cost: u64| {
            ledger.charge(&places, now_us, holder, Amount::from_micros(cost).unwrap());
            Words::boxed(&Record::loose(ledger.clone(), now_us), &specs).full_until_us()
        };
        assert_eq!(held(10, 1, 1_000_000), None);
        assert_eq!(held(30, 2, 1_000_000), Some((110, 130)));
        assert_eq!(held(40, 3, 500_000), None, "more than there are");
        assert_eq!(held(110, 4, 500_000), Some((130, 210)), "the first has lost its place");
        assert_eq!(held(130, 5, 1_000_000), None, "one place is free when two holders are gone");
        let total = Spec::Total(total::Spec { limit });
        let mut ledger = Ledger::new(&total).unwrap();
        ledger.charge(&total, 1, 0, limit);
        let words = Words::boxed(&Record::loose(ledger, 1), &specs);
        assert_eq!((words.end_us(&specs), words.full_until_us()), (u64::MAX, None));
    }
}
