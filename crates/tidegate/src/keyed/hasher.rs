//! A keyed hash of a text that is there as a whole.
//!
//! Short texts are hashed as UMAC does (NH, RFC 4418): the sum of `(a + key) · (b + key)` over each two
//! words, in 128 bits. To whoever does not know the keys, no two texts of one length are likelier to come to
//! the same sum than one in 2⁶⁴, which is proved. Sums that differ are told apart by half of theirs and a
//! product of both halves, and so are lengths: each has a factor of its own. It takes a fifth of the
//! instructions of `SipHash`. Long texts are rare, and take `SipHash`, which needs no longer key for a longer
//! text.

use crate::key::Key;
use crate::sip::{self, Lanes, halves};

/// The longest text that is short.
const SHORT: usize = 64;
/// More lengths than short texts have, and a power of two: so that it takes no look whether one is there.
const LENGTHS: usize = 128;

/// Makes keys of texts, so that nobody can tell two texts that make one.
pub(super) struct Hasher {
    /// Of each word of a short text.
    words: [u64; SHORT / 8],
    /// Of the lower half of what these come to, for each length, and of the upper half.
    lengths: [u64; LENGTHS],
    upper: u64,
    /// Of a long text.
    long: Lanes,
}

impl Hasher {
    pub(super) fn new(secret: &[u8; 16]) -> Self {
        let long = sip::begin(secret);
        let drawn = |number: usize| sip_13(long, &number.to_le_bytes());
        let words = std::array::from_fn(drawn);
        let lengths = std::array::from_fn(|length| drawn(SHORT + length));
        Self { words, lengths, upper: drawn(SHORT + LENGTHS), long }
    }

    #[inline(always)]
    pub(super) fn key_of(&self, text: &str) -> Key {
        let text = text.as_bytes();
        match self.sum(text) {
            Some(sum) => self.spread(sum, self.lengths[text.len() % LENGTHS]),
            None => Key(u128::from(sip_13(self.long, text)) << 64),
        }
    }

    /// What the words of a short text come to. Words that overlap are as good as others: with the length
    /// they make up the text.
    #[inline(always)]
    fn sum(&self, text: &[u8]) -> Option<u128> {
        let [a, b, c, d, e, f, g, h] = self.words;
        Some(match text.len() {
            0..16 => product([a, b], narrow(text)),
            16..=32 => {
                let [first, last] = ends::<16>(text);
                product([a, b], wide(first)).wrapping_add(product([c, d], wide(last)))
            }
            33..=SHORT => {
                let [[first, second], [third, last]] = ends::<32>(text).map(in_two);
                product([a, b], wide(first))
                    .wrapping_add(product([c, d], wide(second)))
                    .wrapping_add(product([e, f], wide(third)))
                    .wrapping_add(product([g, h], wide(last)))
            }
            _ => return None,
        })
    }

    /// Makes the bits of a sum even, which are not: where a product is a multiple of two, say.
    #[inline(always)]
    fn spread(&self, sum: u128, length: u64) -> Key {
        let (low, high) = halves(sum);
        let (below, above) = halves(u128::from(low ^ length) * u128::from(high ^ self.upper));
        Key(u128::from(below ^ above) << 64 | u128::from(low))
    }
}

impl std::fmt::Debug for Hasher {
    /// The secret stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher(…)")
    }
}

#[inline(always)]
fn product([key, other_key]: [u64; 2], (word, other): (u64, u64)) -> u128 {
    u128::from(word.wrapping_add(key)) * u128::from(other.wrapping_add(other_key))
}

/// The first and the last bytes of a text that has as many.
#[inline(always)]
fn ends<const BYTES: usize>(text: &[u8]) -> [[u8; BYTES]; 2] {
    let [first, last] = [text.first_chunk(), text.last_chunk()];
    [first, last].map(|end| end.copied().unwrap_or([0; BYTES]))
}

#[inline(always)]
fn in_two(bytes: [u8; 32]) -> [[u8; 16]; 2] {
    let (halves, _) = bytes.as_chunks();
    [halves[0], halves[1]]
}

#[inline(always)]
fn wide(bytes: [u8; 16]) -> (u64, u64) {
    halves(u128::from_le_bytes(bytes))
}

/// Less than sixteen bytes as two words.
#[inline(always)]
fn narrow(text: &[u8]) -> (u64, u64) {
    if text.len() >= 8 {
        let [first, last] = ends(text).map(u64::from_le_bytes);
        return (first, last);
    }
    if text.len() >= 4 {
        let [first, last] = ends(text).map(u32::from_le_bytes);
        return (first.into(), last.into());
    }
    (few(text), 0)
}

/// Less than four bytes as a word.
#[inline(always)]
fn few(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, ..] => u64::from(u32::from_le_bytes([a, b, c, 0])),
        [] => 0,
    }
}

