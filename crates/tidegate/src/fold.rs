//! Tables by families and keys, which are keyed hashes already: nobody outside can make two of them
//! meet, so that they need not be hashed again.

use std::hash::{BuildHasherDefault, Hasher};

/// What such tables hash with.
pub type Folded = BuildHasherDefault<Fold>;

/// Takes hashes together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fold(u64);

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
