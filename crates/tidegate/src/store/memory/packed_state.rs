//! The state of a key as its slot stores it: two words, a header and a payload.
//!
//! ```text
//! header   63 ─────────────── 12 │ 11 ──── 4 │   3   │ 2 ── 0
//!          last charge, µs       │ spec no.  │ dirty │ kind
//! ```
//!
//! The usual states fit. The instant has 52 bits, which last until the year 2112. The payload holds what is owed;
//! how, depends on the kind. A record that does not fit stands in the overflow of its segment. Then the instant is
//! the record's expiry, and the payload holds the index in the overflow. Where an exact window or all places of a
//! concurrency limit are used up, the payload also says until when, so that a refusal reads nothing else.
//!
//! A packed bucket does not know since when it owes something, nor its low-water mark. Refunds need both, so that
//! keys whose charges may be given back stand in the overflow.

use super::record::Record;
use super::segment::KEYS_MAX;
use super::spec_registry::{RegisteredSpec, SpecRegistry, fits_slot};
use crate::algorithm::{self, Ledger, Spec, State, fixed_window, quota, sliding_counter, total};
use crate::units::{Amount, SECOND_US};

const OVERFLOW: u64 = 1;
const BUCKET: u64 = 2;
const WINDOW: u64 = 3;
const TOTAL: u64 = 4;
/// A charge is writing to the slot.
const LOCKED: u64 = 5;
const QUOTA: u64 = 6;
const COUNTER: u64 = 7;

const KIND_MASK: u64 = 0b111;
/// Set where the journal has not seen the last change yet.
const DIRTY: u64 = 0b1000;
const SPEC_SHIFT: u32 = 4;
const SPEC_MASK: u64 = 0xff << SPEC_SHIFT;
const AT_SHIFT: u32 = 12;
const AT_MAX: u64 = u64::MAX >> AT_SHIFT;
/// How many bits of the payload are the index in the overflow. The others say how long before the record's expiry
/// its limit is used up no more.
const INDEX_BITS: u32 = 16;
const INDEX_MASK: u64 = !(u64::MAX << INDEX_BITS);
const FULL_MAX: u64 = u64::MAX >> INDEX_BITS;
const _: () = assert!(KEYS_MAX < 1 << INDEX_BITS);

/// The two words of a slot beside its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedState {
    pub(super) header: u64,
    pub(super) payload: u64,
}

impl PackedState {
    /// A slot without a key.
    pub(super) const EMPTY: Self = Self { header: 0, payload: 0 };

    #[inline]
    pub(super) const fn is_empty(self) -> bool {
        self.header & KIND_MASK == 0
    }

    #[inline]
    pub(super) const fn locked(self) -> Self {
        Self { header: self.header & !KIND_MASK | LOCKED, ..self }
    }

    #[inline]
    pub(super) const fn is_locked(self) -> bool {
        self.header & KIND_MASK == LOCKED
    }

    /// A bucket that owes nothing.
    #[inline(always)]
    pub(super) const fn full_bucket(number: u8, at_us: u64) -> Self {
        Self { header: header(at_us, number, BUCKET), payload: 0 }
    }

    #[inline(always)]
    pub(super) const fn is_bucket(self) -> bool {
        self.header & KIND_MASK == BUCKET
    }

    /// The same spec and kind after a charge, not dirty; `None` if the instant does not fit.
    #[inline(always)]
    pub(super) fn charged(self, at_us: u64, payload: u64) -> Option<Self> {
        let header = at_us << AT_SHIFT | self.header & (SPEC_MASK | KIND_MASK);
        (at_us <= AT_MAX).then_some(Self { header, payload })
    }

    /// Packs a state under a registered spec that was last charged at `charged_us`; `None` if it does not fit.
    pub(super) fn pack(
        state: &State,
        spec: &Spec,
        number: u8,
        registered: &RegisteredSpec,
        charged_us: u64,
    ) -> Option<Self> {
        // The header has room for one instant, which is the state's own too.
        let (kind, payload) = match (state, spec) {
            (State::TokenBucket(state), _) if state.at_us == charged_us => {
                (BUCKET, registered.bucket.pack_expanded(state)?)
            }
            (State::FixedWindow(state), _) if state.at_us == charged_us => {
                (WINDOW, state.used_micros)
            }
            (State::Total(state), _) => (TOTAL, state.used_micros),
            (State::Quota(state), Spec::Quota(spec)) if state.at_us == charged_us => {
                (QUOTA, pack_quota(state.used_micros, quota::window_end_us(state, spec))?)
            }
            (State::SlidingCounter(state), Spec::SlidingCounter(spec))
                if *state == align_counters(spec, charged_us, state) =>
            {
                (COUNTER, pack_counters(state.current_micros, state.previous_micros)?)
            }
            _ => return None,
        };
        let header = header(charged_us, number, kind);
        (charged_us <= AT_MAX).then_some(Self { header, payload })
    }

