//! Requests: a rich policy decides any of them, and a refusal costs nothing.

#![allow(clippy::unwrap_used, reason = "a target that cannot be set up must fail")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bolero::check;
use tidegate::Amount;
use tidegate::clock::FakeClock;
use tidegate::engine::policy::Options;
use tidegate::{
    Decision, HashKey, Jitter, Limiter, Outcome, Policy, Request, Reservation, Response, Settlement,
};
use tidegate_fuzz::{Choices, bytes, corpus};

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "HEAD", "", "odd method"];
const PATHS: [&str; 26] = [
    "/rooms/",
    "r1",
    "r2",
    "/bookings",
    "/buy",
    "/shop/a",
    "/read",
    "/health",
    "/",
    "..",
    "%2e",
    "%2f",
    "%00",
    "?page=",
    "1",
    "2",
    "&",
    "%41",
    "+",
    "#",
    "?",
    ";x",
    "%",
    "é",
    "*",
    "{room}",
];
const ADDRESSES: [&str; 8] = [
    "10.0.0.1",
    "192.0.2.1",
    "198.51.100.7",
    "::1",
    "2001:db8::1",
    "2001:db8:0:ff::1",
    "::ffff:10.0.0.2",
    "::ffff:192.0.2.1",
];
const NAMES: [&str; 14] = [
    "Forwarded",
    "X-User",
    "x-tier",
    "X-Internal",
    "X-Kyc",
    "x-key",
    "X-Action",
    "X-Device",
    "amount",
    "email",
    "room",
    "price",
    "odd",
    "",
];
const VALUES: [&str; 24] = [
    "u1",
    "free",
    "premium",
    "anonymous",
    "nobody",
    "s3cret",
    "1",
    "2",
    "0.5",
    "-1",
    "1e9",
    "buy",
    "99.999999",
    "4000000000",
    "99999999999999999999",
    "for=192.0.2.9",
    "for=\"",
    " A@b.C ",
    "",
    "\r\n",
    "é",
    "\0",
    "call",
    "default",
];
const BODIES: [&str; 22] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"user\":",
    "{\"email\":\"A@b.c\"}",
    "\"items\":",
    "[{\"price\":0.5}]",
    "[{\"price\":1e9}]",
    "\"a/b\":",
    "{\"~\":true}",
    "\"\\ud800\"",
    "null",
    "\"x\"",
    "-1.50",
    "{\"user\":{\"email\":\" X@y.z \"},\"items\":[{\"price\":1.25}]}",
    " ",
    "\\",
    "[[[[[[[[",
    "true",
];

#[test]
fn the_corpus_holds() {
    assert!(!corpus("requests").is_empty());
    for seed in 0..=255_u8 {
        let bytes: Vec<u8> = (0..400)
            .scan(seed, |byte, _| {
                *byte = byte.wrapping_mul(167).wrapping_add(seed | 1);
                Some(*byte)
            })
            .collect();
        hold(&bytes);
    }
}

#[test]
fn arbitrary_requests() {
    check!()
        .with_iterations(1_500)
        .with_generator(bytes(1_024))
        .for_each(|bytes: &Vec<u8>| hold(bytes));
}

fn hold(bytes: &[u8]) {
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let limiter = limiter(&clock);
    let mut choices = Choices::new(bytes);
    let mut leases = Vec::new();
    for _ in 0..32 {
        let request = request(&mut choices);
        decided(&limiter, &request, &mut leases);
        if let Some(lease) = leases.last_mut() {
            amend(&limiter, lease, &mut choices);
        }
        clock.advance(Duration::from_micros(choices.number() % 100_000_000_000));
        if choices.is_empty() {
            break;
        }
    }
}

fn limiter(clock: &FakeClock) -> Limiter {
    let env = BTreeMap::from([("SECRET".to_owned(), "s3cret".to_owned())]);
    let text = corpus("requests").remove(0);
    let checked = Policy::check("rich.yaml", &text, &Options { profile: None, env }).unwrap();
    let builder = Limiter::builder().policy(checked.policy).clock(clock.clone());
    builder.hash_key(HashKey::new([3; 16])).build().unwrap()
}

