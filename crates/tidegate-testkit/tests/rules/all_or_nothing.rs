//! Rule 1: every limit of a request is charged, or none. A refusal charges nothing.

use std::future::{Future, pending};
use std::task::{Context, Waker};

use tidegate::Amount;
use tidegate::{Outcome, Request, Timer};

use crate::{Fixture, seconds, user};

#[test]
fn every_limit_is_charged_or_none_in_either_order_rule_1() {
    let limits = ["  small: { by: user, total: 1 }", "  large: { by: user, total: 9 }"];
    for order in [[0, 1], [1, 0]] {
        let fixture = Fixture::with_limits(&order.map(|index| limits[index]).join("\n"));
        assert_eq!(fixture.count_allowed(5, &user("u")), 1);
        let large = order.iter().position(|index| *index == 1).unwrap();
        assert_eq!(fixture.remaining(large, &user("u")), 8);
    }
}

#[test]
fn every_limit_is_charged_or_none_for_every_algorithm_rule_1() {
    let fixture = Fixture::with_policy(
        "identity: { attributes: { size: given } }
limits:
  a: { by: user, token_bucket: 9/h burst 9 }
  b: { by: user, sliding_window: 9/h }
  c: { by: user, sliding_counter: 9/h }
  d: { by: user, fixed_window: 9/h }
  e: { by: user, quota: 9/day }
  f: { by: user, concurrency: 9 }
  g: { by: user, total: 9 }
  h: { by: user, value: size, ceiling: 10 }
",
    );
    let too_large = user("u").attribute("size", "11");
    assert_eq!(fixture.count_allowed(20, &too_large), 0);
    for index in 0..7 {
        assert_eq!(fixture.remaining(index, &user("u")), 9);
    }
    assert_eq!(fixture.count_allowed(20, &user("u").attribute("size", "10")), 9);
}

#[test]
fn a_refusal_makes_no_reservation_and_holds_no_place_rule_1() {
    let fixture = Fixture::with_limits(
        "  places: { by: user, concurrency: 5 }\n  few: { by: user, total: 1 }",
    );
    assert!(fixture.check(&user("u")).reservation.is_some_and(|lease| lease.holds_place()));
    for _ in 0..9 {
        assert!(fixture.check(&user("u").reserve()).reservation.is_none());
    }
    assert_eq!(fixture.remaining(0, &user("u")), 4);
}

#[test]
fn a_refusal_does_not_postpone_the_recovery_rule_1() {
    let specs = [
        ("token_bucket: 1/min burst 1", 60),
        ("sliding_window: 1/min", 60),
        ("fixed_window: 1/min", 60),
        ("sliding_counter: 1/min", 120),
        ("concurrency: 1", 60),
        ("quota: 1/day", 15 * 3_600),
    ];
    for (spec, recovery) in specs {
        let fixture = Fixture::with_limits(&format!("  a: {{ by: user, {spec} }}"));
        assert_eq!(fixture.count_allowed(1, &user("u")), 1, "{spec}");
        for passed in 0..recovery.min(120) {
            let left = fixture.check(&user("u")).retry_after();
            assert_eq!(left, Some(seconds(recovery - passed)), "{spec} after {passed} s");
            fixture.advance(seconds(1));
        }
        fixture.advance(seconds(recovery - recovery.min(120)));
        assert_eq!(fixture.outcome(&user("u")), Outcome::Allowed, "{spec}");
    }
}

#[test]
fn a_warning_limit_is_not_charged_while_it_is_over_rule_1() {
    let fixture = Fixture::with_limits(
        "  soft: { by: user, sliding_window: 2/min, exceed: warn }
  hard: { by: user, sliding_window: 5/h }",
    );
    let seen: Vec<Outcome> = (0..6).map(|_| fixture.outcome(&user("u"))).collect();
    use Outcome::{Allowed, Limited, Warned};
    assert_eq!(seen, [Allowed, Allowed, Warned, Warned, Warned, Limited]);
    fixture.advance(seconds(60));
    assert_eq!(
        fixture.remaining(0, &user("u")),
        2,
        "three that passed while over were not charged"
    );
    assert_eq!(fixture.remaining(1, &user("u")), 0);
}

