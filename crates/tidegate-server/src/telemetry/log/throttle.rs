//! One log line a second for something that every request may cause.

use std::sync::atomic::{AtomicU64, Ordering};

const INTERVAL_US: u64 = 1_000_000;

/// Lets one line a second pass.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    /// When the next line may pass.
    next_us: AtomicU64,
    suppressed: AtomicU64,
}

impl LogThrottle {
    /// `Some` if a line may pass now, with the number of lines that were suppressed before it.
    pub(crate) fn pass(&self, now_us: u64) -> Option<u64> {
        let next_us = self.next_us.load(Ordering::Relaxed);
        let is_first = now_us >= next_us && {
            let after_us = now_us.saturating_add(INTERVAL_US);
            let (ok, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            self.next_us.compare_exchange(next_us, after_us, ok, failed).is_ok()
        };
        if is_first {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_passes_and_counts_the_others() {
        let throttle = LogThrottle::default();
        let passed = [5, 6, 7, 1_000_004, 1_000_005, 9_000_000].map(|now_us| throttle.pass(now_us));
        assert_eq!(passed, [Some(0), None, None, None, Some(3), Some(0)]);
    }
}
