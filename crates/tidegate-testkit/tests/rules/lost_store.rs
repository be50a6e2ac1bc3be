//! Rule 8: decisions while the store is lost.

use tidegate::{Decision, Jitter, Limiter, Outcome, Request, Response};
use tidegate_testkit::block_on;
use tidegate_testkit::scripted::{Script, ScriptedStore};

use crate::{policy, user};

struct LostStore {
    limiter: Limiter<ScriptedStore>,
}

impl LostStore {
    fn off(rest: &str) -> Self {
        let store = ScriptedStore::new(Script::new().down());
        Self { limiter: Limiter::builder().policy(policy(rest)).store(store).build().unwrap() }
    }

    fn restore(&self) {
        self.limiter.store().play(Script::new());
    }

    fn check(&self, request: &Request<'_>) -> Decision {
        block_on(self.limiter.check_async(request)).unwrap()
    }
}

#[test]
fn deny_answers_as_its_limit_does_and_says_degraded_rule_8() {
    let cut = LostStore::off(
        "limits:
  a: { by: user, sliding_window: 5/min, on_store_failure: deny, status: 420, message: Slow down }
response: { body: { why: \"{message}\", limit: \"{name}\", wait: \"{retry_after}\" } }",
    );
    let refused = cut.check(&user("u"));
    assert!(refused.degraded);
    assert_eq!((refused.outcome, refused.limit_name()), (Outcome::Limited, Some("a")));
    let response = Response::of(&refused, Jitter::None);
    assert_eq!(response.status, 420);
    assert_eq!(response.header("retry-after"), None);
    let body = response.body().unwrap();
    assert!(body.contains("Slow down") && body.contains("\"a\""), "{body}");
}

#[test]
fn the_default_status_of_a_lost_store_is_429_and_never_5xx_rule_8() {
    let cut = LostStore::off("limits:\n  a: { by: user, total: 5, on_store_failure: deny }");
    let refused = cut.check(&user("u"));
    assert_eq!(refused.status(), 429);
    let response = Response::of(&refused, Jitter::None);
    assert!(response.body().unwrap().contains("#temporary-reduced-capacity"));
}

#[test]
fn deny_ranks_as_the_longest_wait_rule_8() {
    let cut = LostStore::off(
        "limits:
  near: { by: user, sliding_window: 1/h }
  lost: { when: { method: POST }, by: user, sliding_window: 9/s, on_store_failure: deny }",
    );
    assert_eq!(cut.check(&user("u")).outcome, Outcome::Allowed);
    assert_eq!(cut.check(&user("u")).limit_name(), Some("near"));
    let post = Request::new("POST", "/things").user("u");
    assert_eq!(cut.check(&post).limit_name(), Some("lost"));
}

#[test]
fn requests_that_allow_lets_through_are_not_charged_afterwards_rule_8() {
    let cut = LostStore::off("limits:\n  a: { by: user, total: 2, on_store_failure: allow }");
    for _ in 0..9 {
        let passed = cut.check(&user("u"));
        assert_eq!((passed.outcome, passed.degraded), (Outcome::Allowed, true));
        assert!(!passed.limits[0].charged);
    }
    cut.restore();
    let outcomes: Vec<Outcome> = (0..3).map(|_| cut.check(&user("u")).outcome).collect();
    assert_eq!(outcomes, [Outcome::Allowed, Outcome::Allowed, Outcome::Limited]);
}

#[test]
fn a_reserved_request_that_was_only_allowed_has_nothing_to_settle_rule_8() {
    let cut = LostStore::off("limits:\n  a: { by: user, total: 2, on_store_failure: allow }");
    assert!(cut.check(&user("u").reserve()).reservation.is_none());
}

#[test]
fn defaults_apply_to_limits_without_a_failure_mode_rule_8() {
    let cut = LostStore::off(
        "defaults: { on_store_failure: deny }
limits:
  a: { when: { method: GET }, by: user, total: 5 }
  b: { when: { method: POST }, by: user, total: 5, on_store_failure: allow }",
    );
    assert_eq!(cut.check(&user("u")).outcome, Outcome::Limited);
    assert_eq!(cut.check(&Request::new("POST", "/").user("u")).outcome, Outcome::Allowed);
}

#[test]
fn exempt_and_blocked_do_not_need_the_store_rule_8() {
    let cut = LostStore::off(
        "exempt:
  - path: /health
block: { ips: [203.0.113.0/24] }
limits:
  a: { by: ip, total: 5, on_store_failure: deny }",
    );
    let health = cut.check(&Request::new("GET", "/health"));
    assert_eq!((health.outcome, health.degraded), (Outcome::Exempt, false));
    let bad = Request::new("GET", "/").ip([203, 0, 113, 1].into());
    assert_eq!(cut.check(&bad).outcome, Outcome::Blocked);
}

#[test]
fn a_healthy_store_is_never_called_degraded_rule_8() {
    let cut = LostStore::off("limits:\n  a: { by: user, total: 1 }");
    cut.restore();
    assert!(!cut.check(&user("u")).degraded);
    assert!(!cut.check(&user("u")).degraded);
}

const GUARDED: &str = "
limits: { a: { by: user, total: 1 } }
penalties: { p: { event: limited, by: user, within: 1h, ladder: { 3: { ban: 1h }, 9: {} } } }
";

#[test]
fn known_bans_stay_while_the_store_is_lost_rule_8() {
    let cut = LostStore::off(GUARDED);
    cut.restore();
    for _ in 0..4 {
        cut.check(&user("u"));
    }
    cut.limiter.store().play(Script::new().down());
    let banned = cut.check(&user("u"));
    assert_eq!(banned.outcome, Outcome::Banned);
}

#[test]
fn the_node_counts_on_from_the_stores_last_answer_rule_8() {
    let cut = LostStore::off(GUARDED);
    cut.restore();
    for _ in 0..3 {
        assert_ne!(cut.check(&user("u")).outcome, Outcome::Banned);
    }
    cut.limiter.set_nodes(3);
    cut.limiter.store().play(Script::new().down());
    let third = cut.check(&user("u"));
    assert_eq!((third.outcome, third.degraded), (Outcome::Banned, true));
}

#[test]
fn a_denial_by_a_lost_store_makes_no_event_and_no_grace_covers_it_rule_8() {
    let policy = "
limits: { a: { by: user, total: 1, on_store_failure: deny } }
penalties: { p: { event: limited, by: user, within: 1h, ladder: { 1: { allow: true }, 2: { ban: 1h } } } }
";
    let cut = LostStore::off(policy);
    for _ in 0..5 {
        assert_eq!(cut.check(&user("u")).outcome, Outcome::Limited);
    }
    cut.restore();
    assert_eq!(cut.check(&user("u")).outcome, Outcome::Allowed);
}
