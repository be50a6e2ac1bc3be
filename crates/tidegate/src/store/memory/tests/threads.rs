//! Many threads at once.

use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;
use crate::algorithm::{Verdict, ceiling};

const THREADS: u64 = 4;

#[test]
fn threads_admit_together_what_the_limit_allows_while_the_table_grows() {
    let (store, admitted) = (Memory::new(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, admitted) = (&store, &admitted);
            scope.spawn(move || {
                for turn in 0..2_000 {
                    let fresh = u128::from(thread * 1_000_000 + turn + 10);
                    let replies = charge(
                        store,
                        at(1_000_000 + turn),
                        [
                            level(1, 1, total(5_000)),
                            level(1, fresh, total(1)),
                            level(2, fresh, total(1)),
                        ],
                    );
                    admitted.fetch_add(usize::from(replies[0].charged), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 5_000);
    assert_eq!(store.keys(), 2 * 5_000 + 1, "who was refused one was charged none");
    let used =
        store.key_usage(1, Key::counted(1), at(9_000_000)).unwrap().paces[0].reading.available;
    assert_eq!(used, Amount::ZERO);
}

#[test]
fn a_bucket_is_charged_in_its_slot_as_often_as_it_allows_while_keys_move_about_it() {
    let (store, admitted) = (Memory::with_max_keys(3_000), AtomicUsize::new(0));
    // With room for all, so that it loses none by itself.
    let copy = Memory::with_max_keys(100_000);
    copy.announce_now(&[1]);
    store.track_changes();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, admitted) = (&store, &admitted);
            scope.spawn(move || {
                for turn in 0..4_000 {
                    let now = at(1_000_000 + turn);
                    let fresh = (u128::from(thread) + 1) << 70 | u128::from(turn);
                    charge(store, now, [level(1, fresh, bucket(1, 1 << 20))]);
                    let hot = level(1, 3, bucket(5_000, 1_000_000_000_000_000));
                    let reply = charge(store, now, [hot])[0];
                    assert_eq!(reply.charged, reply.verdict == Verdict::Allowed);
                    admitted.fetch_add(usize::from(reply.charged), Ordering::Relaxed);
                }
            });
        }
        let (store, copy) = (&store, &copy);
        scope.spawn(move || {
            for _ in 0..50 {
                copy.replay(at(1_000_000), store.changes(at(1_000_000)), at(1_000_000));
            }
        });
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 5_000);
    let now = at(1_004_000);
    copy.replay(now, store.changes(now), now);
    let hot = charge(&copy, now, [level(1, 3, bucket(5_000, 1_000_000_000_000_000))])[0];
    assert_ne!(hot.verdict, Verdict::Allowed, "each charge was told of");
}

#[test]
fn whoever_looks_sees_all_levels_of_a_plan_or_none() {
    let store = Memory::new();
    let both = || [level(1, 1, total(1_000_000)), level(2, 2, bucket(1_000_000, u64::MAX))];
    charge(&store, at(5), both());
    thread::scope(|scope| {
        let store = &store;
        let writers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        charge(store, at(5), both());
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while writers.iter().any(|writer| !writer.is_finished()) {
                let replies = store.answer(&plan(Mode::Peek, at(5), both())).replies;
                assert_eq!(replies[0].reading.available, replies[1].reading.available);
            }
        });
    });
}

#[test]
fn who_charges_one_key_and_puts_in_another_does_both_or_neither() {
    const TURNS: u64 = 20_000;
    let store = Memory::new();
    let hot = |family| level(family, 1, total(TURNS));
    let fresh = |family, turn: u64| level(family, u128::from(turn) + 2, total(9));
    store.announce_now(&[1, 2]);
    thread::scope(|scope| {
        let store = &store;
        // Each puts keys in where the other charges one.
        let writers = [1, 2].map(|family| {
            scope.spawn(move || {
                for turn in 0..TURNS {
                    let replies = charge(store, at(5), [hot(family), fresh(3 - family, turn)]);
                    assert!(replies.iter().all(|reply| reply.charged));
                }
            })
        });
        scope.spawn(move || {
            let rests = |levels| {
                let replies = store.answer(&plan(Mode::Peek, at(5), levels)).replies;
                let rest = |reply: &Reply| reply.reading.available.micros() / units(1).micros();
                replies.iter().map(rest).collect::<Vec<_>>()
            };
            // Once more when all is done.
            let mut are_done = false;
            while !are_done {
                are_done = writers.iter().all(|writer| writer.is_finished());
                let turn = (TURNS - rests(vec![hot(1)])[0]).min(TURNS - 1);
                let rests = rests(vec![hot(1), fresh(2, turn)]);
                assert_eq!(rests[1], if TURNS - rests[0] > turn { 8 } else { 9 });
            }
        });
    });
    assert_eq!(store.keys() as u64, 2 * (TURNS + 1));
    for family in [1, 2] {
        assert_ne!(charge(&store, at(5), [hot(family)])[0].verdict, Verdict::Allowed);
    }
}

#[test]
fn a_refusal_is_right_however_the_key_is_moved_about() {
    let store = Memory::with_max_keys(1_500);
    let refused = || level(1, 3, bucket(1, 1 << 40));
    assert!(charge(&store, at(5), [refused()])[0].charged);
    thread::scope(|scope| {
        let store = &store;
        let movers: Vec<_> = (0..2_u128)
            .map(|mover| {
                scope.spawn(move || {
                    for key in 0..20_000 {
                        // They end at once, and make room for each other.
                        charge(
                            store,
                            at(5),
                            [level(1, (mover + 1) << 70 | key, bucket(1, 1 << 20))],
                        );
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while movers.iter().any(|mover| !mover.is_finished()) {
                let reply = charge(store, at(5), [refused()])[0];
                assert_eq!(reply.verdict, Verdict::denied_for_us(1 << 40));
            }
        });
    });
    assert!(store.keys() <= 1_500);
}

#[test]
fn a_ceiling_that_is_kept_to_holds_nothing_up() {
    let (store, key) = (Memory::new(), Key::counted(1));
    store.announce_now(&[1, 2]);
    let ceiling = level(1, 1, Spec::Ceiling(ceiling::Spec { limit: units(10) }));
    let table = store.table(1).unwrap();
    let before = table.segment(key).unwrap().version();
    let replies = charge(&store, at(5), [ceiling, level(2, 1, total(9))]);
    assert!(replies.iter().all(|reply| reply.charged && reply.charged_at_us == 5));
    assert_eq!(replies[0].reading.available, units(9));
    assert_eq!(table.segment(key).unwrap().version(), before, "its segment was guard");
}
