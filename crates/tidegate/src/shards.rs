//! One value behind many locks: callers whose keys lie in different shards do not wait for each other.

use std::sync::PoisonError;

use crate::key::Key;
use crate::sync::{Mutex, MutexGuard};

/// The first bits of a key are the index of its shard. So the order of the shards is the order of their
/// keys, and the other bits are left for the table inside a shard.
const INDEX_BITS: u32 = 6;
/// How many shards there are.
pub(crate) const SHARDS: usize = 1 << INDEX_BITS;

/// Shards, each a `T` with its own lock. With a `HashMap` as `T`, this is a sharded map.
#[derive(Debug)]
pub(crate) struct Shards<T>(Box<[Mutex<T>]>);

impl<T> Shards<T> {
    /// Locks the shard of a key.
    pub(crate) fn lock(&self, key: Key) -> MutexGuard<'_, T> {
        lock(&self.0[index_of(key)])
    }

    /// Locks one shard after the other, in the order of their keys.
    pub(crate) fn lock_each(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.0.iter().map(lock)
    }

    /// The same, from the shard of a key on.
    pub(crate) fn lock_each_from(&self, key: Key) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.0[index_of(key)..].iter().map(lock)
    }
}

impl<T: Default> Default for Shards<T> {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

fn index_of(key: Key) -> usize {
    // Six bits fit into every integer.
    usize::try_from(key.0 >> (u128::BITS - INDEX_BITS)).unwrap_or(0)
}

/// A panic elsewhere leaves a shard as consistent as an early return does.
fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_in_the_order_of_their_keys() {
        let shards: Shards<Vec<Key>> = Shards::default();
        let keys = [0, 1, 1 << 122, 1 << 127, u128::MAX].map(Key);
        keys.iter().rev().for_each(|key| shards.lock(*key).push(*key));
        let all: Vec<Key> = shards.lock_each().flat_map(|shard| shard.clone()).collect();
        assert_eq!(all, [1, 0, 1 << 122, 1 << 127, u128::MAX].map(Key));
        let from: Vec<Key> = shards.lock_each_from(keys[3]).flat_map(|one| one.clone()).collect();
        assert_eq!(from, keys[3..]);
    }
}
