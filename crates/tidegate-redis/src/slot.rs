//! The slots of a cluster: the slot of a key, and a hash tag for each slot.

use std::sync::OnceLock;

/// How many slots there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key: that of its hash tag, if it has one.
pub(crate) fn of(key: &[u8]) -> u16 {
    crc16(tagged(key)) % SLOTS
}

/// A short hash tag that lies in this slot.
pub(crate) fn tag(slot: u16) -> String {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(find_tags);
    format!("{:x}", tags.get(usize::from(slot)).copied().unwrap_or_default())
}

/// The hash tag: what stands in the first pair of braces, if anything; otherwise the whole key.
fn tagged(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let behind = &key[open + 1..];
    match behind.iter().position(|byte| *byte == b'}') {
        Some(close @ 1..) => &behind[..close],
        _ => key,
    }
}

/// For each slot the first number whose hexadecimal digits lie in it. Some 170,000 numbers are tried, as
/// their slots are as good as random.
fn find_tags() -> Vec<u32> {
    let mut tags = vec![None; usize::from(SLOTS)];
    let mut left = tags.len();
    for number in 0_u32.. {
        if left == 0 {
            break;
        }
        let tag = &mut tags[usize::from(of(format!("{number:x}").as_bytes()))];
        if tag.is_none() {
            *tag = Some(number);
            left -= 1;
        }
    }
    tags.into_iter().map(Option::unwrap_or_default).collect()
}

/// CRC-16/XMODEM, as Redis Cluster specifies.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        (0..8).fold(crc ^ (u16::from(*byte) << 8), shift)
    })
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
