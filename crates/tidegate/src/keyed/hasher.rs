//! SipHash-1-3 of a text that is there as a whole, which takes half the instructions of one that is
//! written to bit by bit.

use crate::key::Key;
use crate::sip::{self, Lanes};

/// Makes keys of texts, so that nobody can tell two texts that make one. Half of a key is enough: among
/// ten million the chance that any two are one is three in a million.
pub(super) struct Hasher {
    start: Lanes,
}

impl Hasher {
    pub(super) fn new(secret: &[u8; 16]) -> Self {
        Self { start: sip::begin(secret) }
    }

    #[inline]
    pub(super) fn key_of(&self, text: &str) -> Key {
        Key(u128::from(self.hash(text.as_bytes())) << 64)
    }

    #[inline]
    fn hash(&self, text: &[u8]) -> u64 {
        let mut lanes = self.start;
        let (words, rest) = text.as_chunks::<8>();
        for word in words {
            sip::absorb::<1>(&mut lanes, u64::from_le_bytes(*word));
        }
        sip::absorb::<1>(&mut lanes, le_word(rest) | (text.len() as u64) << 56);
        lanes[2] ^= 0xff;
        sip::go_round::<3>(&mut lanes);
        sip::folded(&lanes)
    }
}

impl std::fmt::Debug for Hasher {
    /// The secret stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher(…)")
    }
}

/// The first bytes, at most eight, as a number.
#[inline(always)]
fn le_word(bytes: &[u8]) -> u64 {
    if let Some(word) = bytes.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    match bytes.split_first_chunk() {
        Some((four, rest)) => u64::from(u32::from_le_bytes(*four)) | short_word(rest) << 32,
        None => short_word(bytes),
    }
}

/// The same of three bytes at most.
#[inline(always)]
fn short_word(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, ..] => u64::from(u32::from_le_bytes([a, b, c, 0])),
        [] => 0,
    }
}

#[cfg(test)]
mod tests {
    use siphasher::sip::SipHasher13;

    use super::*;

    #[test]
    fn it_is_siphash_of_texts_of_any_length() {
        let (secret, text) = (*b"sixteen letters!", "Grüße an alle, die warten");
        let expected = SipHasher13::new_with_key(&secret);
        for length in (0..=text.len()).filter(|length| text.is_char_boundary(*length)) {
            let text = &text[..length];
            let key = Hasher::new(&secret).key_of(text);
            assert_eq!(key, Key(u128::from(expected.hash(text.as_bytes())) << 64), "{text}");
        }
    }
}