/// `SipHash-1-3`.
fn sip_13(mut lanes: Lanes, text: &[u8]) -> u64 {
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        sip::absorb::<1>(&mut lanes, u64::from_le_bytes(*word));
    }
    let rest = match rest.split_first_chunk() {
        Some((four, rest)) => u64::from(u32::from_le_bytes(*four)) | few(rest) << 32,
        None => few(rest),
    };
    sip::absorb::<1>(&mut lanes, rest | (text.len() as u64) << 56);
    lanes[2] ^= 0xff;
    sip::go_round::<3>(&mut lanes);
    sip::folded(&lanes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use siphasher::sip::SipHasher13;

    use super::*;

    const SECRET: [u8; 16] = *b"sixteen letters!";

    fn text(length: usize) -> String {
        (0..length).map(|place| char::from(b'a' + u8::try_from(place % 26).unwrap())).collect()
    }

    #[test]
    fn a_long_text_takes_siphash() {
        let expected = SipHasher13::new_with_key(&SECRET);
        for length in SHORT + 1..SHORT + 20 {
            let text = text(length);
            let key = Hasher::new(&SECRET).key_of(&text);
            assert_eq!(key, Key(u128::from(expected.hash(text.as_bytes())) << 64), "{text}");
        }
    }

    #[test]
    fn a_short_text_takes_a_sum_of_products() {
        let hasher = Hasher::new(&SECRET);
        let word =
            |text: &[u8]| text.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        for length in 0..=SHORT {
            let text = text(length).into_bytes();
            let pieces: Vec<&[u8]> = match length {
                0..4 => vec![&text, &[]],
                4..8 => vec![&text[..4], &text[length - 4..]],
                8..16 => vec![&text[..8], &text[length - 8..]],
                16..=32 => text[..16].chunks(8).chain(text[length - 16..].chunks(8)).collect(),
                _ => text[..32].chunks(8).chain(text[length - 32..].chunks(8)).collect(),
            };
            let products = pieces.chunks(2).zip(hasher.words.chunks(2)).map(|(pieces, keys)| {
                let added = |of: usize| u128::from(word(pieces[of]).wrapping_add(keys[of]));
                added(0) * added(1)
            });
            assert_eq!(hasher.sum(&text), Some(products.fold(0, u128::wrapping_add)));
        }
    }

    /// Every letter of a text counts, wherever it stands, and so does its length.
    #[test]
    fn no_two_texts_that_differ_a_little_meet() {
        let (hasher, mut keys, mut texts) = (Hasher::new(&SECRET), HashSet::new(), 0);
        for length in 0..SHORT + 20 {
            let plain = text(length);
            let changed = (0..length).flat_map(|place| {
                ["!", "a", "\0"].map(|with| {
                    let mut text = plain.clone();
                    text.replace_range(place..=place, with);
                    text
                })
            });
            let mut all: HashSet<String> = changed.collect();
            all.insert(plain.clone());
            all.insert("\0".repeat(length));
            texts += all.len();
            keys.extend(all.iter().map(|text| hasher.key_of(text)));
        }
        assert_eq!(keys.len(), texts);
    }

    /// Wherever a table looks at a key, it sees numbers that come as often as others: of texts of each kind
    /// that differ in a counted number, as names do.
    #[test]
    fn where_keys_stand_is_even() {
        const TEXTS: usize = 1 << 15;
        const PLACES: usize = 1 << 6;
        let hasher = Hasher::new(&SECRET);
        let kinds: [fn(usize) -> String; 6] = [
            |number| number.to_string(),
            |number| format!("u{number:06}"),
            |number| format!("10.0.{}.{}", number >> 8, number & 255),
            |number| format!("user-{number:020}"),
            |number| format!("{number:040}@example.org"),
            |number| format!("{number:0100}"),
        ];
        for kind in kinds {
            let keys: Vec<u64> =
                (0..TEXTS).map(|number| halves(hasher.key_of(&kind(number)).0).1).collect();
            // The segment is chosen by the lowest bits, the page by the highest, its lines by those behind.
            for first in [0, 6, 24, 32, 40, 46, 52, 58] {
                let mut counts = [0_usize; PLACES];
                let place =
                    |key: &u64| usize::try_from(key >> first & (PLACES as u64 - 1)).unwrap();
                keys.iter().for_each(|key| counts[place(key)] += 1);
                // Five times the spread that chance has.
                let even = TEXTS / PLACES;
                let far = 5 * even.isqrt();
                let is_even = |count: &usize| count.abs_diff(even) < far;
                assert!(counts.iter().all(is_even), "{} from {first}: {counts:?}", kind(1));
            }
        }
    }
}
