//! Shares of the keys, and what is lent of them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::algorithm::fixed_window;

/// What numbers are multiplied with, to be spread as keys are.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Charges a key of a limit that never forgets.
fn touch(store: &Memory, family: u64, key: u128) {
    let level = level(family, key.wrapping_mul(SPREAD) | 1 << 127, total(1_000_000));
    assert!(charge(store, at(5), [level])[0].charged);
}

fn announced(max_keys: usize, families: u64) -> Memory {
    let store = Memory::with_max_keys(max_keys);
    store.announce_now(&(1..=families).collect::<Vec<_>>());
    store
}

fn keys_of(store: &Memory, family: u64) -> BTreeSet<u128> {
    store.table(family).unwrap().all_keys().into_iter().map(|Key(key)| key).collect()
}

fn count(store: &Memory, family: u64) -> usize {
    store.table(family).unwrap().keys()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The reference is the rule itself, told with plain sets.
    #[test]
    fn only_the_one_that_has_borrowed_most_gives_up_a_key_and_only_where_the_store_is_full(
        families in 1..6_u64,
        max_keys in 1..60_usize,
        touched in prop::collection::vec((0..6_u64, 0..80_u128), 1..300),
    ) {
        let store = announced(max_keys, families);
        let count = usize::try_from(families).unwrap();
        let (share, most) = ((max_keys / count).max(1), max_keys.max(count));
        let all = || (1..=families).map(|family| keys_of(&store, family)).collect::<Vec<_>>();
        for (family, key) in touched {
            let (before, own) = (all(), usize::try_from(family % families).unwrap());
            touch(&store, family % families + 1, key);
            let after = all();
            let total = |keys: &[BTreeSet<u128>]| keys.iter().map(BTreeSet::len).sum::<usize>();
            prop_assert!(total(&after) <= most);
            prop_assert_eq!(total(&after), store.keys());
            let is_new = after[own].difference(&before[own]).count() == 1;
            let lost = |one: usize| before[one].difference(&after[one]).count();
            let losers: Vec<usize> = (0..count).filter(|one| lost(*one) > 0).collect();
            if !is_new || total(&before) < most {
                prop_assert!(losers.is_empty());
                continue;
            }
            let wanted = |one: usize| before[one].len() + usize::from(one == own);
            let borrowed = |one: usize| wanted(one).saturating_sub(share);
            prop_assert_eq!(losers.len(), 1);
            prop_assert_eq!(lost(losers[0]), 1);
            prop_assert_eq!(Some(borrowed(losers[0])), (0..count).map(borrowed).max());
            prop_assert!(borrowed(losers[0]) > 0, "within its share");
        }
    }
}

#[test]
fn what_others_do_not_use_is_lent_and_given_back_when_they_need_it() {
    let store = announced(1_000, 10);
    for key in 0..1_000 {
        touch(&store, 1, key);
    }
    assert_eq!((count(&store, 1), store.evicted_keys()), (1_000, 0));
    for key in 0..100 {
        touch(&store, 2, key);
    }
    assert_eq!((count(&store, 1), count(&store, 2)), (900, 100));
    // Two who have borrowed as much as each other take no more from each other.
    for key in 100..2_000 {
        touch(&store, 2, key);
    }
    assert_eq!((count(&store, 1), count(&store, 2)), (500, 500));
    for family in 3..=10 {
        for key in 0..100 {
            touch(&store, family, key);
        }
    }
    assert!((1..=10).all(|family| count(&store, family) == 100));
    for key in 2_000..9_000 {
        touch(&store, 2, key);
    }
    assert!((1..=10).all(|family| count(&store, family) == 100), "nothing is left to lend");
}

#[test]
fn each_key_is_judged_by_its_own_clock() {
    let now = Now { steady_us: 5, unix_us: 1_767_603_600_000_000 };
    let window = fixed_window::Spec { limit: units(9), window_us: 60_000_000 };
    let specs = [bucket(9, 60_000_000), Spec::FixedWindow(window)];
    for (first, second) in [(0, 1), (1, 0)] {
        let store = announced(20, 2);
        let fill = |spec: usize, count: u128| {
            for key in 0..count {
                let level = level(spec as u64 + 1, key.wrapping_mul(SPREAD), specs[spec]);
                assert!(charge(&store, now, [level])[0].charged);
            }
        };
        fill(first, 20);
        fill(second, 10);
        assert_eq!((store.keys(), store.evicted_keys()), (20, 10), "all of them were live");
    }
}

#[test]
fn a_plan_whose_keys_are_all_new_leaves_no_more_than_there_may_be() {
    let store = announced(30, 3);
    for key in 0..200_u128 {
        let levels = [1, 2, 3].map(|family| {
            let shared = if family == 2 { key % 20 } else { key };
            level(family, shared.wrapping_mul(SPREAD), total(1_000_000))
        });
        assert!(charge(&store, at(5), levels).iter().all(|reply| reply.charged));
        assert!(store.keys() <= 30, "{} after {key}", store.keys());
    }
    assert!((1..=3).all(|family| count(&store, family) == 10));
}

#[test]
fn a_limit_that_a_reload_removes_makes_room_first_and_is_not_missed() {
    let store = announced(100, 2);
    let tables = store.tables_now(&[1, 2]);
    for family in 1..=2 {
        for key in 0..50 {
            touch(&store, family, key);
        }
    }
    store.announce_now(&[2, 3]);
    for key in 0..50 {
        touch(&store, 3, key);
    }
    assert_eq!((count(&store, 2), count(&store, 3), store.evicted_keys()), (50, 50, 0));
    drop(tables);
    store.announce_now(&[2]);
    for key in 0..100 {
        touch(&store, 2, key);
    }
    assert_eq!((count(&store, 2), store.evicted_keys()), (100, 0), "what is gone takes no room");
}

#[test]
fn memory_that_was_lent_is_used_by_others_and_every_key_is_found_again() {
    const MAX_KEYS: u128 = 20_000;
    let store = announced(20_000, 4);
    let flood = |family: u64| (0..2 * MAX_KEYS).for_each(|key| touch(&store, family, key));
    flood(1);
    let pages = store.pool.pages.created();
    for family in [2, 3, 4, 1, 2, 3, 4] {
        flood(family);
    }
    assert!(store.pool.pages.created() <= pages * 2, "{} {pages}", store.pool.pages.created());
    for family in 1..=4 {
        let (table, found) = (store.table(family).unwrap(), keys_of(&store, family));
        assert_eq!(found.len(), table.keys());
        assert!(found.len() >= 5_000, "{family} has {}", found.len());
        let is_found = |key: &u128| table.find(&table.lock(Key(*key)), Key(*key)).is_some();
        assert!(found.iter().all(is_found));
    }
    assert_eq!(store.keys(), 20_000);
}

#[test]
fn threads_that_borrow_from_each_other_lose_no_count() {
    const THREADS: u64 = 4;
    let store = announced(2_000, THREADS);
    std::thread::scope(|scope| {
        for family in 1..=THREADS {
            let store = &store;
            scope.spawn(move || {
                for turn in 0..3 {
                    for key in 0..if turn % 2 == family % 2 { 6_000 } else { 200 } {
                        touch(store, family, key + 10_000 * u128::from(turn));
                    }
                }
            });
        }
    });
    let counted = || (1..=THREADS).map(|family| keys_of(&store, family).len()).sum::<usize>();
    assert_eq!(counted(), store.keys());
    // Threads that found everything locked may have left a key too many, which later ones make up for.
    for key in 0..100 {
        touch(&store, 1, key + 90_000);
    }
    assert_eq!((counted(), store.keys()), (2_000, 2_000));
}
