//! More keys than there is room for.

use super::*;
use crate::algorithm::{Verdict, fixed_window, sliding_window};

const KEYS: u128 = 300_000;
const MAX_KEYS: usize = 50_000;
/// What numbers are multiplied with, to be spread as keys are.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Charges a key until it is limited, and then more keys than there is room for.
fn flood(spec: Spec, keys: u128) {
    let store = Memory::with_max_keys(MAX_KEYS);
    store.announce_now(&[1]);
    let limited = level(1, 1 << 100, spec);
    for _ in 0..100 {
        assert!(charge(&store, at(5), [limited])[0].charged);
    }
    for key in 0..keys {
        let now = at(5 + u64::try_from(key).unwrap() / 100);
        let made_up = level(1, key.wrapping_mul(SPREAD), spec);
        assert!(charge(&store, now, [made_up])[0].charged);
        if key % 10_000 == 0 {
            assert_ne!(charge(&store, now, [limited])[0].verdict, Verdict::Allowed, "after {key}");
            assert!(store.keys() <= MAX_KEYS);
        }
    }
    let evicted = u128::from(store.evicted_keys());
    assert!(evicted + MAX_KEYS as u128 >= keys, "live keys had to go, and are counted");
}

#[test]
fn a_limited_key_outlives_a_flood_of_made_up_ones() {
    flood(bucket(100, 60_000_000_000), KEYS);
}

#[test]
fn a_key_that_spent_its_window_first_outlives_those_that_end_later() {
    let (limit, window_us) = (units(100), 60_000_000_000);
    flood(Spec::SlidingWindow(sliding_window::Spec { limit, window_us }), KEYS / 2);
}

#[test]
fn a_key_that_spent_its_window_outlives_those_that_end_with_it() {
    let (limit, window_us) = (units(100), 60_000_000_000);
    flood(Spec::FixedWindow(fixed_window::Spec { limit, window_us }), KEYS / 2);
}

#[test]
fn a_key_that_spent_its_total_outlives_others_that_never_end() {
    flood(total(100), KEYS / 2);
}

#[test]
fn keys_that_have_meant_nothing_for_a_minute_make_room_for_new_ones() {
    const A_SECOND: u64 = 200;
    let store = Memory::new();
    for number in 0..300 * A_SECOND {
        let now = at(1_000_000 / A_SECOND * number);
        let key = u128::from(number).wrapping_mul(SPREAD);
        assert!(charge(&store, now, [level(1, key, bucket(1, 1_000_000))])[0].charged);
        // Each means something for a second and stands for a minute more, and then until somebody comes
        // by: half as many as these, as a rule.
        assert!((store.keys() as u64) < 2 * 61 * A_SECOND, "{} at {number}", store.keys());
    }
    assert_eq!(store.evicted_keys(), 0);
}
