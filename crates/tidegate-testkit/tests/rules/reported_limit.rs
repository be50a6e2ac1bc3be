//! Rule 4: which limit a decision names, and its `retry_after`, `remaining` and `reset`.

use std::time::Duration;

use tidegate::Amount;
use tidegate::Outcome;

use crate::{Fixture, seconds, user};

fn units(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

#[test]
fn retry_after_is_the_earliest_instant_for_each_algorithm_rule_4() {
    let specs = [
        "token_bucket: 7/min burst 3",
        "sliding_window: 3/min",
        "sliding_counter: 3/min",
        "fixed_window: 3/min",
        "quota: 3/day",
        "quota: 3/week",
        "quota: 3/month",
        "concurrency: 3",
    ];
    for spec in specs {
        let fixture = Fixture::with_limits(&format!("  a: {{ by: user, {spec} }}"));
        for _ in 0..3 {
            assert_eq!(fixture.outcome(&user("u")), Outcome::Allowed, "{spec}");
            fixture.clock.advance(Duration::from_micros(1_234_567));
        }
        let wait = fixture.check(&user("u")).retry_after().unwrap();
        fixture.advance(wait - std::time::Duration::from_micros(1));
        assert_eq!(fixture.outcome(&user("u")), Outcome::Limited, "{spec}: {wait:?}");
        fixture.clock.advance(Duration::from_micros(1));
        assert_eq!(fixture.outcome(&user("u")), Outcome::Allowed, "{spec}: {wait:?}");
    }
}

#[test]
fn retry_after_is_for_the_same_cost_rule_4() {
    let fixture = Fixture::with_limits("  a: { by: user, token_bucket: 1/s burst 10 }");
    fixture.check(&user("u").cost(units(10)));
    let wait = |cost| fixture.check(&user("u").cost(units(cost))).retry_after();
    assert_eq!([wait(1), wait(4), wait(10)], [1, 4, 10].map(|s| Some(seconds(s))));
    assert_eq!(wait(11), None, "no waiting helps");
}

#[test]
fn where_no_waiting_helps_there_is_no_retry_after_rule_4() {
    let fixture = Fixture::with_policy(
        "identity: { attributes: { size: given } }
limits:
  all:  { by: user, total: 1 }
  size: { by: user, value: size, ceiling: 5 }
",
    );
    let large = fixture.check(&user("u").attribute("size", "6"));
    assert_eq!((large.limit_name(), large.retry_after()), (Some("size"), None));
    fixture.check(&user("u"));
    let more = fixture.check(&user("u"));
    assert_eq!((more.limit_name(), more.retry_after()), (Some("all"), None));
}

#[test]
fn of_several_denying_limits_the_longest_wait_is_named_rule_4() {
    let fixture = Fixture::with_limits(
        "  short: { by: user, sliding_window: 1/s }
  long:  { by: user, sliding_window: 1/h }
  mid:   { by: user, sliding_window: 1/min }",
    );
    fixture.check(&user("u"));
    let refused = fixture.check(&user("u"));
    assert_eq!((refused.limit_name(), refused.retry_after()), (Some("long"), Some(seconds(3_600))));
    assert_eq!(refused.limits.iter().filter(|report| !report.is_allowed()).count(), 3);
    fixture.advance(seconds(3_600));
    assert_eq!(fixture.outcome(&user("u")), Outcome::Allowed, "the wait covers all of them");
}

#[test]
fn no_retry_after_ranks_as_the_longest_wait_rule_4() {
    let fixture = Fixture::with_limits(
        "  long:  { by: user, sliding_window: 1/1000day }\n  never: { by: user, total: 1 }",
    );
    fixture.check(&user("u"));
    let refused = fixture.check(&user("u"));
    assert_eq!((refused.limit_name(), refused.retry_after()), (Some("never"), None));
}

#[test]
fn of_equal_waits_the_first_limit_of_the_policy_is_named_rule_4() {
    let fixture = Fixture::with_limits(
        "  b: { by: user, sliding_window: 1/min }\n  a: { by: user, sliding_window: 1/min }",
    );
    fixture.check(&user("u"));
    assert_eq!(fixture.check(&user("u")).limit_name(), Some("b"));
}

#[test]
fn a_warning_limit_is_never_named_before_a_denying_one_rule_4() {
    let fixture = Fixture::with_limits(
        "  soft: { by: user, total: 1, exceed: warn }\n  hard: { by: user, sliding_window: 1/s }",
    );
    fixture.check(&user("u"));
    assert_eq!(fixture.check(&user("u")).limit_name(), Some("hard"));
}

#[test]
fn when_all_limits_allow_the_smallest_remaining_share_is_named_rule_4() {
    let fixture = Fixture::with_limits(
        "  few:  { by: user, total: 10 }
  many: { by: ip, total: 1000 }
  odd:  { by: user, total: 9, cost: 0.5 }",
    );
    let seen: Vec<String> =
        (0..2).map(|_| fixture.check(&user("u")).limit_name().unwrap().to_owned()).collect();
    assert_eq!(seen, ["few", "few"], "8.5/9 and 9/10: less of its own capacity");
    let ip: std::net::IpAddr = [192, 0, 2, 1].into();
    let other = |cost| user("v").ip(ip).cost(cost);
    assert_eq!(fixture.check(&other(units(0))).limit_name(), Some("odd"), "cost is named there");
    fixture.limiter.check(&tidegate::Request::new("GET", "/").ip(ip).cost(units(999))).unwrap();
    assert_eq!(fixture.check(&other(units(1))).limit_name(), Some("many"));
}

#[test]
fn remaining_is_rounded_down_rule_4() {
    let fixture = Fixture::with_limits("  a: { by: user, token_bucket: 1/s burst 3 }");
    let half = Amount::parse("0.5").unwrap();
    let remaining = |cost| fixture.check(&user("u").cost(cost)).limit().unwrap().remaining();
    assert_eq!([remaining(half), remaining(half), remaining(half)], [2, 2, 1]);
    fixture.clock.advance(Duration::from_micros(499_999));
    assert_eq!(fixture.remaining(0, &user("u")), 1);
    fixture.clock.advance(Duration::from_micros(1));
    assert_eq!(fixture.remaining(0, &user("u")), 2);
}

#[test]
fn reset_is_the_instant_when_nothing_is_owed_rule_4() {
    let specs = [
        ("token_bucket: 1/s burst 9", 2),
        ("sliding_window: 9/min", 60),
        ("fixed_window: 9/h", 3_599),
        ("quota: 9/day", 15 * 3_600 - 1),
        ("quota: 9/week", 7 * 86_400 - 9 * 3_600 - 1),
        ("quota: 9/month", 27 * 86_400 - 9 * 3_600 - 1),
        ("concurrency: 9", 60),
    ];
    for (spec, reset) in specs {
        let fixture = Fixture::with_limits(&format!("  a: {{ by: user, {spec} }}"));
        fixture.check(&user("u"));
        fixture.advance(seconds(1));
        let cost = if spec.starts_with("token") { units(2) } else { units(1) };
        let decision = fixture.check(&user("u").cost(cost));
        assert_eq!(
            decision.limits[0].reset_after(),
            Some(std::time::Duration::from_secs(reset)),
            "{spec}"
        );
    }
    let fixture = Fixture::with_limits("  a: { by: user, total: 9 }");
    assert_eq!(fixture.check(&user("u")).limits[0].reset_after(), None);
}
