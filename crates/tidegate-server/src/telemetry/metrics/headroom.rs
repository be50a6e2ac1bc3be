//! The smallest share that a limit had left, of late.
//!
//! Time is cut into minutes, and a limit has two numbers, for minutes that are even and odd. Each
//! holds its minute above the share that was used in it, so that the larger number is always the one
//! to keep: a later minute, or a fuller limit. Nobody who reads them changes them.

use super::text::WHOLE;

/// How many numbers a limit has.
pub(super) const MOMENTS: usize = 2;

/// Scrapers that come once a minute, which is their default, miss nothing.
const MOMENT_US: u64 = 60_000_000;
/// A share in millionths fits below.
const SHARE_BITS: u32 = 20;

/// Which number is to be raised, and to what, for a limit that has this share left.
pub(super) fn note(now_us: u64, share_left: u64) -> (usize, u64) {
    let moment = now_us / MOMENT_US;
    let used = WHOLE.saturating_sub(share_left);
    (usize::from(moment % 2 == 1), moment << SHARE_BITS | used)
}

/// The smallest share left in this minute and the one before; a whole where nothing was noted.
pub(super) fn smallest(now_us: u64, noted: impl Iterator<Item = u64>) -> u64 {
    let moment = now_us / MOMENT_US;
    let recent = noted.filter(|number| moment.saturating_sub(number >> SHARE_BITS) < 2);
    let used = recent.map(|number| number & ((1 << SHARE_BITS) - 1)).max();
    WHOLE - used.unwrap_or(0).min(WHOLE)
}
