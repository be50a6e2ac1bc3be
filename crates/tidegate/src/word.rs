//! Short texts as numbers: what is in a word of the machine is compared without a call.

/// So many bytes of a text are in its word.
const BYTES: usize = 8;

/// The first bytes of a text, and how many it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    head: u64,
    len: usize,
}

impl Word {
    #[inline(always)]
    pub(crate) fn of(text: &[u8]) -> Self {
        Self { head: head(text), len: text.len() }
    }

    /// Whether there is no more of the text, so that no other has this word.
    #[inline]
    pub(crate) const fn is_whole(self) -> bool {
        self.len <= BYTES
    }

    /// Each bit of it depends on all bits of the word; with the end of the text, where there is more.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the halves of a product")]
    pub(crate) fn hash(self, text: &[u8]) -> u64 {
        let mut mixed = self.head ^ self.len as u64;
        if !self.is_whole()
            && let Some(last) = text.last_chunk()
        {
            mixed ^= u64::from_le_bytes(*last).rotate_left(23);
        }
        let product = u128::from(mixed) * 0x9e37_79b9_7f4a_7c15;
        (product >> 64) as u64 ^ product as u64
    }
}

#[inline(always)]
fn head(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk() {
        return u64::from_le_bytes(*first);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        // Where they overlap they say the same.
        let last = u64::from(u32::from_le_bytes(*last)) << (8 * (bytes.len() - 4));
        return u64::from(u32::from_le_bytes(*first)) | last;
    }
    bytes.iter().rev().fold(0, |head, byte| head << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn texts_of_one_word_begin_alike_and_short_ones_are_the_same(a in "[ab\0]{0,10}", b in "[ab\0]{0,10}") {
            let (word, other) = (Word::of(a.as_bytes()), Word::of(b.as_bytes()));
            let begin = |text: &str| text.bytes().take(BYTES).collect::<Vec<_>>();
            prop_assert_eq!(word == other, a.len() == b.len() && begin(&a) == begin(&b));
            prop_assert_eq!(word == other && word.is_whole(), a == b && a.len() <= BYTES);
            prop_assert!(a != b || word.hash(a.as_bytes()) == other.hash(b.as_bytes()));
        }
    }
}