    /// Packs a record with one account whose charges will not be given back; `None` if it does not fit.
    pub(super) fn pack_record(record: &Record, specs: &SpecRegistry) -> Option<Self> {
        let (spec, state) = record.ledger.only().filter(|_| record.is_packable())?;
        let number = if fits_slot(spec) { specs.number_of(spec)? } else { return None };
        Self::pack(state, spec, number, specs.get(number)?, record.charged_us)
    }

    /// The slot of a record in the overflow: when the record expires, and until when its limit is used up. The
    /// index is [added later](Self::with_overflow_index).
    pub(super) fn of_overflow(record: &Record, specs: &SpecRegistry) -> Self {
        let expires_us = record.expires_us();
        let plain = Self { header: expires_us.min(AT_MAX) << AT_SHIFT | OVERFLOW, payload: 0 };
        let full = || {
            let (spec, until_us) = record.ledger.full_until_us().filter(|_| expires_us < AT_MAX)?;
            let before_us = expires_us.checked_sub(until_us).filter(|us| *us < FULL_MAX)?;
            let header = plain.header | u64::from(specs.number_of(spec)?) << SPEC_SHIFT;
            Some(Self { header, payload: (before_us + 1) << INDEX_BITS })
        };
        full().unwrap_or(plain)
    }

    pub(super) fn with_overflow_index(self, index: usize) -> Self {
        debug_assert!(index < 1 << INDEX_BITS, "a segment has fewer keys than indices");
        Self { payload: self.payload & !INDEX_MASK | index as u64 & INDEX_MASK, ..self }
    }

    /// True if the slot holds a state whose times are of the wall clock.
    pub(super) const fn uses_wall_clock(self) -> bool {
        matches!(self.header & KIND_MASK, WINDOW | QUOTA)
    }

    /// The index in the overflow; `None` if the slot holds the whole state.
    pub(super) fn overflow_index(self) -> Option<usize> {
        let is_overflow = self.header & KIND_MASK == OVERFLOW;
        if is_overflow { usize::try_from(self.payload & INDEX_MASK).ok() } else { None }
    }

    /// Until when the limit of a record in the overflow is used up, and when the record expires; `None` if the slot
    /// does not tell.
    pub(super) fn full_until_us(self) -> Option<(u64, u64)> {
        let before_us = (self.payload >> INDEX_BITS).checked_sub(1)?;
        let expires_us = self.at_us();
        self.overflow_index().map(|_| (expires_us.saturating_sub(before_us), expires_us))
    }

    /// The number of the spec.
    pub(super) const fn spec_number(self) -> u8 {
        (self.header >> SPEC_SHIFT).to_le_bytes()[0]
    }

    /// The last charge; the expiry of a record in the overflow.
    pub(super) const fn at_us(self) -> u64 {
        self.header >> AT_SHIFT
    }

    /// Unpacks the state; `None` if the record stands in the overflow.
    pub(super) fn state(self, registered: &RegisteredSpec) -> Option<State> {
        let (at_us, payload) = (self.at_us(), self.payload);
        Some(match self.header & KIND_MASK {
            BUCKET => State::TokenBucket(registered.bucket.unpack_expanded(payload, at_us)),
            WINDOW => State::FixedWindow(fixed_window::State { at_us, used_micros: payload }),
            TOTAL => State::Total(total::State { used_micros: payload }),
            QUOTA => {
                State::Quota(quota::State { at_us, used_micros: unpack_quota_micros(payload) })
            }
            COUNTER => {
                let Spec::SlidingCounter(spec) = &registered.spec else { return None };
                let (current_micros, previous_micros) = unpack_counters_micros(payload);
                let counters = sliding_counter::State {
                    current_micros,
                    previous_micros,
                    ..Default::default()
                };
                State::SlidingCounter(align_counters(spec, at_us, &counters))
            }
            _ => return None,
        })
    }

    /// The spec of the last charge. Of a quota's window, only the end and an instant in it are known, which is
    /// enough for every use of a spec that has been charged.
    fn spec(self, registered: &RegisteredSpec) -> Spec {
        match registered.spec {
            Spec::Quota(spec) => {
                Spec::Quota(spec.around(self.at_us(), unpack_quota_end_us(self.payload)))
            }
            spec => spec,
        }
    }

