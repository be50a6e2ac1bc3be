//! Which bucket it is.

use std::hash::Hasher;

use tidegate::Key;
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

/// Families and keys are keyed hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 ^= hash;
    }

    #[allow(clippy::cast_possible_truncation, reason = "the halves of a hash are hashes")]
    fn write_u128(&mut self, hash: u128) {
        self.0 ^= (hash >> 64) as u64 ^ hash as u64;
    }
}
