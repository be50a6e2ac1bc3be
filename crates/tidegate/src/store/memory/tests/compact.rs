//! What fits a slot, and is charged there.

use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;
use crate::algorithm::{
    Reading, Verdict, calendar, concurrency, fixed_window, quota, sliding_counter, sliding_window,
};
use crate::store::Change;
use crate::units::DAY_US;

const LIMIT: u64 = 5_000;
const NOW_US: u64 = 20_000 * DAY_US + 7;

/// One of each algorithm whose states are small.
fn specs() -> [Spec; 5] {
    let (limit, window_us) = (units(LIMIT), DAY_US);
    let start_us = NOW_US - NOW_US % DAY_US;
    [
        bucket(LIMIT, 1_000 * DAY_US),
        total(LIMIT),
        Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
        Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
        Spec::Quota(quota::Spec {
            limit,
            unit: calendar::Unit::Day,
            previous_us: start_us - DAY_US,
            start_us,
            end_us: start_us + DAY_US,
            next_end_us: start_us + 2 * DAY_US,
        }),
    ]
}

/// The number of the segment of a key, if that is in its slot with nothing beside.
fn number_in_slot(store: &Memory, key: Key) -> Option<u32> {
    let table = store.table(1)?;
    let glance = table.lookup(key);
    glance.hit.filter(|hit| hit.state.overflow_index().is_none()).map(|_| glance.version)
}

#[test]
fn one_small_state_is_charged_in_its_slot_without_holding_its_segment() {
    for spec in specs() {
        let (store, level) = (Memory::new(), level(1, 1, spec));
        assert!(charge(&store, at(NOW_US), [level])[0].charged);
        let number = number_in_slot(&store, Key::counted(1));
        assert!(number.is_some(), "{spec:?}");
        for turn in 1..100 {
            assert!(charge(&store, at(NOW_US + turn), [level])[0].charged);
            assert_eq!(number_in_slot(&store, Key::counted(1)), number, "{spec:?}");
        }
    }
}

#[test]
fn who_is_full_refuses_without_holding_its_segment_though_it_fits_no_slot() {
    const LASTS_US: u64 = 1_000;
    let (limit, window_us, lease_us) = (units(3), LASTS_US, LASTS_US);
    for spec in [
        Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
        Spec::Concurrency(concurrency::Spec { places: limit, lease_us }),
    ] {
        let (store, level) = (Memory::new(), level(1, 1, spec));
        for turn in 0..3 {
            assert!(charge(&store, at(NOW_US + turn * 10), [level])[0].charged);
        }
        let version = || store.table(1).unwrap().lookup(Key::counted(1)).version;
        let before = version();
        for now_us in [NOW_US, NOW_US + 20, NOW_US + LASTS_US - 1] {
            let reply = charge(&store, at(now_us), [level])[0];
            let denied = Verdict::denied_for_us(NOW_US + LASTS_US - now_us);
            assert_eq!(reply.verdict, denied, "{spec:?}");
            let reset_us = Some(NOW_US + LASTS_US + 20 - now_us);
            assert_eq!(reply.reading, Reading { available: Amount::ZERO, reset_us }, "{spec:?}");
        }
        assert_eq!(version(), before, "{spec:?}");
        let more = Level { cost: units(2), ..level };
        let later = charge(&store, at(NOW_US + 50), [more])[0].verdict;
        assert_eq!(later, Verdict::denied_for_us(LASTS_US + 10 - 50));
        assert!(charge(&store, at(NOW_US + LASTS_US), [level])[0].charged, "{spec:?}");
    }
}

#[test]
fn a_place_that_is_given_back_is_free_at_once_and_one_that_is_renewed_is_not() {
    const LEASE_US: u64 = 1_000;
    let spec = Spec::Concurrency(concurrency::Spec { places: units(1), lease_us: LEASE_US });
    let (store, level) = (Memory::new(), level(1, 1, spec));
    let amend = |change, now_us| {
        let charged_at_us = NOW_US;
        let amendment = Amendment { level, name: None, charged_at_us, holder: 7, change };
        store.amend(&amendment, at(now_us))
    };
    let take = |now_us| charge(&store, at(now_us), [level])[0].verdict;
    assert_eq!(take(NOW_US), Verdict::Allowed);
    assert_eq!(take(NOW_US + 9), Verdict::denied_for_us(LEASE_US - 9));
    assert!(amend(Change::Renew, NOW_US + 100));
    assert_eq!(take(NOW_US + LEASE_US), Verdict::denied_for_us(100));
    assert!(amend(Change::Release, NOW_US + LEASE_US));
    assert_eq!(take(NOW_US + LEASE_US), Verdict::Allowed);
}

