//! Whole decisions of a policy, on the memory store: several levels at once, what does not fit a slot,
//! and what is told of changes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::rand::Rng as _;
use tidegate_schedules::clock::{Clock as _, FakeClock, Now};
use tidegate_schedules::engine::store::Memory;
use tidegate_schedules::{Decision, HashKey, Limiter, Outcome, Policy, Request};

use crate::{at_once, each_schedule};

pub(crate) const THREADS: usize = 3;

/// A limiter by such limits, with room for so many keys, and its time, which stands still. Keys stand
/// elsewhere in each schedule.
pub(crate) fn limiter(limits: &str, max_keys: usize) -> (Limiter<Memory>, Now) {
    limiter_with(limits, max_keys, shuttle::rand::thread_rng().r#gen())
}

/// Two that know the keys of each other, and their time. The second has room for all.
fn twins(limits: &str, max_keys: usize) -> ([Limiter<Memory>; 2], Now) {
    let secret = shuttle::rand::thread_rng().r#gen();
    let (first, now) = limiter_with(limits, max_keys, secret);
    ([first, limiter_with(limits, 1_000, secret).0], now)
}

fn limiter_with(limits: &str, max_keys: usize, secret: [u8; 16]) -> (Limiter<Memory>, Now) {
    let policy = format!("{{ tidegate: 1, name: api, limits: {{ {limits} }} }}");
    let policy = Policy::parse("api.yaml", &policy).unwrap();
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let now = clock.now();
    let builder = Limiter::builder().policy(policy).clock(clock).hash_key(HashKey::new(secret));
    (builder.store(Memory::with_max_keys(max_keys)).build().unwrap(), now)
}

pub(crate) fn check(limiter: &Limiter<Memory>, user: &str) -> Decision {
    limiter.check(&Request::new("GET", "/").user(user)).unwrap()
}

/// How many of these are allowed.
fn allowed(limiter: &Limiter<Memory>, users: impl IntoIterator<Item = String>) -> usize {
    users.into_iter().filter(|user| check(limiter, user).is_allowed()).count()
}

#[test]
fn a_plan_is_charged_at_all_levels_or_at_none() {
    const LIMITS: &str = "all: { by: global, token_bucket: 1/day burst 9 }, \
        each: { by: user, token_bucket: 1/day burst 4 }";
    each_schedule(150, || {
        let (limiter, _) = limiter(LIMITS, 1_000);
        // Each has a user of its own and one that all have, some of whom are new.
        let users = |thread| (0..8).map(move |turn| if turn % 2 == 0 { 9 } else { thread });
        let counts = at_once(THREADS, |thread| {
            allowed(&limiter, users(thread).map(|user| format!("u{user}")))
        });
        assert_eq!(counts.iter().sum::<usize>(), 9, "all may go on nine times");
        assert!(limiter.reset("all", &Request::new("GET", "/").user("u9")).unwrap());
        let left: usize = (0..THREADS)
            .chain([9])
            .map(|user| allowed(&limiter, (0..5).map(|_| format!("u{user}"))))
            .sum();
        assert_eq!(left, 4 * (THREADS + 1) - 9, "who was refused by one was charged by none");
    });
}

#[test]
fn what_does_not_fit_a_slot_admits_exactly() {
    const LIMITS: &str = "window: { by: user, sliding_window: 5/day }";
    each_schedule(150, || {
        let (limiter, _) = limiter(LIMITS, 1_000);
        let users = || ["ann", "bob", "ann", "ann"].map(str::to_owned);
        let counts = at_once(THREADS, |_| {
            let (ann, bob): (Vec<_>, Vec<_>) = users().into_iter().partition(|user| user == "ann");
            [allowed(&limiter, ann), allowed(&limiter, bob)]
        });
        let sum = |of: usize| counts.iter().map(|counts| counts[of]).sum::<usize>();
        assert_eq!((sum(0), sum(1)), (5, 3));
    });
}

#[test]
fn there_are_never_more_places_than_allowed_and_none_is_lost() {
    const LIMITS: &str = "places: { by: user, concurrency: 2, lease: 5min }";
    each_schedule(150, || {
        let (limiter, _) = limiter(LIMITS, 1_000);
        let inside = AtomicUsize::new(0);
        let taken = at_once(THREADS, |_| {
            let mut taken = 0;
            for _ in 0..3 {
                let mut decision = check(&limiter, "ann");
                let Some(lease) = decision.reservation.as_mut().filter(|lease| lease.holds_place())
                else {
                    assert_eq!(decision.outcome, Outcome::Limited);
                    continue;
                };
                taken += 1;
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 2, "there are two places");
                shuttle::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(limiter.release(lease).unwrap());
            }
            taken
        });
        assert!(taken.iter().sum::<usize>() >= 2);
        let held = [(); 3].map(|()| check(&limiter, "ann").is_allowed());
        assert_eq!(held, [true, true, false], "all places were given back");
    });
}

