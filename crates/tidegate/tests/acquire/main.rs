//! Waiting for one's turn, through the public API.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

mod race;
mod shared;
mod stage;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use stage::{Stage, policy, user};
use tidegate::Amount;
use tidegate::{Limiter, Outcome, Request, Settlement, Timer};

const BUCKET: &str = "  rate: { by: user, token_bucket: 1/s burst 1 }";

fn cost(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

/// The future can be spawned on any runtime.
#[allow(dead_code, reason = "it is enough that this compiles")]
fn the_future_is_send<T: Timer>(limiter: &Limiter, request: &Request<'_>, timer: &T) {
    drop(assert_send(limiter.acquire(request, None, timer)));
}

#[test]
fn first_come_is_first_served_and_each_is_charged_in_its_turn() {
    let mut stage = Stage::new(BUCKET);
    for name in ["a", "b", "c", "d"] {
        stage.acquire(name, user("u"), 10_000);
    }
    assert_eq!(stage.limiter.waiters(), 3);
    stage.pass_to_ms(10_000);
    assert_eq!(stage.passed(), [("a", 0), ("b", 1_000), ("c", 2_000), ("d", 3_000)]);
    let waited: Vec<u64> =
        stage.answers.iter().map(|answer| answer.acquired.waited.as_secs()).collect();
    assert_eq!((waited, stage.limiter.waiters()), (vec![0, 1, 2, 3], 0));
}

#[test]
fn the_deadline_is_looked_at_before_the_wait() {
    let mut stage = Stage::new(BUCKET);
    stage.acquire("spends", user("u"), 0);
    stage.acquire("exactly", user("u"), 1_000);
    stage.acquire("behind it, too late", user("u"), 1_999);
    stage.acquire("behind it", user("u"), 2_000);
    assert_eq!(stage.refused(), [("behind it, too late", 0)]);
    let retry_after = stage.answers[1].acquired.decision.retry_after();
    assert_eq!(retry_after, Some(Duration::from_secs(2)));
    stage.pass_to_ms(5_000);
    assert_eq!(stage.passed(), [("spends", 0), ("exactly", 1_000), ("behind it", 2_000)]);
}

#[test]
fn where_no_waiting_helps_the_answer_comes_at_once() {
    let mut stage = Stage::new("  all: { by: user, total: 1 }\n  few: { by: ip, quota: 3/day }");
    stage.acquire("fits", user("u"), 5_000);
    stage.acquire("total", user("u"), 5_000);
    let large = Request::new("GET", "/").ip("192.0.2.1".parse().unwrap()).cost(cost(4));
    stage.acquire("large", large, 5_000);
    assert_eq!(stage.refused(), [("total", 0), ("large", 0)]);
}

#[test]
fn checks_do_not_overtake_those_who_wait_and_refusals_stay_free() {
    let mut stage = Stage::new("  rate: { by: user, token_bucket: 1/s burst 3 }");
    stage.acquire("spends", user("u").cost(cost(3)), 0);
    stage.acquire("waits", user("u").cost(cost(3)), 10_000);
    stage.pass_to_ms(2_000);
    // Two tokens are there, but they are spoken for.
    for _ in 0..3 {
        let refused = stage.limiter.check(&user("u")).unwrap();
        assert_eq!(refused.outcome, Outcome::Limited);
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(2)));
        assert_eq!(refused.limits[0].remaining(), 0);
        assert_eq!(stage.limiter.peek(&user("u")).unwrap().outcome, Outcome::Limited);
    }
    assert!(stage.limiter.check(&user("other")).unwrap().is_allowed());
    stage.pass_to_ms(3_000);
    assert_eq!(stage.passed(), [("spends", 0), ("waits", 3_000)]);
    stage.pass_to_ms(4_000);
    assert!(stage.limiter.check(&user("u")).unwrap().is_allowed());
}

const SHARED: &str = "  own: { by: user, token_bucket: 1/10s burst 1 }
  shared: { by: global, token_bucket: 1/s burst 5 }";

