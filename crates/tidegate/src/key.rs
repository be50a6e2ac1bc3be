//! Keys: which state a limit and a subject share.
//!
//! A key is a keyed hash of the policy, the limit, the algorithm and every part, each with its length or kind before
//! it. So no two subjects collide by concatenation, and nobody without the deployment's secret can tell or guess whose
//! key it is.
//!
//! [`limit_keys`] makes the keys of a limit's subjects, [`names`] the names of keys in a store that operators read.

mod limit_keys;
mod names;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

pub(crate) use limit_keys::LimitKeys;
pub(crate) use names::{
    Piece, RAW_BYTES_MAX, Raw, Template, called, counted_name, generated, is_plain, name,
    penalty_name,
};

use crate::identity::ClientNetwork;

/// The deployment's secret. Nodes that share a store, and restarts, must use the same one.
#[derive(Clone)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// A secret given by the deployment.
    #[must_use]
    pub const fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    /// A secret for this process alone, from the operating system's randomness.
    #[must_use]
    pub fn random() -> Self {
        let half = || RandomState::new().build_hasher().finish().to_ne_bytes();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&half());
        secret[8..].copy_from_slice(&half());
        Self(secret)
    }

    /// Tells this secret from another without giving it away: what was hashed with one secret means nothing under
    /// another.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.hasher_of(&["tidegate: fingerprint of the secret"]).finish128().as_u64().0
    }

    /// A secret for another purpose. Nobody can compute this secret from it.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        let half = |number: u8| {
            let mut hasher = self.hasher_of(&["tidegate: a secret for a purpose", purpose]);
            hasher.write_u8(number);
            hasher.finish128().as_u128().to_le_bytes()
        };
        let mut derived = [0; 32];
        derived[..16].copy_from_slice(&half(0));
        derived[16..].copy_from_slice(&half(1));
        derived
    }

    /// The family and the key that mark a holder's reservation as settled.
    pub(crate) fn claim(&self, holder: u64) -> (u64, Key) {
        let mut hasher = self.hasher_of(&["tidegate: a lease that is settled"]);
        let family = hasher.finish128().as_u64().0;
        hasher.write_u64(holder);
        (family, Key(hasher.finish128().as_u128()))
    }

    /// The family of numbers that are used once.
    pub(crate) fn once_family(&self) -> u64 {
        self.hasher_of(&["tidegate: what is used once"]).finish128().as_u64().0
    }

    /// The family and the key that mark a number as used.
    pub(crate) fn once(&self, purpose: &str, number: u128) -> (u64, Key) {
        let mut hasher = self.hasher_of(&["tidegate: a number that is used once", purpose]);
        hasher.write(&number.to_le_bytes());
        (self.once_family(), Key(hasher.finish128().as_u128()))
    }

    /// The subject of a token: the policy, and the client as limits see it.
    pub(crate) fn client_keys(
        &self,
        policy: &str,
        user: Option<&str>,
        address: Option<&ClientNetwork>,
    ) -> Option<(Key, Key)> {
        let mut hasher = self.hasher_of(&["tidegate: whom a token is for", policy]);
        let of_policy = Key(hasher.finish128().as_u128());
        match (user, address) {
            (Some(user), _) => {
                hasher.write_u8(b'u');
                write_text(&mut hasher, user);
            }
            (None, Some(address)) => hasher.write(&address.key_bytes()),
            (None, None) => return None,
        }
        Some((of_policy, Key(hasher.finish128().as_u128())))
    }

    /// A hasher that has read these texts.
    pub(crate) fn hasher_of(&self, texts: &[&str]) -> SipHasher24 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        texts.iter().for_each(|text| write_text(&mut hasher, text));
        hasher
    }
}

impl fmt::Debug for HashKey {
    /// The secret stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(…)")
    }
}

/// A key's fingerprint: a keyed hash. A [memory store](crate::store::Memory) reads where a key stands off its
/// upper half, whose bits must be evenly spread, as those of a hash are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key(pub u128);

#[cfg(test)]
impl Key {
    /// The key of a number that somebody has counted, spread as hashes are.
    #[allow(clippy::cast_possible_truncation, reason = "the halves of a number")]
    pub(crate) const fn counted(number: u128) -> Self {
        let (low, high) = (number as u64, (number >> 64) as u64);
        let spread = (high.rotate_left(29) ^ low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((spread as u128) << 64 | low as u128)
    }

    /// The lower half of that number.
    #[allow(clippy::cast_possible_truncation, reason = "half of a key")]
    pub(crate) const fn number(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hashes the length of a text, and then the text.
#[inline]
pub(crate) fn write_text(hasher: &mut impl Hasher, text: &str) {
    hasher.write_u64(u64::try_from(text.len()).unwrap_or(u64::MAX - 1));
    hasher.write(text.as_bytes());
}

/// The value of a part, hashed, the same in key names and in logs. The part's name is hashed too: a user called like
/// an address is no address.
pub(crate) fn hashed(secret: &HashKey, part: &str, value: &str) -> u64 {
    secret.hasher_of(&[part, value]).finish128().as_u64().0
}