    /// Unpacks the record; `None` if it stands in the overflow.
    pub(super) fn record(self, specs: &SpecRegistry) -> Option<Record> {
        let registered = specs.get(self.spec_number())?;
        let ledger = Ledger::of(self.spec(registered), self.state(registered)?);
        Some(Record { ledger, created_us: 0, charged_us: self.at_us() })
    }

    /// From when on the state equals a new one; the last instant if that never comes by itself.
    pub(super) fn expires_us(self, specs: &SpecRegistry) -> u64 {
        if self.overflow_index().is_some() {
            let expires_us = self.at_us();
            return if expires_us == AT_MAX { u64::MAX } else { expires_us };
        }
        let Some(registered) = specs.get(self.spec_number()) else { return 0 };
        let state = self.state(registered);
        state
            .and_then(|state| algorithm::meaningless_at_us(&state, &self.spec(registered)))
            .unwrap_or(u64::MAX)
    }

    /// How much of its limit is used, of 255; `None` if the record stands in the overflow.
    pub(super) fn fullness(self, specs: &SpecRegistry, now_us: u64) -> Option<u8> {
        let registered = specs.get(self.spec_number())?;
        let state = self.state(registered)?;
        Some(algorithm::fullness(&state, &self.spec(registered), now_us))
    }

    pub(super) const fn is_dirty(self) -> bool {
        self.header & DIRTY != 0
    }

    pub(super) const fn with_dirty(self, is_dirty: bool) -> Self {
        let header = if is_dirty { self.header | DIRTY } else { self.header & !DIRTY };
        Self { header, ..self }
    }
}

const fn header(at_us: u64, number: u8, kind: u64) -> u64 {
    at_us << AT_SHIFT | (number as u64) << SPEC_SHIFT | kind
}

/// Counters of the window that the last charge lies in, and of the one before. Windows are aligned, so that the
/// instant alone names both.
fn align_counters(
    spec: &sliding_counter::Spec,
    charged_us: u64,
    counters: &sliding_counter::State,
) -> sliding_counter::State {
    let window_us = spec.window_us.max(1);
    let start_us = charged_us - charged_us % window_us;
    sliding_counter::State { start_us, window_us, ..counters.clone() }
}

/// Calendar windows end on quarters of an hour in every time zone of today.
const QUARTER_US: u64 = 15 * 60 * SECOND_US;
/// Enough quarters until the year 2448.
const QUARTERS_BITS: u32 = 24;
const USED_BITS: u32 = u64::BITS - QUARTERS_BITS;
const USED_MAX: u64 = (1 << USED_BITS) - 1;
/// Set where the quota counts whole units, not millionths.
const WHOLE: u64 = 1;
const MICROS: u64 = Amount::ONE.micros();

/// What a calendar window has used, and when it ends; `None` if that does not fit.
fn pack_quota(used_micros: u64, end_us: u64) -> Option<u64> {
    let quarters = end_us / QUARTER_US;
    let is_whole = used_micros.is_multiple_of(MICROS);
    let (used, whole) = if is_whole { (used_micros / MICROS, WHOLE) } else { (used_micros, 0) };
    let fits =
        used <= USED_MAX >> 1 && quarters < 1 << QUARTERS_BITS && end_us.is_multiple_of(QUARTER_US);
    fits.then_some(quarters << USED_BITS | used << 1 | whole)
}

fn unpack_quota_micros(payload: u64) -> u64 {
    let used = payload & USED_MAX;
    if used & WHOLE == 0 { used >> 1 } else { (used >> 1) * MICROS }
}

fn unpack_quota_end_us(payload: u64) -> u64 {
    (payload >> USED_BITS) * QUARTER_US
}

/// The counters of two windows, the current one first; `None` unless both are whole units.
fn pack_counters(current_micros: u64, previous_micros: u64) -> Option<u64> {
    let [current, previous] = [current_micros, previous_micros].map(|micros| {
        let units = micros.is_multiple_of(MICROS).then_some(micros / MICROS)?;
        u32::try_from(units).ok()
    });
    Some(u64::from(current?) << u32::BITS | u64::from(previous?))
}

