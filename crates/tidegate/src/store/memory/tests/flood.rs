//! More keys than there is room for.

use super::*;
use crate::algorithm::Verdict;

/// A test that is not optimised takes a while for so many.
const KEYS: u128 = if cfg!(debug_assertions) { 300_000 } else { 20_000_000 };
const MAX_KEYS: usize = 50_000;

#[test]
fn a_limited_key_outlives_a_flood_of_made_up_ones() {
    let store = Memory::with_max_keys(MAX_KEYS);
    store.announce_now(&[1]);
    let limited = level(1, 1 << 100, bucket(100, 60_000_000_000));
    for _ in 0..100 {
        assert!(charge(&store, at(5), [limited])[0].charged);
    }
    for key in 0..KEYS {
        let now = at(5 + u64::try_from(key).unwrap() / 100);
        let made_up = level(
            1,
            key.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
            bucket(100, 60_000_000_000),
        );
        assert!(charge(&store, now, [made_up])[0].charged);
        if key % 10_000 == 0 {
            assert_ne!(charge(&store, now, [limited])[0].verdict, Verdict::Allowed, "after {key}");
            assert!(store.keys() <= MAX_KEYS);
        }
    }
    let evicted = u128::from(store.evicted_keys());
    assert!(evicted + MAX_KEYS as u128 >= KEYS, "live keys had to go, and are counted");
}