#[test]
fn who_waits_for_its_own_key_does_not_hold_up_others_on_a_shared_one() {
    let mut stage = Stage::new(SHARED);
    stage.acquire("greedy", user("u"), 0);
    stage.acquire("greedy waits", user("u"), 60_000);
    for name in ["v", "w", "x", "y"] {
        assert!(stage.limiter.check(&user(name)).unwrap().is_allowed(), "{name}");
    }
    // The shared bucket is empty now; its own key still holds the waiter up the longest.
    stage.acquire("z", user("z"), 60_000);
    stage.pass_to_ms(60_000);
    assert_eq!(stage.passed(), [("greedy", 0), ("z", 1_000), ("greedy waits", 10_000)]);
}

#[test]
fn all_limits_are_charged_together_or_none() {
    let mut stage = Stage::new(SHARED);
    stage.acquire("first", user("u"), 0);
    stage.acquire("waits", user("u"), 60_000);
    let left = |stage: &Stage| stage.limiter.peek(&user("q")).unwrap().limits[1].remaining();
    assert_eq!(left(&stage), 4);
    stage.pass_to_ms(9_999);
    assert_eq!(left(&stage), 5);
    stage.pass_to_ms(10_000);
    assert_eq!((left(&stage), stage.passed().len()), (4, 2));
}

#[test]
fn whoever_finds_another_key_taken_moves_there_with_its_old_ticket() {
    let mut stage = Stage::new(
        "  own: { by: user, token_bucket: 1/2s burst 1 }
  shared: { by: global, token_bucket: 1/10s burst 2 }",
    );
    stage.acquire("spends", user("u"), 0);
    stage.acquire("old", user("u"), 60_000);
    stage.acquire("takes the shared one", user("v"), 0);
    stage.acquire("young", user("w"), 60_000);
    stage.pass_to_ms(60_000);
    let passed = [("spends", 0), ("takes the shared one", 0), ("old", 10_000), ("young", 20_000)];
    assert_eq!(stage.passed(), passed);
}

#[test]
fn two_who_want_each_others_keys_both_get_through() {
    let limits = "  left: { by: user, token_bucket: 1/s burst 1 }
  right: { by: ip, token_bucket: 1/s burst 1 }";
    let mut stage = Stage::new(limits);
    let at = |name: &'static str, ip: &str| user(name).ip(ip.parse().unwrap());
    stage.acquire("a", at("u", "192.0.2.1"), 0);
    stage.acquire("b", at("v", "192.0.2.2"), 0);
    stage.acquire("c", at("u", "192.0.2.2"), 60_000);
    stage.acquire("d", at("v", "192.0.2.1"), 60_000);
    stage.acquire("e", at("u", "192.0.2.1"), 60_000);
    stage.pass_to_ms(60_000);
    assert_eq!(stage.passed().len(), 5);
    assert_eq!(stage.passed()[2..], [("c", 1_000), ("d", 1_000), ("e", 2_000)]);
}

#[test]
fn beyond_the_bound_on_waiters_nobody_waits() {
    let mut stage = Stage::with_max_waiters(BUCKET, 1);
    for name in ["spends", "waits", "one too many"] {
        stage.acquire(name, user("u"), 10_000);
    }
    assert_eq!(stage.refused(), [("one too many", 0)]);
    stage.pass_to_ms(1_000);
    stage.acquire("there is room again", user("u"), 10_000);
    stage.pass_to_ms(5_000);
    assert_eq!(stage.passed().last(), Some(&("there is room again", 2_000)));
}

#[test]
fn one_client_leaves_room_for_others_to_wait() {
    let mut stage = Stage::with_max_waiters("  rate: { by: global, token_bucket: 1/s }", 8);
    for _ in 0..20 {
        stage.acquire("crowd", user("u"), 60_000);
    }
    // One passed, and six of eight may wait.
    assert_eq!(stage.refused().len(), 13);
    stage.acquire("another", user("v"), 60_000);
    stage.acquire("a third", user("w"), 60_000);
    stage.acquire("a fourth", user("x"), 60_000);
    assert_eq!(stage.refused()[13..], [("a fourth", 0)]);
    stage.pass_to_ms(60_000);
    assert_eq!(stage.passed()[7..], [("another", 7_000), ("a third", 8_000)]);
}

