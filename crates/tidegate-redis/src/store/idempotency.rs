//! Idempotency keys: a call that is sent twice is carried out once.
//!
//! The script keeps the number and the reply of the last call under each key, and answers the same
//! number with the same reply. So a key has one call under way at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock;

/// The idempotency keys of this node. There are as many as were ever used at once.
pub(super) struct IdempotencyPool {
    /// A name that no other node has.
    node: u64,
    /// The indices of the keys that no call uses, and how many keys there are in all.
    free: Mutex<(Vec<u32>, u32)>,
    next_number: AtomicU64,
}

/// The use of a key for one call. Dropping it frees the key.
pub(super) struct IdempotencyKey<'p> {
    pool: &'p IdempotencyPool,
    index: u32,
    /// Larger than the number of any call before.
    pub(super) number: u64,
}

impl IdempotencyPool {
    pub(super) fn new() -> Self {
        Self { node: fastrand::u64(..), free: Mutex::default(), next_number: AtomicU64::new(1) }
    }

    /// Takes a key that no call uses.
    pub(super) fn take(&self) -> IdempotencyKey<'_> {
        let mut free = lock(&self.free);
        let index = free.0.pop().unwrap_or_else(|| {
            free.1 += 1;
            free.1
        });
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        IdempotencyKey { pool: self, index, number }
    }
}

impl IdempotencyKey<'_> {
    /// A name that no other key of any node has.
    pub(super) fn name(&self) -> String {
        format!("{:016x}:{}", self.pool.node, self.index)
    }
}

impl Drop for IdempotencyKey<'_> {
    fn drop(&mut self) {
        lock(&self.pool.free).0.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_used_again_only_when_it_is_free_and_with_a_larger_number() {
        let pool = IdempotencyPool::new();
        let (one, other) = (pool.take(), pool.take());
        assert_ne!(one.name(), other.name());
        let before = (one.name(), one.number);
        drop(one);
        let again = pool.take();
        assert_eq!(again.name(), before.0);
        assert!(again.number > before.1.max(other.number));
    }
}
