//! The hostel: strict windows and friendly buckets, tiers of bookings, and the log of a refusal.

use serde_json::{Value, json};

use super::{Caller, Example, assert_headers, exhaust, number};
use crate::support::Answer;

const NAME: &str = "hostel";

fn member(example: &Example, user: &str, tier: &str) -> Caller {
    example.behind_proxy(&[("X-User-Id", user), ("X-User-Tier", tier)])
}

/// A refusal by a limit over this window. With up to a tenth of jitter, waits may be longer.
fn assert_limited(refusal: &Answer, limit: u64, window: (&str, u64), message: &str) {
    assert_eq!(refusal.status, 429, "{}", refusal.text());
    assert_eq!(number(refusal, "x-ratelimit-limit"), limit);
    assert_eq!(number(refusal, "x-ratelimit-remaining"), 0);
    let wait = number(refusal, "retry-after");
    let longest = window.1 + window.1.div_ceil(10);
    assert!((1..=longest).contains(&wait), "Retry-After: {wait}");
    let expected = json!({
        "error": "RATE_LIMIT_EXCEEDED", "message": message, "retryAfter": wait, "limit": limit,
        "window": window.0,
    });
    assert_eq!(refusal.json(), expected);
}

#[test]
fn a_login_is_tried_five_times_a_minute_from_an_address() {
    let example = Example::start(NAME);
    let mut guest = example.caller();
    let login = |guest: &mut Caller, nth: usize| {
        let email = format!("guest{nth}@example.com");
        guest.send_json("POST", "/auth/login", &json!({ "email": email }))
    };
    for nth in 0..5 {
        assert_headers(&login(&mut guest, nth), 5, 4 - nth as u64);
    }
    let message = "Too many login attempts, please wait a moment";
    assert_limited(&login(&mut guest, 9), 5, ("1m", 60), message);
    assert_eq!(example.upstream.count(), 5);
}

#[test]
fn an_account_is_tried_twenty_times_an_hour_however_it_is_written_and_from_wherever() {
    let example = Example::start(NAME);
    let login = |octet: usize, email: &str| {
        let address = format!("192.0.2.{octet}");
        let mut guest = example.behind_proxy(&[("X-Forwarded-For", &address)]);
        guest.send_json("POST", "/api/auth/login", &json!({ "email": email }))
    };
    for octet in 0..20 {
        let email = ["a@example.com", " A@Example.COM "][octet % 2];
        assert_eq!(login(octet, email).status, 200);
    }
    let message = "Too many login attempts on this account";
    assert_limited(&login(99, "a@example.com"), 20, ("1h", 3600), message);
    assert_eq!(login(99, "b@example.com").status, 200);
    assert_eq!(example.upstream.last().body, br#"{"email":"b@example.com"}"#);
}

#[test]
fn three_messages_a_minute_from_an_address() {
    let example = Example::start(NAME);
    let mut guest = example.caller();
    guest.pass(3, "POST", "/contact");
    assert_limited(&guest.send("POST", "/api/contact"), 3, ("1m", 60), "Too many requests");
}

#[test]
fn bookings_a_minute_depend_on_the_plan() {
    let example = Example::start(NAME);
    for (tier, limit) in [("free", 2), ("premium", 10), ("unheard-of", 3)] {
        let mut guest = member(&example, tier, tier);
        for nth in 0..limit {
            let room = json!({ "room_id": format!("{tier}-{nth}") });
            assert_eq!(guest.send_json("POST", "/bookings", &room).status, 200);
        }
        let refusal = guest.send_json("POST", "/api/bookings", &json!({ "room_id": "r9" }));
        assert_limited(&refusal, limit, ("1m", 60), "Too many bookings, please slow down");
    }
}

#[test]
fn a_room_is_booked_a_hundred_times_a_day() {
    let example = Example::start(NAME);
    let book = |user: usize| {
        let mut guest = member(&example, &format!("u{user}"), "premium");
        guest.send_json("POST", "/bookings", &json!({ "room_id": "r1" }))
    };
    for user in 0..100 {
        assert_eq!(book(user).status, 200);
    }
    assert_limited(&book(100), 100, ("1d", 86_400), "Too many requests");
}

#[test]
fn availability_is_asked_a_hundred_times_a_minute() {
    let example = Example::start(NAME);
    let mut guest = example.caller();
    guest.pass(100, "GET", "/rooms/r1/availability");
    let refusal = guest.send("GET", "/api/rooms/r2/availability");
    assert_limited(&refusal, 100, ("1m", 60), "Too many requests");
}

#[test]
fn buckets_allow_bursts_of_twenty_bookings_and_a_hundred_room_queries() {
    let example = Example::start_with(NAME, &[], &["--profile", "buckets"]);
    let mut guest = member(&example, "u1", "free");
    let mut nth = 0;
    let refusal = exhaust(20, 1, || {
        nth += 1;
        guest.send_json("POST", "/bookings", &json!({ "room_id": format!("r{nth}") }))
    });
    assert_limited(&refusal, 1, ("1s", 1), "Too many requests");
    let refusal = guest.exhaust(100, 10, "GET", "/rooms/r1");
    assert_limited(&refusal, 10, ("1s", 1), "Too many requests");
}

#[test]
fn a_refusal_is_logged_with_every_fact() {
    let arguments = ["--log", "json", "--log-identities"];
    let example = Example::start_with(NAME, &[], &arguments);
    let mut guest =
        example.behind_proxy(&[("X-User-Id", "123"), ("X-Forwarded-For", "192.168.1.100")]);
    for nth in 0..3 {
        let room = json!({ "room_id": format!("r{nth}") });
        assert_eq!(guest.send_json("POST", "/api/bookings", &room).status, 200);
    }
    let room = json!({ "room_id": "r9" });
    assert_eq!(guest.send_json("POST", "/api/bookings", &room).status, 429);
    example.daemon.wait_for_log("\"event\":\"limited\"");
    let log = example.daemon.log();
    let line = log.lines().find(|line| line.contains("\"event\":\"limited\"")).unwrap();
    let mut record: Value = serde_json::from_str(line).unwrap();
    let timestamp = record["timestamp"].take();
    assert!(timestamp.as_str().unwrap().ends_with('Z'), "{timestamp}");
    for wait in ["retry_after_ms", "reset_ms"] {
        let ms = record[wait].take().as_u64().unwrap();
        assert!((1..=60_000).contains(&ms), "{wait}: {ms}");
    }
    for (name, expected) in [
        ("operation", json!("booking.create")),
        ("limit", json!("booking-minute")),
        ("algorithm", json!("sliding_window")),
        ("tier", json!("standard")),
        ("quota", json!(3)),
        ("window_ms", json!(60_000)),
        ("used", json!(3)),
        ("status", json!(429)),
        ("user", json!("123")),
        ("ip", json!("192.168.1.100")),
    ] {
        assert_eq!(record[name], expected, "{name}");
    }
}

#[test]
fn checks_are_counted_by_operation_and_result() {
    let example = Example::start(NAME);
    let mut guest = example.caller();
    guest.pass(3, "POST", "/contact");
    assert_eq!(guest.send("POST", "/contact").status, 429);
    let metrics = example.daemon.admin().get("/metrics").text();
    for (outcome, count) in [("allowed", 3), ("limited", 1)] {
        let line = format!(
            "tidegate_decisions_total{{operation=\"contact\",tier=\"guest\",outcome=\"{outcome}\"}} {count}"
        );
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
}
