//! Many threads on few keys; the checkers judge the log afterwards.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

mod run;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use run::{Run, THREADS, USERS, by_user, policy};
use tidegate::Amount;
use tidegate::clock::{Clock, FakeClock};
use tidegate::engine::algorithm::{Spec, sliding_window};
use tidegate::{Limiter, Request};
use tidegate_testkit::checkers::bounds::{self, Hold};
use tidegate_testkit::checkers::liveness;

/// 2026-01-06T00:00:00Z.
const MIDNIGHT_US: u64 = 1_767_657_600_000_000;

const EVERY_KIND: &str = "
  everybody:     { by: global, token_bucket: 200/s burst 50 }
  user-bucket:   { by: user, token_bucket: 70/s burst 25 }
  user-sliding:  { by: user, sliding_window: 40/500ms }
  user-counter:  { by: user, sliding_counter: 50/700ms }
  user-fixed:    { by: user, fixed_window: 30/300ms }
  user-quota:    { by: user, quota: 90/day }
  user-total:    { by: user, total: 160 }
";

/// One limit for all, and one for each user by each algorithm; all are reached.
const PAIRS: [&str; 6] = [
    "token_bucket: 70/s burst 10",
    "sliding_window: 10/100ms",
    "sliding_counter: 10/100ms",
    "fixed_window: 10/100ms",
    "quota: 20/day",
    "total: 20",
];

#[test]
fn threads_on_few_keys_keep_the_promise_of_each_algorithm() {
    for spec in PAIRS {
        let limits = format!(
            "  everybody: {{ by: global, token_bucket: 100/s burst 40 }}\n  user: {{ by: user, {spec} }}"
        );
        let run = contend(&limits, 40);
        for index in 0..2 {
            let met = run.log(index).1.iter().any(|entry| !entry.admitted);
            assert!(met, "{spec}: limit {index} was never reached, a weak test");
        }
        judge(&run);
    }
}

#[test]
fn threads_on_few_keys_keep_every_promise_at_once() {
    judge(&contend(EVERY_KIND, 60));
}

fn contend(limits: &str, steps: usize) -> Run {
    let clock = FakeClock::at_unix(Duration::from_micros(MIDNIGHT_US - 900_000));
    Run::in_steps(limits, &clock, steps, 37_000, |thread, turn| {
        let cost = [500_000, 1_000_000, 2_000_000, 1][(thread + turn) % 4];
        (USERS[(thread * turn) % 3], Amount::from_micros(cost).unwrap())
    })
}

fn judge(run: &Run) {
    assert!(run.decisions.iter().any(|decided| decided.allowed), "nobody came in");
    for index in 0..run.limits() {
        let (spec, log) = run.log(index);
        let bound = match spec {
            Spec::TokenBucket(spec) => bounds::token_bucket(&log, &spec, Amount::ZERO),
            Spec::SlidingWindow(spec) => bounds::sliding_window(&log, &spec),
            Spec::SlidingCounter(spec) => bounds::sliding_counter(&log, &spec),
            Spec::FixedWindow(spec) => bounds::fixed_window(&log, spec.limit, spec.window_us),
            Spec::Quota(spec) => bounds::quota(&log, spec.limit, &[MIDNIGHT_US]),
            Spec::Total(spec) => bounds::total(&log, spec.limit),
            Spec::Concurrency(_) | Spec::Ceiling(_) => Ok(()),
        };
        bound.unwrap();
        liveness::check_no_denial_in_vain(&log, &spec).unwrap();
        liveness::check_retries_admitted(&log).unwrap();
    }
}

#[test]
fn levels_are_charged_together_under_contention() {
    let clock = FakeClock::at_unix(Duration::from_micros(MIDNIGHT_US));
    let run = Run::in_steps(EVERY_KIND, &clock, 20, 37_000, |thread, turn| {
        (USERS[(thread + turn) % 3], Amount::ONE)
    });
    for decided in &run.decisions {
        let charged = decided.reports.iter().filter(|report| report.charged).count();
        let expected = if decided.allowed { decided.reports.len() } else { 0 };
        assert_eq!(charged, expected, "{decided:?}");
    }
    // The final states agree with the answers.
    for user in USERS {
        let admitted =
            run.decisions.iter().filter(|decided| decided.user == user && decided.allowed).count();
        let total = run.limiter.peek(&by_user(user)).unwrap().limits[6];
        assert_eq!(total.remaining(), 160 - u64::try_from(admitted).unwrap());
    }
}

#[test]
fn a_refusal_by_the_shared_limit_charges_no_user() {
    let limits = "
  user:      { by: user, total: 10_000 }
  everybody: { by: global, sliding_window: 5/min }
  client:    { by: client, token_bucket: 1000/h burst 1000 }
";
    let clock = FakeClock::at_unix(Duration::from_micros(MIDNIGHT_US));
    let run = Run::in_steps(limits, &clock, 4, 1_000_000, |thread, turn| {
        (USERS[(thread + turn) % 3], Amount::ONE)
    });
    let allowed = run.decisions.iter().filter(|decided| decided.allowed).count();
    assert_eq!(allowed, 5);
    let spent = |index: usize, limit: u64| {
        let left = |user| run.limiter.peek(&by_user(user)).unwrap().limits[index].remaining();
        USERS.iter().map(|user| limit - left(user)).sum::<u64>()
    };
    assert_eq!(spent(0, 10_000), 5);
    // The refill of four seconds is rounded down to whole tokens.
    assert!(spent(2, 1_000) <= 5);
}

