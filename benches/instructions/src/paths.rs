//! The hot paths, each set up so that a call of it is always the same work.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a measurement may stop at a surprise")]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::Verdict;
use tidegate::clock::{Clock, Now};
use tidegate::engine::simulate::TestFile;
use tidegate::{
    HashKey, Jitter, Keyed, Limiter, NewMark, Outcome, Policy, Rate, Request, Response, Subject,
};

use crate::callgrind::counted_begin;

/// How often what each path is named for is done while it is counted.
pub(crate) const TIMES: u64 = 4_000;
/// How many users take turns.
const USERS: usize = 500;
/// How many keys do: so many that it does not matter where a random secret puts them.
const KEYS: usize = 4_000;
/// How many others are banned: a million take as many instructions, but minutes to count.
const BANS: usize = 20_000;
const REALISTIC: &str = include_str!("../../policies/realistic.yaml");
const ONE_BUCKET: &str =
    "{ tidegate: 1, name: one, limits: { per-user: { by: user, token_bucket: 1m/s } } }";

/// Something that is done for every request.
pub(crate) struct Path {
    /// What the record calls it.
    pub(crate) name: &'static str,
    /// How often a call does it.
    at_once: u64,
    /// Makes it ready to be called.
    ready: fn() -> Box<dyn FnMut()>,
}

impl Path {
    const fn new(name: &'static str, ready: fn() -> Box<dyn FnMut()>) -> Self {
        Self { name, at_once: 1, ready }
    }
}

/// More than is ever asked for.
const PLENTY: u64 = 1_000_000;

pub(crate) const PATHS: [Path; 13] = [
    Path::new("keyed-check", keyed),
    Path {
        name: "keyed-check-in-a-batch-of-16",
        at_once: 16,
        ready: || keyed_batch(PLENTY, |verdict| verdict == Verdict::Allowed),
    },
    Path {
        name: "keyed-check-refused-in-a-batch-of-16",
        at_once: 16,
        ready: || keyed_batch(1, |verdict| verdict != Verdict::Allowed),
    },
    Path::new("decision-one-limit", || decision(ONE_BUCKET, "GET", "/", Outcome::Allowed)),
    Path::new("decision-one-limit-beside-bans", beside_bans),
    Path::new("decision-three-of-twelve", || {
        decision(REALISTIC, "POST", "/rooms/r9/bookings", Outcome::Allowed)
    }),
    Path { name: "decision-in-a-batch-of-16", at_once: 16, ready: batch },
    Path::new("decision-refused", || {
        decision(REALISTIC, "POST", "/rooms/r9/reviews", Outcome::Limited)
    }),
    Path::new("decision-banned", banned),
    Path::new("decision-exempt", || decision(REALISTIC, "GET", "/healthz", Outcome::Exempt)),
    Path::new("answer-allowed", || answer("/rooms/r9/bookings", Outcome::Allowed)),
    Path::new("answer-refused", || answer("/rooms/r9/reviews", Outcome::Limited)),
    Path { name: "simulated-request", at_once: TIMES, ready: simulated },
];

/// Runs all paths in their order, each made ready before it is counted.
pub(crate) fn run_all() {
    for path in PATHS {
        let mut call = (path.ready)();
        let calls = TIMES / path.at_once;
        // Tables have grown by then.
        (0..calls).for_each(|_| call());
        counted_begin(calls, &mut call);
    }
}

/// Keys in turn, each with one bucket.
fn keyed() -> Box<dyn FnMut()> {
    let (keyed, keys, mut turn) = (bucket(PLENTY), keys(KEYS), 0);
    Box::new(move || {
        turn = (turn + 1) % KEYS;
        assert_eq!(keyed.check(&keys[turn]), Verdict::Allowed);
    })
}

/// Keys that have been asked for before.
fn keyed_batch(burst: u64, is_expected: fn(Verdict) -> bool) -> Box<dyn FnMut()> {
    let (keyed, keys, mut turn) = (bucket(burst), keys(KEYS), 0);
    let mut verdicts = Vec::new();
    keyed.check_all(&keys, &mut verdicts);
    Box::new(move || {
        turn = (turn + 16) % (KEYS - 16);
        verdicts.clear();
        keyed.check_all(&keys[turn..turn + 16], &mut verdicts);
        assert!(verdicts.iter().all(|verdict| is_expected(*verdict)));
    })
}

