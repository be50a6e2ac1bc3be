//! Which bucket it is.

use std::hash::Hasher;

use tidegate::Key;
use tidegate::fold::Fold;
use tidegate::plan::Level;

/// A bucket, as plans know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    family: u64,
    key: Key,
}

impl Id {
    pub(super) fn of(level: &Level) -> Self {
        Self { family: level.family, key: level.key }
    }
}

impl Id {
    /// One of so many shards. Another part of the hash than tables use, or they would be as full of
    /// collisions.
    pub(super) fn shard(self, shards: usize) -> usize {
        let mut fold = Fold::default();
        fold.write_u64(self.family);
        fold.write_u128(self.key.0);
        usize::try_from(fold.finish() >> 57).unwrap_or(0) % shards.max(1)
    }
}