#[test]
fn time_that_moves_while_threads_decide_admits_no_more() {
    let limits = "
  bucket:  { by: global, token_bucket: 100/s burst 20 }
  sliding: { by: user, sliding_window: 300/10s }
";
    let clock = FakeClock::at_unix(Duration::from_micros(MIDNIGHT_US));
    let limiter = Limiter::builder().policy(policy(limits)).clock(clock.clone()).build().unwrap();
    let hammer = |thread: usize| {
        let user = |turn: usize| USERS[(thread + turn) % 3];
        let decide = |turn| {
            clock.advance(Duration::from_micros(1_000));
            run::decide(&limiter, &clock, user(turn), Amount::ONE)
        };
        (0..4_000).map(decide).collect::<Vec<_>>()
    };
    let decisions: Vec<_> = thread::scope(|scope| {
        let hammer = &hammer;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || hammer(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    // A decision may be carried out later than its time says, because time goes on meanwhile. The
    // promise holds for the instants at which decisions are carried out.
    let late_us = decisions.iter().map(|decided| decided.late_us).max().unwrap();
    let run = Run { limiter, decisions };
    let (Spec::TokenBucket(bucket), log) = run.log(0) else { panic!("a bucket") };
    let slack = Amount::from_micros(100 * late_us).unwrap();
    bounds::token_bucket(&log, &bucket, slack).unwrap();
    let span_us = clock.now().steady_us - MIDNIGHT_US;
    let admitted: u64 =
        log.iter().filter(|entry| entry.admitted).map(|entry| entry.cost.micros()).sum();
    assert!(admitted <= 20_000_000 + 100 * span_us, "{admitted} in {span_us} µs");
    let (Spec::SlidingWindow(sliding), log) = run.log(1) else { panic!("a window") };
    let window_us = sliding.window_us.saturating_sub(late_us).max(1);
    bounds::sliding_window(&log, &sliding_window::Spec { window_us, ..sliding }).unwrap();
}

#[test]
fn places_are_never_held_by_too_many_at_once() {
    let policy = policy("  places: { by: user, concurrency: 2, lease: 1h }");
    let limiter = Limiter::new(policy);
    let order = AtomicU64::new(1);
    let take_turns = |thread: usize| {
        let mut holds = Vec::new();
        for turn in 0..500 {
            let user = USERS[(thread + turn) % 3];
            let Some(mut lease) = limiter.check(&by_user(user)).unwrap().reservation else {
                continue;
            };
            let from_us = order.fetch_add(1, Ordering::SeqCst);
            thread::yield_now();
            assert!(limiter.renew(&lease).unwrap());
            let until_us = order.fetch_add(1, Ordering::SeqCst);
            assert!(limiter.release(&mut lease).unwrap());
            holds.push(Hold { key: user.to_owned(), from_us, until_us, places: Amount::ONE });
        }
        holds
    };
    let holds: Vec<Hold> = thread::scope(|scope| {
        let take_turns = &take_turns;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || take_turns(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(holds.len() > 100, "hardly anybody held a place: a weak test");
    bounds::concurrency(&holds, Amount::from_units(2).unwrap()).unwrap();
    for user in USERS {
        assert_eq!(limiter.peek(&by_user(user)).unwrap().limits[0].remaining(), 2);
    }
}

#[test]
fn a_lone_client_that_waits_as_told_gets_in_at_the_second_try() {
    let limiter = Limiter::new(policy(
        "  a: { by: user, token_bucket: 100/s burst 1 }
  b: { by: user, sliding_window: 1/7ms }
  c: { by: user, fixed_window: 2/30ms }",
    ));
    thread::scope(|scope| {
        for client in 0..THREADS {
            let limiter = &limiter;
            scope.spawn(move || {
                let request = Request::new("GET", "/").user(format!("client-{client}"));
                for _ in 0..10 {
                    let Some(wait) = limiter.check(&request).unwrap().retry_after() else {
                        continue;
                    };
                    thread::sleep(wait);
                    assert!(limiter.check(&request).unwrap().is_allowed());
                }
            });
        }
    });
}

#[test]
fn all_clients_that_wait_as_told_get_in_though_they_share_a_limit() {
    let limiter = Limiter::new(policy("  a: { by: global, token_bucket: 500/s burst 2 }"));
    let tries = |client: usize| {
        let request = Request::new("GET", "/").user(format!("client-{client}"));
        for tries in 1..10_000 {
            match limiter.check(&request).unwrap().retry_after() {
                None => return tries,
                Some(wait) => thread::sleep(wait.min(Duration::from_secs(1))),
            }
        }
        panic!("client {client} never got in")
    };
    let tries = &tries;
    thread::scope(|scope| {
        for client in 0..4 * THREADS {
            scope.spawn(move || assert!(tries(client) >= 1));
        }
    });
}