#[test]
fn whoever_goes_away_gives_its_place_to_the_next() {
    let mut stage = Stage::new("  rate: { by: user, token_bucket: 1/s burst 4 }");
    stage.acquire("spends", user("u").cost(cost(4)), 0);
    stage.acquire("goes", user("u").cost(cost(4)), 10_000);
    stage.acquire("next", user("u"), 10_000);
    stage.pass_to_ms(1_500);
    assert_eq!(stage.passed().len(), 1);
    stage.abandon("goes");
    assert_eq!(stage.passed().last(), Some(&("next", 1_500)));
    assert_eq!(stage.limiter.waiters(), 0);
}

const PLACE: &str = "  place: { by: user, concurrency: 1, lease: 60s }";

#[test]
fn a_place_that_is_released_goes_to_the_first_who_waits() {
    let mut stage = Stage::new(PLACE);
    stage.acquire("holds", user("u"), 0);
    // The lease runs out long after both deadlines, but a release may come at any time.
    stage.acquire("first", user("u"), 5_000);
    stage.acquire("second", user("u"), 5_000);
    let mut lease = stage.answers[0].acquired.decision.reservation.take().unwrap();
    stage.pass_to_ms(2_000);
    stage.limiter.renew(&lease).unwrap();
    stage.limiter.release(&mut lease).unwrap();
    assert_eq!(stage.limiter.check(&user("u")).unwrap().outcome, Outcome::Limited);
    stage.pass_to_ms(6_000);
    assert_eq!(stage.passed(), [("holds", 0), ("first", 2_000)]);
    assert_eq!(stage.refused(), [("second", 5_000)]);
    let told = stage.answers[2].acquired.decision.retry_after();
    assert_eq!(told, Some(Duration::from_secs(57)));
}

#[test]
fn a_place_that_nobody_renews_goes_on_when_its_lease_runs_out() {
    let mut stage = Stage::new(PLACE);
    stage.acquire("holds", user("u"), 0);
    stage.acquire("waits", user("u"), 90_000);
    stage.pass_to_ms(90_000);
    assert_eq!(stage.passed(), [("holds", 0), ("waits", 60_000)]);
}

#[test]
fn what_is_given_back_or_reset_wakes_the_first() {
    let mut stage = Stage::new("  day: { by: user, sliding_window: 2/h }");
    stage.acquire("a", user("u").reserve(), 0);
    stage.acquire("b", user("u").reserve(), 0);
    stage.acquire("refund", user("u"), 7_200_000);
    stage.acquire("reset", user("u"), 7_200_000);
    let mut lease = stage.answers[0].acquired.decision.reservation.take().unwrap();
    stage.pass_to_ms(1_000);
    stage.limiter.settle(&mut lease, Settlement::Refund).unwrap();
    stage.pass_to_ms(2_000);
    stage.limiter.reset("day", &user("u")).unwrap();
    stage.run();
    assert_eq!(stage.passed()[2..], [("refund", 1_000), ("reset", 2_000)]);
}

#[test]
fn a_reload_wakes_those_who_wait() {
    let mut stage = Stage::new(BUCKET);
    for name in ["spends", "a", "b", "c"] {
        stage.acquire(name, user("u"), 60_000);
    }
    let roomier = policy("  rate: { by: user, token_bucket: 1/s burst 3 }");
    stage.limiter.replace_policies(vec![Arc::new(roomier)]).unwrap();
    stage.run();
    assert_eq!(stage.passed(), [("spends", 0), ("a", 0), ("b", 0)]);
    let without = policy("  other: { by: ip, total: 1 }");
    stage.limiter.replace_policies(vec![Arc::new(without)]).unwrap();
    stage.run();
    assert_eq!(stage.passed().last(), Some(&("c", 0)));
}

#[test]
fn without_a_time_of_its_own_a_request_waits_as_long_as_the_policy_says() {
    let mut stage = Stage::new("  rate: { by: user, token_bucket: 1/s burst 1, exceed: wait 2s }");
    for name in ["a", "b", "c", "too late"] {
        stage.acquire(name, user("u"), None);
    }
    assert_eq!(stage.refused(), [("too late", 0)]);
    stage.pass_to_ms(10_000);
    assert_eq!(stage.passed(), [("a", 0), ("b", 1_000), ("c", 2_000)]);
}

