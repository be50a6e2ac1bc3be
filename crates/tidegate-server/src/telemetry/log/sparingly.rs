//! Telling something once a second that happens with every request.

use std::sync::atomic::{AtomicU64, Ordering};

const EVERY_US: u64 = 1_000_000;

/// Lets one a second through.
#[derive(Debug, Default)]
pub(crate) struct Sparingly {
    /// When the next may pass.
    next_us: AtomicU64,
    held_back: AtomicU64,
}

impl Sparingly {
    /// Whether one may pass now, and how many have been held back before it.
    pub(crate) fn take(&self, now_us: u64) -> Option<u64> {
        let next_us = self.next_us.load(Ordering::Relaxed);
        let is_first = now_us >= next_us && {
            let after_us = now_us.saturating_add(EVERY_US);
            let (ok, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            self.next_us.compare_exchange(next_us, after_us, ok, failed).is_ok()
        };
        if is_first {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_passes_and_tells_of_the_others() {
        let sparingly = Sparingly::default();
        let passed =
            [5, 6, 7, 1_000_004, 1_000_005, 9_000_000].map(|now_us| sparingly.take(now_us));
        assert_eq!(passed, [Some(0), None, None, None, Some(3), Some(0)]);
    }
}