fn bucket(burst: u64) -> Keyed {
    let number = |number: u64| NonZeroU32::new(number.try_into().unwrap()).unwrap();
    let rate = Rate::per_hour(number(burst.min(1_000))).burst(number(burst));
    Keyed::token_bucket(rate).unwrap()
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|user| format!("user-{user:020}")).collect()
}

/// A clock that goes on by itself, so that every run sees the same times.
#[derive(Debug)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Now {
        let us = self.0.fetch_add(1, Ordering::Relaxed);
        Now { steady_us: us, unix_us: us }
    }
}

fn limiter(policy: &str) -> Limiter {
    let policy = Policy::parse("p.yaml", policy).unwrap_or_else(|errors| panic!("{errors}"));
    let clock = Ticking(AtomicU64::new(1_767_603_600_000_000));
    let limiter = Limiter::builder().policy(policy).clock(clock).hash_key(HashKey::new([7; 16]));
    limiter.build().unwrap()
}

fn decide(limiter: &Limiter, request: &Request<'_>, outcome: Outcome) {
    let decision = limiter.check(request).unwrap();
    assert_eq!(decision.outcome, outcome);
    black_box(decision);
}

/// Users in turn, who do the same.
fn decision(
    policy: &str,
    method: &'static str,
    path: &'static str,
    outcome: Outcome,
) -> Box<dyn FnMut()> {
    decision_of(limiter(policy), method, path, outcome)
}

/// The same as with one limit, where many others are banned.
fn beside_bans() -> Box<dyn FnMut()> {
    let limiter = limiter(ONE_BUCKET);
    for other in 0..BANS {
        limiter.ban(&NewMark::new(Subject::user(format!("other-{other}")))).unwrap();
    }
    decision_of(limiter, "GET", "/", Outcome::Allowed)
}

fn decision_of(
    limiter: Limiter,
    method: &'static str,
    path: &'static str,
    outcome: Outcome,
) -> Box<dyn FnMut()> {
    let request = |user| Request::new(method, path).user(user).tier("plus");
    let requests: Vec<Request<'_>> = keys(USERS).into_iter().map(request).collect();
    if outcome == Outcome::Limited {
        let used_up = |request: &Request<'_>| limiter.check(request).unwrap().is_allowed();
        requests.iter().for_each(|request| while used_up(request) {});
    }
    let mut turn = 0;
    Box::new(move || {
        turn = (turn + 1) % USERS;
        decide(&limiter, &requests[turn], outcome);
    })
}

/// The same as three of twelve, sixteen in a call.
fn batch() -> Box<dyn FnMut()> {
    let limiter = limiter(REALISTIC);
    let booking = |user| Request::new("POST", "/rooms/r9/bookings").user(user).tier("plus");
    let requests: Vec<Request<'_>> = keys(USERS).into_iter().map(booking).collect();
    let mut turn = 0;
    Box::new(move || {
        turn = (turn + 16) % (USERS - 16);
        for decided in limiter.check_batch(&requests[turn..turn + 16]) {
            assert!(black_box(decided.unwrap()).is_allowed());
        }
    })
}

fn banned() -> Box<dyn FnMut()> {
    let limiter = limiter(REALISTIC);
    limiter.ban(&NewMark::new(Subject::user("mallory"))).unwrap();
    let request = Request::new("POST", "/rooms/r9/bookings").user("mallory");
    Box::new(move || decide(&limiter, &request, Outcome::Banned))
}

fn answer(path: &'static str, outcome: Outcome) -> Box<dyn FnMut()> {
    let limiter = limiter(REALISTIC);
    let request = Request::new("POST", path).user("u1");
    let mut decision = limiter.check(&request).unwrap();
    while decision.outcome != outcome {
        decision = limiter.check(&request).unwrap();
    }
    Box::new(move || drop(black_box(Response::of(&decision, Jitter::None))))
}

/// A policy test, as `tidegate test` runs it.
fn simulated() -> Box<dyn FnMut()> {
    let text = format!(
        "
policy: p.yaml
tests:
  - name: users
    request: {{ method: POST, path: /rooms/r9/bookings, user: 'u{{n}}', tier: plus }}
    steps:
      - {{ times: {TIMES}, spread: 1ms, expect: {{ outcome: allowed, tier: plus }} }}
"
    );
    let file = TestFile::parse("t.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    Box::new(move || {
        let report = file.run("p.yaml", REALISTIC, None).unwrap();
        assert!(report.tests[0].failure.is_none());
    })
}
