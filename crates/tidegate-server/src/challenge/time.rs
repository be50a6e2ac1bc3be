//! The wall time that tokens are issued and judged by. It never goes back while the process lasts:
//! whoever can set the clock back would make all tokens last longer.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::clock::Now;

/// The wall clock as far ahead as it has been seen, going on as steady time does.
#[derive(Debug, Default)]
pub(super) struct WallTime {
    /// How far it was ahead of the steady clock at most.
    ahead_us: AtomicU64,
}

impl WallTime {
    /// The time in microseconds.
    pub(super) fn at_us(&self, now: Now) -> u64 {
        let ahead_us = now.unix_us.saturating_sub(now.steady_us);
        let most_us = self.ahead_us.fetch_max(ahead_us, Ordering::Relaxed).max(ahead_us);
        now.steady_us.saturating_add(most_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_wall_clock_forward_and_goes_on_when_that_is_set_back() {
        let time = WallTime::default();
        let at = |steady_us, unix_us| time.at_us(Now { steady_us, unix_us });
        assert_eq!([at(100, 1_000), at(110, 1_010)], [1_000, 1_010]);
        assert_eq!(at(120, 5_000), 5_000, "set forward");
        assert_eq!([at(130, 1_030), at(140, 0)], [5_010, 5_020], "set back");
        assert_eq!(at(150, 6_000), 6_000);
    }
}