#[test]
fn a_check_never_waits_but_says_how_long_it_could_have() {
    let stage = Stage::new("  rate: { by: user, token_bucket: 1/s burst 1, exceed: wait 2s }");
    assert_eq!(stage.limiter.check(&user("u")).unwrap().wait(), None);
    let refused = stage.limiter.check(&user("u")).unwrap();
    assert_eq!((refused.outcome, refused.status()), (Outcome::Limited, 429));
    assert_eq!(refused.wait(), Some(Duration::from_secs(2)));
    assert_eq!(stage.limiter.check(&user("u").cost(cost(2))).unwrap().wait(), None);
}

#[test]
fn one_limit_that_rejects_is_enough_not_to_wait() {
    let mut stage = Stage::new(
        "  waits: { by: user, token_bucket: 1/s burst 1, exceed: wait 5s }
  less: { by: user, sliding_window: 2/2s, exceed: wait 1s }
  rejects: { by: ip, token_bucket: 1/s burst 1 }",
    );
    let at = |ip: &str| user("u").ip(ip.parse().unwrap());
    stage.acquire("a", at("192.0.2.1"), None);
    stage.acquire("rejected", at("192.0.2.1"), None);
    stage.acquire("waits", at("192.0.2.2"), None);
    stage.pass_to_ms(1_000);
    stage.acquire("longer than the shorter of both", at("192.0.2.3"), None);
    assert_eq!(stage.passed(), [("a", 0), ("waits", 1_000)]);
    stage.pass_to_ms(9_000);
    assert_eq!(stage.refused(), [("rejected", 0)]);
    assert_eq!(stage.passed()[2..], [("longer than the shorter of both", 2_000)]);
}

proptest! {
    /// However requests come, wait and go away: what passes fits the buckets, those of one key pass
    /// in their order, and nobody is left behind.
    #[test]
    fn what_passes_in_turn_fits_every_bucket(
        steps in prop::collection::vec((0..3_usize, 1..3_u64, 0..4_000_u64, 0..700_u64, 0..8_u8), 1..40),
    ) {
        const USERS: [&str; 3] = ["u", "v", "w"];
        let mut stage = Stage::new(
            "  own: { by: user, token_bucket: 2/s burst 2 }
  shared: { by: global, token_bucket: 3/s burst 4 }",
        );
        let mut checked = Vec::new();
        let mut at_ms = 0;
        for (index, (who, units, max_wait_ms, gap_ms, kind)) in steps.iter().enumerate() {
            let request = user(USERS[*who]).cost(cost(*units));
            match kind {
                0 => {
                    if stage.limiter.check(&request).unwrap().is_allowed() {
                        checked.push((at_ms, *who, *units));
                    }
                }
                1 => stage.abandon(&(index / 2).to_string()),
                _ => stage.acquire(&index.to_string(), request, *max_wait_ms),
            }
            at_ms += gap_ms;
            stage.pass_to_ms(at_ms);
        }
        stage.pass_to_ms(at_ms + 60_000);
        prop_assert_eq!(stage.limiter.waiters(), 0);
        let number = |name: &str| name.parse::<usize>().unwrap();
        let passed: Vec<(u64, usize, usize, u64)> = stage.passed().into_iter().map(|(name, at_ms)| {
            let (who, units, ..) = steps[number(name)];
            (at_ms, number(name), who, units)
        }).collect();
        let mut all = checked;
        all.extend(passed.iter().map(|(at_ms, _, who, units)| (*at_ms, *who, *units)));
        all.sort_unstable();
        for (first, (from_ms, ..)) in all.iter().enumerate() {
            for (to_ms, ..) in &all[first..] {
                // An instant in whole milliseconds may be almost one later.
                let span_ms = to_ms - from_ms + 1;
                let within = all.iter().filter(|(ms, ..)| (from_ms..=to_ms).contains(&ms));
                let sum = |mine: &dyn Fn(usize) -> bool| {
                    within.clone().filter(|(_, who, _)| mine(*who)).map(|(.., units)| units).sum::<u64>()
                };
                prop_assert!(sum(&|_| true) * 1_000 <= 4_000 + 3 * span_ms);
                for user in 0..3 {
                    prop_assert!(sum(&|who| who == user) * 1_000 <= 2_000 + 2 * span_ms);
                }
            }
        }
        for user in 0..3 {
            let mine: Vec<usize> =
                passed.iter().filter(|(_, _, who, _)| *who == user).map(|(_, number, ..)| *number).collect();
            prop_assert!(mine.is_sorted(), "{mine:?}");
        }
    }
}