fn request(choices: &mut Choices<'_>) -> Request<'static> {
    let mut request = Request::default();
    if choices.byte() > 20 {
        let method = choices.word(&METHODS);
        request = request.method(method).path(path(choices));
    }
    if choices.flag() {
        request = request.peer(address(choices));
    }
    if choices.flag() {
        request = request.ip(address(choices));
    }
    if choices.flag() {
        request = request.user(choices.word(&VALUES)).tier(choices.word(&VALUES));
    }
    if choices.byte() < 40 {
        request = request.named(choices.word(&["call", "book", "buy", "default", "nobody", ""]));
    }
    for _ in 0..choices.below(4) {
        request = request.header(choices.word(&NAMES), choices.text(&VALUES, 3));
    }
    for _ in 0..choices.below(3) {
        request = request.attribute(choices.word(&NAMES), choices.text(&VALUES, 2));
    }
    if choices.flag() {
        request = request.body(Cow::Owned(choices.text(&BODIES, 8).into_bytes()));
    }
    if choices.byte() < 60 {
        request = request.cost(Amount::from_micros(choices.number()).unwrap_or(Amount::MAX));
    }
    match choices.byte() {
        0..=30 => request.reserve(),
        31..=40 => request.country(choices.word(&VALUES)),
        41..=45 => request.policy(choices.word(&["rich", "poor"])),
        _ => request,
    }
}

/// Mostly a path that some limit applies to.
fn path(choices: &mut Choices<'_>) -> Cow<'static, str> {
    match choices.byte() {
        0..=60 => "/rooms/r1/bookings".into(),
        61..=100 => "/buy".into(),
        101..=140 => "/a/read?page=1".into(),
        _ => choices.text(&PATHS, 8).into(),
    }
}

fn address(choices: &mut Choices<'_>) -> IpAddr {
    choices.word(&ADDRESSES).parse().unwrap()
}

/// Asserts that a peek predicts the decision, and that a refusal charges nothing.
fn decided(limiter: &Limiter, request: &Request<'_>, leases: &mut Vec<Reservation>) {
    let before = limiter.peek(request);
    let explained = limiter.explain(request);
    let (before, mut decision) = match (before, limiter.check(request)) {
        (Ok(before), Ok(decision)) => (before, decision),
        (before, decision) => {
            assert_eq!(before.err(), decision.err());
            return;
        }
    };
    assert_eq!(before.outcome, decision.outcome, "{request:?}");
    assert_eq!(before.retry_after(), decision.retry_after(), "{request:?}");
    assert!(before.limits.iter().all(|report| !report.charged), "{request:?}");
    if let Ok(explained) = explained {
        assert_eq!(explained.operation, decision.operation());
        let applied = explained.limits.iter().filter(|limit| limit.applies.is_ok()).count();
        let skipped = matches!(decision.outcome, Outcome::Exempt | Outcome::Blocked);
        assert_eq!(decision.limits.len(), if skipped { 0 } else { applied }, "{request:?}");
    }
    rendered(&decision);
    if !decision.is_allowed() {
        assert!(decision.limits.iter().all(|report| !report.charged), "{request:?}");
        assert!(decision.reservation.is_none(), "{request:?}");
        let after = limiter.peek(request).unwrap();
        assert_eq!(before.limits, after.limits, "a refusal is free: {request:?}");
    }
    leases.extend(decision.reservation.take());
}

fn rendered(decision: &Decision) {
    for jitter in [Jitter::None, Jitter::Millionths(u32::MAX)] {
        let response = Response::of(decision, jitter);
        assert_eq!(response.body().is_some(), !decision.is_allowed());
        assert!((200..600).contains(&response.status));
        for (name, value) in response.headers() {
            assert!(!value.contains(['\r', '\n', '\0']), "{name}: {value:?}");
        }
    }
}

fn amend(limiter: &Limiter, lease: &mut Reservation, choices: &mut Choices<'_>) {
    match choices.byte() % 8 {
        0 => limiter.settle(lease, Settlement::Cost(Amount::MAX)).unwrap(),
        1 => limiter.settle(lease, Settlement::Cost(Amount::ZERO)).unwrap(),
        2 => limiter.settle(lease, Settlement::Status(401)).unwrap(),
        3 => limiter.settle(lease, Settlement::Aborted).unwrap(),
        4 => limiter.settle(lease, Settlement::Refund).unwrap(),
        5 => drop(limiter.release(lease).unwrap()),
        6 => drop(limiter.renew(lease).unwrap()),
        _ => {}
    }
}