#[test]
fn a_small_state_is_charged_as_often_as_it_allows_by_all_threads_together() {
    for spec in specs() {
        let (store, admitted) = (Memory::new(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..LIMIT / 2 {
                        let reply = charge(&store, at(NOW_US + turn), [level(1, 1, spec)])[0];
                        admitted.fetch_add(usize::from(reply.charged), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner() as u64, LIMIT, "{spec:?}");
    }
}

/// The edges of a calendar are others every day, which must not use up the numbers of specs.
#[test]
fn a_quota_is_in_its_slot_on_every_day_of_years() {
    let store = Memory::new();
    let Spec::Quota(first) = specs()[4] else { unreachable!() };
    for day in 0..1_000 {
        let later = |us: u64| us + day * DAY_US;
        let spec = Spec::Quota(quota::Spec {
            previous_us: later(first.previous_us),
            start_us: later(first.start_us),
            end_us: later(first.end_us),
            next_end_us: later(first.next_end_us),
            ..first
        });
        for spent in 1..=2 {
            let reply = charge(&store, at(later(NOW_US)), [level(1, 1, spec)])[0];
            assert_eq!(reply.reading.available, units(LIMIT - spent), "day {day}");
        }
        assert!(number_in_slot(&store, Key::counted(1)).is_some(), "day {day}");
        let counted = store.key_usage(1, Key::counted(1), at(later(NOW_US))).unwrap();
        assert_eq!(counted.ends_in_us, Some(later(first.end_us) - later(NOW_US)));
    }
}

#[test]
fn a_key_that_a_plan_asks_for_twice_is_charged_twice_whether_it_is_new_or_not() {
    for spec in specs() {
        let (store, level) = (Memory::new(), level(1, 1, spec));
        for _ in 0..2 {
            let replies = charge(&store, at(NOW_US), [level, level]);
            assert!(replies.iter().all(|reply| reply.charged), "{spec:?}");
        }
        let left = charge(&store, at(NOW_US), [Level { cost: Amount::ZERO, ..level }]);
        assert_eq!(left[0].reading.available, units(LIMIT - 4), "{spec:?}");
    }
}

#[test]
fn only_the_segment_of_the_key_that_is_new_is_held() {
    for spec in specs() {
        let store = Memory::new();
        store.announce_now(&[1, 2]);
        let hot = level(1, 1, spec);
        charge(&store, at(NOW_US), [hot]);
        // So that the spec has a number.
        charge(&store, at(NOW_US), [level(2, 1, spec)]);
        let number = number_in_slot(&store, Key::counted(1));
        for key in 2..100_u64 {
            let replies = charge(&store, at(NOW_US), [hot, level(2, key.into(), spec)]);
            let left = replies.iter().map(|reply| reply.reading.available);
            assert!(left.eq([units(LIMIT - key), units(LIMIT - 1)]), "{spec:?}");
        }
        assert_eq!(number_in_slot(&store, Key::counted(1)), number, "{spec:?}");
        assert_eq!(store.table(2).unwrap().keys(), 99, "{spec:?}");
    }
}

#[test]
fn keys_that_are_kept_in_full_leave_the_numbers_of_specs_to_others() {
    let store = Memory::new();
    for key in 2..400_u64 {
        let given_back = Level { refundable: true, ..level(1, key.into(), total(key)) };
        assert!(charge(&store, at(NOW_US), [given_back])[0].charged);
    }
    assert!(charge(&store, at(NOW_US), [level(1, 1, total(LIMIT))])[0].charged);
    assert!(number_in_slot(&store, Key::counted(1)).is_some());
}