/// Every key and what it owes.
fn all(store: &Memory, now: Now) -> BTreeSet<String> {
    store.export(now).map(|key| serde_json::to_string(&key).unwrap()).collect()
}

#[test]
fn whoever_is_told_of_changes_knows_all_in_the_end() {
    const LIMITS: &str = "each: { by: user, token_bucket: 1/day burst 9 }, \
        window: { by: user, sliding_window: 9/day }";
    each_schedule(80, || {
        // Fewer than come, so that some make room for others.
        let ([limiter, other], now) = twins(LIMITS, 12);
        let (store, copy) = (limiter.store(), other.store());
        store.track_changes();
        at_once(THREADS, |thread| match thread {
            0 => {
                for _ in 0..3 {
                    copy.replay(now, store.changes(now), now);
                }
            }
            1 => drop(allowed(&limiter, (0..8).map(|user| format!("u{}", user % 3)))),
            _ => {
                allowed(&limiter, (0..8).map(|user| format!("u{user}")));
                // It may have made room already.
                limiter.reset("each", &Request::new("GET", "/").user("u7")).unwrap();
            }
        });
        copy.replay(now, store.changes(now), now);
        assert_eq!(all(copy, now), all(store, now));
        assert!(!store.lost_track());
    });
}

/// A bucket, which fits a slot, and a window, which does not.
const KINDS: [&str; 2] = [
    "each: { by: user, token_bucket: 1/day burst 4 }",
    "each: { by: user, sliding_window: 4/day }",
];

/// So many users have come once. Some of them come again, twice at once, while others come for the first
/// time, some are reset, somebody takes everything and somebody is told of changes.
fn push_about(limits: &str, old: usize, new: usize) {
    let ([limiter, other], now) = twins(limits, 1_000);
    let (store, copy) = (limiter.store(), other.store());
    let old_users = || (0..old).map(|user| format!("old {user}"));
    let new_users = || (0..new).map(|user| format!("new {user}"));
    let again = || old_users().step_by(old.div_ceil(8));
    let reset = || old_users().skip(1).step_by(old.div_ceil(8));
    assert_eq!(allowed(&limiter, old_users()), old);
    copy.import(now, store.export(now), now);
    store.track_changes();
    at_once(6, |thread| match thread {
        0 => assert_eq!(allowed(&limiter, new_users()), new),
        1 | 2 => assert_eq!(allowed(&limiter, again()), again().count()),
        3 => drop(copy.replay(now, store.changes(now), now)),
        4 => reset().for_each(|user| {
            assert!(limiter.reset("each", &Request::new("GET", "/").user(&*user)).unwrap());
        }),
        _ => {
            let least = old - reset().count();
            assert!((least..=old + new).contains(&store.export(now).count()), "each once");
        }
    });
    copy.replay(now, store.changes(now), now);
    assert_eq!(all(copy, now), all(store, now));
    let (again, reset): (BTreeSet<_>, BTreeSet<_>) = (again().collect(), reset().collect());
    for user in old_users().chain(new_users()) {
        let used = if again.contains(&user) { 3 } else { usize::from(!reset.contains(&user)) };
        assert_eq!(allowed(&limiter, [(); 5].map(|()| user.clone())), 4 - used, "{user}");
    }
}

#[test]
fn no_key_is_mistaken_for_another_while_they_make_room_for_each_other() {
    // A page of 64 slots holds 54 keys.
    each_schedule(60, || KINDS.into_iter().for_each(|limits| push_about(limits, 42, 14)));
}

#[test]
fn no_key_is_missed_while_its_segment_is_split() {
    // The first segment is split when it has 320 keys, and the next soon after.
    each_schedule(20, || KINDS.into_iter().for_each(|limits| push_about(limits, 317, 9)));
}

#[test]
fn a_key_that_is_used_up_is_refused_while_others_come_and_go_about_it() {
    const LIMITS: &str = "each: { by: user, token_bucket: 1/day burst 3 }";
    each_schedule(100, || {
        let (limiter, _) = limiter(LIMITS, 6);
        assert_eq!(allowed(&limiter, (0..4).map(|_| "busy".to_owned())), 3);
        at_once(THREADS, |thread| {
            if thread == 0 {
                assert_eq!(allowed(&limiter, (0..10).map(|_| "busy".to_owned())), 0);
            } else {
                let new = (0..10).map(|user| format!("{thread} {user}"));
                assert_eq!(allowed(&limiter, new), 10);
            }
        });
        assert_eq!(limiter.store().keys(), 6);
        assert_eq!(limiter.store().evicted_keys(), 15);
    });
}