#[test]
fn a_warning_names_its_limit_and_the_request_passes_rule_1() {
    let fixture = Fixture::with_limits("  soft: { by: user, total: 1, exceed: warn }");
    fixture.check(&user("u"));
    let warned = fixture.check(&user("u"));
    assert_eq!((warned.limit_name(), warned.status()), (Some("soft"), 200));
    assert_eq!(warned.warnings().collect::<Vec<_>>(), ["soft"]);
    assert_eq!(warned.retry_after(), None);
}

#[test]
fn a_shadow_limit_counts_and_reports_but_never_refuses_rule_1() {
    let fixture = Fixture::with_limits(
        "  dark: { by: user, total: 2, shadow: true }\n  hard: { by: user, total: 9 }",
    );
    for expected in [true, true, false, false] {
        let decision = fixture.check(&user("u"));
        assert_eq!(decision.outcome, Outcome::Allowed);
        assert_eq!(decision.limit_name(), Some("hard"), "never in headers");
        assert_eq!(
            (decision.limits[0].is_allowed(), decision.limits[0].charged),
            (expected, expected)
        );
    }
    assert_eq!(fixture.remaining(1, &user("u")), 5);
}

#[test]
fn a_refused_request_charges_no_warning_and_no_shadow_limit_rule_1() {
    let fixture = Fixture::with_limits(
        "  soft: { by: user, total: 5, exceed: warn }
  dark: { by: user, total: 5, shadow: true }
  hard: { by: user, total: 1 }",
    );
    assert_eq!(fixture.count_allowed(4, &user("u")), 1);
    assert_eq!([fixture.remaining(0, &user("u")), fixture.remaining(1, &user("u"))], [4, 4]);
}

#[test]
fn a_peek_and_a_cost_of_zero_charge_nothing_rule_1() {
    let fixture = Fixture::with_limits("  a: { by: user, total: 2 }");
    for _ in 0..5 {
        assert!(fixture.limiter.peek(&user("u")).unwrap().is_allowed());
        assert!(fixture.check(&user("u").cost(Amount::ZERO)).is_allowed());
    }
    assert_eq!(fixture.count_allowed(5, &user("u")), 2);
}

#[test]
fn a_request_is_charged_only_on_limits_that_apply_rule_1() {
    let fixture = Fixture::with_policy(
        "operations: { write: POST /things }
limits:
  writes: { when: write, by: user, total: 1 }
  all:    { by: user, total: 3 }
",
    );
    let write = Request::new("POST", "/things").user("u");
    assert_eq!(fixture.count_allowed(2, &write), 1);
    assert_eq!(fixture.count_allowed(5, &user("u")), 2);
}

/// A timer that never fires.
struct Never;

impl Timer for Never {
    fn sleep(&self, _: std::time::Duration) -> impl Future<Output = ()> + Send {
        pending()
    }
}

#[test]
fn a_refusal_behind_waiting_requests_charges_nothing_rule_1() {
    let fixture = Fixture::with_limits(
        "  own: { by: user, token_bucket: 1/s burst 1, exceed: wait 5s }
  shared: { by: global, token_bucket: 1/s burst 9 }",
    );
    assert_eq!(fixture.outcome(&user("u")), Outcome::Allowed);
    let request = user("u");
    let mut waits = Box::pin(fixture.limiter.acquire(&request, None, &Never));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    assert_eq!((fixture.limiter.waiters(), fixture.remaining(1, &user("v"))), (1, 8));
    fixture.advance(seconds(1));
    // The waiting request gets the token.
    assert_eq!(fixture.count_allowed(5, &user("u")), 0);
    assert_eq!(fixture.remaining(1, &user("v")), 9);
    drop(waits);
    assert_eq!(fixture.count_allowed(5, &user("u")), 1);
}
