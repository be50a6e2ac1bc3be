//! Numbers for calls, so that one can be sent again and is still carried out once.
//!
//! The script keeps the number and the replies of the last batch in each lane, and answers the same
//! number with the same replies. So a lane has one batch under way at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shard::locked;

/// The lanes of this node.
pub(super) struct Lanes {
    /// A name that no other node has.
    node: u64,
    /// Those in which nothing is under way, and how many there are in all.
    free: Mutex<(Vec<u32>, u32)>,
    next: AtomicU64,
}

/// A lane, for one call.
pub(super) struct Lane<'l> {
    lanes: &'l Lanes,
    index: u32,
    /// Larger than any before.
    pub(super) number: u64,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self { node: fastrand::u64(..), free: Mutex::default(), next: AtomicU64::new(1) }
    }

    /// A lane in which nothing is under way. There are as many as were ever used at once.
    pub(super) fn take(&self) -> Lane<'_> {
        let mut free = locked(&self.free);
        let index = free.0.pop().unwrap_or_else(|| {
            free.1 += 1;
            free.1
        });
        Lane { lanes: self, index, number: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Lane<'_> {
    /// What no other lane of any node is called.
    pub(super) fn name(&self) -> String {
        format!("{:016x}:{}", self.lanes.node, self.index)
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        locked(&self.lanes.free).0.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_used_again_only_when_it_is_free_and_with_a_larger_number() {
        let lanes = Lanes::new();
        let (one, other) = (lanes.take(), lanes.take());
        assert_ne!(one.name(), other.name());
        let before = (one.name(), one.number);
        drop(one);
        let again = lanes.take();
        assert_eq!(again.name(), before.0);
        assert!(again.number > before.1.max(other.number));
    }
}
