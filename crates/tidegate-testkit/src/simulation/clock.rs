//! Virtual time, as each node sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::clock::{Clock, Now};

/// The true time, which no node knows. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct TrueTime(Arc<AtomicU64>);

impl TrueTime {
    pub(super) fn now_us(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, us: u64) {
        self.0.store(us, Ordering::Relaxed);
    }
}

/// A node's clock, with a constant error.
#[derive(Clone, Debug)]
pub(super) struct NodeClock {
    pub(super) time: TrueTime,
    pub(super) skew_us: i64,
}

impl Clock for NodeClock {
    fn now(&self) -> Now {
        let us = self.time.now_us().saturating_add_signed(self.skew_us);
        Now { steady_us: us, unix_us: us }
    }
}
