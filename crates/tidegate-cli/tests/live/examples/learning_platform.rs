//! The learning platform: tiers by role, endpoint rules, headers on every answer.

use serde_json::{Value, json};

use super::{Caller, Example, assert_headers, assert_refusal};

const NAME: &str = "learning-platform";

/// The 429 of the learning platform, for a limit.
fn body(limit: u64) -> Value {
    json!({
        "error": "RATE_LIMIT_EXCEEDED",
        "message": "Too many requests. Please slow down.",
        "retryAfter": 60,
        "limit": limit,
        "window": "1m",
    })
}

fn assert_limited(caller: &mut Caller, burst: u64, limit: u64, method: &str, target: &str) {
    let refusal = caller.exhaust(burst, limit.div_ceil(60), method, target);
    assert_refusal(&refusal, limit, 60, "retryAfter", body(limit));
    assert_eq!(refusal.header("content-type"), Some("application/json"));
}

#[test]
fn each_tier_has_its_limit_and_burst_and_reads_the_printed_refusal() {
    let example = Example::start(NAME);
    assert_limited(&mut example.caller(), 5, 30, "GET", "/api/courses");
    let tiers = [("learner", 20, 100), ("premium", 50, 300), ("instructor", 100, 500)];
    for (role, burst, limit) in tiers {
        let mut member = example.behind_proxy(&[("X-User-Id", role), ("X-User-Role", role)]);
        assert_limited(&mut member, burst, limit, "GET", "/api/courses");
    }
    let mut admin = example.behind_proxy(&[("X-User-Id", "root"), ("X-User-Role", "admin")]);
    assert_limited(&mut admin, 100, 500, "GET", "/api/courses");
}

#[test]
fn endpoint_rules_count_apart_from_the_tier() {
    let example = Example::start(NAME);
    let mut member = example.behind_proxy(&[("X-User-Id", "u1"), ("X-User-Role", "admin")]);
    for (target, limit) in [("/auth/login", 5), ("/api/submissions", 10), ("/api/grading/42", 5)] {
        assert_limited(&mut member, limit, limit, "POST", target);
    }
    let mut visitor = example.caller();
    assert_limited(&mut visitor, 5, 5, "POST", "/auth/register");
    // The tier's own count is unchanged.
    assert_headers(&visitor.send("GET", "/api/courses"), 30, 4);
    assert_headers(&member.send("GET", "/api/courses"), 500, 99);
}

#[test]
fn every_answer_says_limit_remaining_and_reset() {
    let example = Example::start(NAME);
    let mut learner = example.behind_proxy(&[("X-User-Id", "u1")]);
    assert_headers(&learner.send("GET", "/api/courses"), 100, 19);
    assert_headers(&learner.send("POST", "/auth/login"), 5, 4);
}

#[test]
fn health_and_internal_callers_are_never_limited() {
    let example = Example::start(NAME);
    let mut visitor = example.caller();
    let mut service = example.behind_proxy(&[("X-Forwarded-For", "10.1.2.3")]);
    for _ in 0..50 {
        for target in ["/health", "/ready"] {
            let answer = visitor.send("GET", target);
            assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (200, None));
        }
        let answer = service.send("POST", "/auth/login");
        assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (200, None));
    }
    assert_eq!(example.upstream.count(), 150);
}
