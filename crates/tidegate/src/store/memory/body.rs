//! Bodies of slots that hold several numbers: what a calendar window has used and when it ends, and the
//! two counters of a sliding one.

use crate::units::{Amount, SECOND_US};

/// Calendar windows end on quarters of an hour in every time zone of today.
const QUARTER_US: u64 = 15 * 60 * SECOND_US;
/// So many of them last until the year 2448.
const QUARTERS_BITS: u32 = 24;
const QUARTERS_MAX: u64 = (1 << QUARTERS_BITS) - 1;

const USED_BITS: u32 = u64::BITS - QUARTERS_BITS;
const USED_MAX: u64 = (1 << USED_BITS) - 1;
/// Set where what is used is counted in whole units, and not in millionths.
const WHOLE: u64 = 1;

const MICROS: u64 = Amount::ONE.micros();

/// What a calendar window has used, and when it ends; `None` where that does not fit.
pub(super) fn pack_quota(used_micros: u64, end_us: u64) -> Option<u64> {
    let quarters = end_us / QUARTER_US;
    let is_whole = used_micros.is_multiple_of(MICROS);
    let (used, whole) = if is_whole { (used_micros / MICROS, WHOLE) } else { (used_micros, 0) };
    let fits = used <= USED_MAX >> 1 && quarters <= QUARTERS_MAX && quarters * QUARTER_US == end_us;
    fits.then_some(quarters << USED_BITS | used << 1 | whole)
}

/// What it has used, in millionths.
pub(super) fn quota_used_micros(body: u64) -> u64 {
    let used = body & USED_MAX;
    if used & WHOLE == 0 { used >> 1 } else { (used >> 1) * MICROS }
}

/// When it ends.
pub(super) fn quota_end_us(body: u64) -> u64 {
    (body >> USED_BITS) * QUARTER_US
}

/// The counters of this window and of the one before, where both are of whole units; else `None`.
pub(super) fn pack_counters(current_micros: u64, previous_micros: u64) -> Option<u64> {
    let [current, previous] = [current_micros, previous_micros].map(|micros| {
        let units = micros.is_multiple_of(MICROS).then_some(micros / MICROS)?;
        u32::try_from(units).ok()
    });
    Some(u64::from(current?) << u32::BITS | u64::from(previous?))
}

/// Both counters, in millionths.
pub(super) fn counters_micros(body: u64) -> (u64, u64) {
    ((body >> u32::BITS) * MICROS, (body & u64::from(u32::MAX)) * MICROS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            let body = pack_quota(used, end_us);
            prop_assert_eq!(body.is_some(), fits);
            if let Some(body) = body {
                prop_assert_eq!((quota_used_micros(body), quota_end_us(body)), (used, end_us));
            }
        }

        #[test]
        fn counters_that_fit_are_read_as_they_were_written(current in micros(), previous in micros()) {
            let fits = |micros: u64| micros.is_multiple_of(MICROS) && micros / MICROS < 1 << 32;
            let body = pack_counters(current, previous);
            prop_assert_eq!(body.is_some(), fits(current) && fits(previous));
            if let Some(body) = body {
                prop_assert_eq!(counters_micros(body), (current, previous));
            }
        }
    }
}