fn unpack_counters_micros(payload: u64) -> (u64, u64) {
    ((payload >> u32::BITS) * MICROS, (payload & u64::from(u32::MAX)) * MICROS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{concurrency, sliding_window, token_bucket};

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
            let specs = SpecRegistry::default();
            let Some(number) = specs.number_of(&Spec::TokenBucket(spec)) else { return Ok(()) };
            let registered = specs.get(number).unwrap();
            let (mut state, mut now_us) = (token_bucket::State::default(), 1 << 50);
            for (cost, later_us) in costs {
                now_us += later_us;
                token_bucket::charge(&mut state, &spec, now_us, amount(cost + 1));
                let any = State::TokenBucket(state.clone());
                let Some(packed) = PackedState::pack(&any, &Spec::TokenBucket(spec), number, registered, now_us) else {
                    let widest = 64 - state.owed_micros.leading_zeros() + registered.bucket.remainder_bits;
                    prop_assert!(widest > 64, "it would have fitted");
                    continue;
                };
                let Some(State::TokenBucket(read)) = packed.state(registered) else { panic!("{packed:?}") };
                prop_assert_eq!(
                    (read.owed_micros, read.remainder, read.at_us),
                    (state.owed_micros, state.remainder, state.at_us)
                );
                let end_us = token_bucket::meaningless_at_us(&state, &spec);
                prop_assert_eq!(packed.expires_us(&specs), end_us.unwrap_or(u64::MAX));
                prop_assert!(!packed.is_dirty() && packed.with_dirty(true).is_dirty());
                prop_assert_eq!(packed.with_dirty(true).state(registered), packed.state(registered));
            }
        }
    }

    fn packable(ledger: Ledger, charged_us: u64) -> Record {
        Record { ledger, created_us: 0, charged_us }
    }

    #[test]
    fn what_is_kept_elsewhere_says_where_and_until_when() {
        let (specs, limit) = (SpecRegistry::default(), Amount::from_units(2).unwrap());
        let window = Spec::SlidingWindow(sliding_window::Spec { limit, window_us: 100 });
        let mut ledger = Ledger::new(&window).unwrap();
        let mut boxed = |now_us| {
            ledger.charge(&window, now_us, 0, Amount::ONE);
            let packed = PackedState::of_overflow(&packable(ledger.clone(), now_us), &specs)
                .with_overflow_index(7);
            assert_eq!(packed.overflow_index(), Some(7));
            (packed.expires_us(&specs), packed.full_until_us())
        };
        assert_eq!(boxed(10), (110, None));
        assert_eq!(boxed(30), (130, Some((110, 130))));
        assert_eq!(boxed(40), (140, None), "it owes more than it may");
        let places = Spec::Concurrency(concurrency::Spec { places: limit, lease_us: 100 });
        let mut ledger = Ledger::new(&places).unwrap();
        let mut guard = |now_us, holder, cost: u64| {
            ledger.charge(&places, now_us, holder, Amount::from_micros(cost).unwrap());
            PackedState::of_overflow(&packable(ledger.clone(), now_us), &specs).full_until_us()
        };
        assert_eq!(guard(10, 1, 1_000_000), None);
        assert_eq!(guard(30, 2, 1_000_000), Some((110, 130)));
        assert_eq!(guard(40, 3, 500_000), None, "more than there are");
        assert_eq!(guard(110, 4, 500_000), Some((130, 210)), "the first has lost its place");
        assert_eq!(guard(130, 5, 1_000_000), None, "one place is free when two holders are gone");
        let total = Spec::Total(total::Spec { limit });
        let mut ledger = Ledger::new(&total).unwrap();
        ledger.charge(&total, 1, 0, limit);
        let packed = PackedState::of_overflow(&packable(ledger, 1), &specs);
        assert_eq!((packed.expires_us(&specs), packed.full_until_us()), (u64::MAX, None));
    }

    fn micros() -> impl Strategy<Value = u64> {
        let whole = (0..10_000_000_000_u64).prop_map(|units| units * MICROS);
        prop_oneof![whole, 0..1_u64 << 45, any::<u64>()]
    }

    proptest! {
        #[test]
        fn a_quota_that_fits_is_read_as_it_was_written(
            used in micros(), quarters in 0..1_u64 << 25, beside in 0..3_u64,
        ) {
            let end_us = quarters * QUARTER_US + beside;
            let is_small = used < 1 << 39 || used.is_multiple_of(MICROS) && used / MICROS < 1 << 39;
            let fits = is_small && beside == 0 && quarters < 1 << 24;
            let payload = pack_quota(used, end_us);
            prop_assert_eq!(payload.is_some(), fits);
            if let Some(payload) = payload {
                prop_assert_eq!((unpack_quota_micros(payload), unpack_quota_end_us(payload)), (used, end_us));
            }
        }

        #[test]
        fn counters_that_fit_are_read_as_they_were_written(current in micros(), previous in micros()) {
            let fits = |micros: u64| micros.is_multiple_of(MICROS) && micros / MICROS < 1 << 32;
            let payload = pack_counters(current, previous);
            prop_assert_eq!(payload.is_some(), fits(current) && fits(previous));
            if let Some(payload) = payload {
                prop_assert_eq!(unpack_counters_micros(payload), (current, previous));
            }
        }
    }
}
