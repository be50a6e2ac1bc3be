//! The slots of a cluster: which one a key lies in, and a tag that lies in each.

use std::sync::OnceLock;

/// How many there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key: that of its tag, if it has one.
pub(crate) fn of(key: &[u8]) -> u16 {
    crc16(tagged(key)) % SLOTS
}

/// A short word that lies in this slot, for keys that must.
pub(crate) fn tag(slot: u16) -> String {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(find_tags);
    word(tags.get(usize::from(slot)).copied().unwrap_or_default())
}

/// What stands in the first pair of braces, unless that is nothing; otherwise all of it.
fn tagged(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let behind = &key[open + 1..];
    match behind.iter().position(|byte| *byte == b'}') {
        Some(close @ 1..) => &behind[..close],
        _ => key,
    }
}

/// The number whose word lies in each slot. Words are as good as random, so that some 170,000 are
/// tried.
fn find_tags() -> Vec<u32> {
    let mut tags = vec![None; usize::from(SLOTS)];
    let mut left = tags.len();
    for number in 0_u32.. {
        if left == 0 {
            break;
        }
        let tag = &mut tags[usize::from(of(word(number).as_bytes()))];
        if tag.is_none() {
            *tag = Some(number);
            left -= 1;
        }
    }
    tags.into_iter().map(Option::unwrap_or_default).collect()
}

fn word(number: u32) -> String {
    format!("{number:x}")
}

/// CRC-16/XMODEM, as the specification of Redis Cluster has it.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = table();
    let step = |crc: u16, byte: &u8| (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(*byte))];
    bytes.iter().fold(0, step)
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        #[allow(clippy::cast_possible_truncation, reason = "it is below 256")]
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // As `CLUSTER KEYSLOT` answers.
        for (key, slot) in [("foo", 12182), ("bar", 5061), ("hello", 866), ("", 0)] {
            assert_eq!(of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn only_the_first_tag_that_is_one_counts() {
        for (key, like) in [
            ("{user1000}.following", "user1000"),
            ("foo{bar}{zap}", "bar"),
            ("foo{{bar}}zap", "{bar"),
            ("tg:{t}x{y", "t"),
        ] {
            assert_eq!(of(key.as_bytes()), of(like.as_bytes()), "{key}");
        }
        for whole in ["foo{}{bar}", "foo{bar", "foo}bar{"] {
            assert_eq!(of(whole.as_bytes()), crc16(whole.as_bytes()) % SLOTS, "{whole}");
        }
    }

    #[test]
    fn every_slot_has_a_tag_that_lies_in_it() {
        for slot in 0..SLOTS {
            assert_eq!(of(format!("tg:@seq:{{{}}}:1", tag(slot)).as_bytes()), slot);
        }
    }
}
