//! How often a decision asks the allocator for memory, once its keys are known: exactly, so that a
//! change for the better is written down, too.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::time::Duration;

use tidegate::clock::FakeClock;
use tidegate::engine::marks::MarkKind;
use tidegate::{Limiter, NewMark, Outcome, Policy, Report, Request, Subject};

const POLICY: &str = "
tidegate: 1
name: hostel
tiers: [free, premium]
identity: { default_tier: free }
operations:
  booking: POST /rooms/{room}/bookings
  review: POST /rooms/{room}/reviews
  health: GET /healthz
exempt:
  - path: /healthz
limits:
  booking-user: { when: booking, by: user, token_bucket: { free: 1k/s, premium: 2k/s } }
  booking-room: { when: booking, by: room, fixed_window: 1k/s }
  review-user: { when: review, by: user, quota: 1/day }
  everything: { by: global, sliding_counter: 1k/s }
";

#[test]
fn an_allowed_decision_allocates_nothing() {
    let booking = Request::new("POST", "/rooms/r9/bookings").user("u1").tier("premium");
    assert_eq!(allocations(&booking, Outcome::Allowed, 3), 0);
}

#[test]
fn a_refusal_allocates_nothing() {
    let review = Request::new("POST", "/rooms/r9/reviews").user("u1");
    assert_eq!(allocations(&review, Outcome::Limited, 2), 0);
}

#[test]
fn the_refusal_of_a_banned_client_allocates_a_copy_of_its_ban() {
    let request = Request::new("POST", "/rooms/r9/bookings").user("banned");
    assert_eq!(allocations(&request, Outcome::Banned, 0), 6);
}

#[test]
fn a_decision_beside_bans_of_every_kind_allocates_nothing() {
    let policy = "
tidegate: 1
name: kinds
identity: { attributes: { email: given } }
limits: { a: { by: user, token_bucket: 1k/s } }
events: { bad: {}, good: {} }
penalties: { p: { event: bad, by: [ip, client, email], within: 1h, ladder: { 9: { ban: 1h } } } }
ratios: { r: { of: bad, to: good, by: user, within: 1h, at_least: 1 } }
factors: { f: { by: user, good: [r < 50%], step: 0.1 every 1h, range: 0.5..2 } }
";
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let policy = Policy::parse("kinds.yaml", policy).unwrap_or_else(|errors| panic!("{errors}"));
    let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    let part = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let several = vec![part("ip", "192.0.2.9"), part("client", "user:u9"), part("email", "a@b.c")];
    for subject in [
        Subject::user("u9"),
        Subject::client("ip:192.0.2.9"),
        Subject::ip([192, 0, 2, 9].into()),
        Subject::network("198.51.100.0/24".parse().unwrap()),
        Subject::of_parts(several),
    ] {
        limiter.ban(&NewMark::new(subject.clone())).unwrap();
        limiter.ban(&NewMark::new(subject).policy("kinds")).unwrap();
    }
    let other = Request::new("GET", "/").user("u9").ip([192, 0, 2, 1].into());
    limiter.report(&Report::new("good", other)).unwrap();
    assert_eq!(limiter.marks().count(MarkKind::Factor), 1);
    let request = Request::new("GET", "/").user("u1").ip([192, 0, 2, 1].into());
    let request = request.attribute("email", "d@e.f");
    assert_eq!(allocations_of(&limiter, &clock, &request, Outcome::Allowed, 1), 0);
}

#[test]
fn a_decision_by_a_factor_and_of_every_kind_of_limit_allocates_nothing() {
    let policy = "
tidegate: 1
name: kinds
tiers: [free, premium]
identity: { default_tier: free }
limits:
  bucket: { by: user, token_bucket: { free: 1k/s, premium: 2k/s }, scaled: true }
  exact: { by: user, sliding_window: { free: 100/s, premium: 200/s }, scaled: true }
  counter: { by: user, sliding_counter: 1k/s, scaled: true }
  window: { by: user, fixed_window: 1k/s }
  month: { by: user, quota: 1m/month }
  ever: { by: user, total: 1m }
events: { bad: {}, good: {} }
ratios: { r: { of: bad, to: good, by: user, within: 1h, at_least: 1 } }
factors: { f: { by: user, good: [r < 50%], step: 0.1 every 1h, range: 0.5..2 } }
";
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let policy = Policy::parse("kinds.yaml", policy).unwrap_or_else(|errors| panic!("{errors}"));
    let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    limiter.ban(&NewMark::new(Subject::user("u9"))).unwrap();
    let request = Request::new("GET", "/").user("u1").tier("premium");
    limiter.report(&Report::new("good", request.clone())).unwrap();
    clock.advance(Duration::from_micros(3_600_000_000));
    limiter.report(&Report::new("good", request.clone())).unwrap();
    assert!(limiter.check(&request).unwrap().limits[0].available.whole() > 2_000, "it is scaled");
    // The log of an exact window grows with what it holds, up to as much as fits its limit.
    for _ in 0..1_000 {
        clock.advance(Duration::from_micros(7_000));
        limiter.check(&request).unwrap();
    }
    assert_eq!(allocations_of(&limiter, &clock, &request, Outcome::Allowed, 6), 0);
}

#[test]
fn an_exempt_request_allocates_nothing() {
    assert_eq!(allocations(&Request::new("GET", "/healthz"), Outcome::Exempt, 0), 0);
}

/// How often a decision allocates that has been made before, with this outcome of so many limits.
fn allocations(request: &Request<'_>, outcome: Outcome, limits: usize) -> u64 {
    let policy = Policy::parse("hostel.yaml", POLICY).unwrap_or_else(|errors| panic!("{errors}"));
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    limiter.ban(&NewMark::new(Subject::user("banned"))).unwrap();
    allocations_of(&limiter, &clock, request, outcome, limits)
}

fn allocations_of(
    limiter: &Limiter,
    clock: &FakeClock,
    request: &Request<'_>,
    outcome: Outcome,
    limits: usize,
) -> u64 {
    for _ in 0..2 {
        limiter.check(request).unwrap();
    }
    clock.advance(Duration::from_micros(1));
    let counted = allocation_counter::measure(|| {
        let decision = limiter.check(request).unwrap();
        assert_eq!((decision.outcome, decision.limits.len()), (outcome, limits));
    });
    assert_eq!(counted.bytes_current, 0, "nothing is kept");
    counted.count_total
}
