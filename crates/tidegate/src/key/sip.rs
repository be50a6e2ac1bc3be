//! `SipHash` with two and four rounds and 128 bits, as the crate has it that everything else hashes with,
//! for the keys of limits: it reads eight bytes at once wherever they stand, and is copied with what
//! every key of a limit begins with. The test compares the two.

use std::hash::Hasher;

use crate::sip::{self, Lanes, halves};

/// Has read something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sip {
    lanes: Lanes,
    /// What is not yet a whole word, in its low bytes.
    tail: u64,
    /// How many bytes were read.
    length: u64,
}

impl Sip {
    pub(super) fn new(secret: &[u8; 16]) -> Self {
        let mut lanes = sip::begin(secret);
        lanes[1] ^= 0xee;
        Self { lanes, tail: 0, length: 0 }
    }

    #[inline(always)]
    pub(super) fn finish128(mut self) -> u128 {
        sip::absorb::<2>(&mut self.lanes, self.length << 56 | self.tail);
        self.lanes[2] ^= 0xee;
        sip::go_round::<4>(&mut self.lanes);
        let low = sip::folded(&self.lanes);
        self.lanes[1] ^= 0xdd;
        sip::go_round::<4>(&mut self.lanes);
        u128::from(sip::folded(&self.lanes)) << 64 | u128::from(low)
    }

    /// Reads a word of so many bytes, at most eight; the others are zero.
    #[inline(always)]
    fn read(&mut self, word: u64, bytes: u64) {
        let before = self.length % 8;
        self.length = self.length.wrapping_add(bytes);
        self.tail |= word << (8 * before);
        if before + bytes >= 8 {
            sip::absorb::<2>(&mut self.lanes, self.tail);
            // By eight bytes less what fitted, which may be all of a word.
            self.tail = (word >> 1) >> (63 - 8 * before);
        }
    }
}

impl Hasher for Sip {
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.read(u64::from_le_bytes(*word), 8);
        }
        if !rest.is_empty() {
            let word = match bytes.last_chunk::<8>() {
                // The bytes before the rest are shifted out.
                Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
                None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
            };
            self.read(word, rest.len() as u64);
        }
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.read(byte.into(), 1);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.read(word, 8);
    }

    fn finish(&self) -> u64 {
        halves(self.finish128()).0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use siphasher::sip128::{Hasher128 as _, SipHasher24};

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_hash_that_everything_else_hashes_with(
            secret: [u8; 16],
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            number: u64,
        ) {
            let (mut ours, mut theirs) = (Sip::new(&secret), SipHasher24::new_with_key(&secret));
            for piece in &pieces {
                ours.write_u64(piece.len() as u64);
                theirs.write_u64(piece.len() as u64);
                ours.write(piece);
                theirs.write(piece);
                ours.write_u8(b'u');
                theirs.write_u8(b'u');
            }
            prop_assert_eq!(ours.finish128(), theirs.finish128().as_u128());
            prop_assert_eq!(ours.finish(), theirs.finish128().as_u64().0);
            ours.write_u64(number);
            theirs.write_u64(number);
            prop_assert_eq!(ours.finish128(), theirs.finish128().as_u128());
        }
    }
}
