//! Rule 5: a changed spec keeps what is owed, whether a reload, a tier or a factor changes it.

use std::time::Duration;

use tidegate::{Outcome, Request};

use crate::{Fixture, seconds, user};

/// A spec of each algorithm that keeps a state, by its number.
const KINDS: [fn(u64) -> String; 7] = [
    |n| format!("token_bucket: 1/h burst {n}"),
    |n| format!("sliding_window: {n}/h"),
    |n| format!("sliding_counter: {n}/h"),
    |n| format!("fixed_window: {n}/h"),
    |n| format!("quota: {n}/day"),
    |n| format!("concurrency: {n}"),
    |n| format!("total: {n}"),
];

fn limits(spec: &str) -> String {
    format!("limits:\n  a: {{ by: user, {spec} }}")
}

#[test]
fn a_raised_limit_adds_only_the_difference_rule_5() {
    for kind in KINDS {
        let fixture = Fixture::with_policy(&limits(&kind(3)));
        assert_eq!(fixture.count_allowed(9, &user("u")), 3);
        fixture.reload(&limits(&kind(5)));
        assert_eq!(fixture.count_allowed(9, &user("u")), 2, "{}", kind(5));
    }
}

#[test]
fn a_lowered_limit_counts_what_was_spent_before_rule_5() {
    for kind in KINDS {
        let fixture = Fixture::with_policy(&limits(&kind(9)));
        assert_eq!(fixture.count_allowed(3, &user("u")), 3);
        fixture.reload(&limits(&kind(4)));
        assert_eq!(fixture.count_allowed(9, &user("u")), 1, "{}", kind(4));
        fixture.reload(&limits(&kind(2)));
        assert_eq!(fixture.count_allowed(9, &user("u")), 0, "{}", kind(2));
    }
}

#[test]
fn reloading_the_same_policy_changes_nothing_rule_5() {
    for kind in KINDS {
        let fixture = Fixture::with_policy(&limits(&kind(4)));
        for _ in 0..4 {
            assert_eq!(fixture.count_allowed(1, &user("u")), 1);
            fixture.reload(&limits(&kind(4)));
        }
        assert_eq!(fixture.count_allowed(9, &user("u")), 0, "{}", kind(4));
    }
}

#[test]
fn a_change_of_tier_keeps_the_count_rule_5() {
    for kind in KINDS {
        let (name, free) =
            kind(2).split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let premium = kind(5).split_once(": ").unwrap().1.to_owned();
        let fixture = Fixture::with_policy(&format!(
            "identity: {{ default_tier: free }}
limits:
  a: {{ by: user, {name}: {{ free: {free}, premium: {premium} }} }}"
        ));
        let as_tier = |tier: &'static str| Request::new("GET", "/").user("u").tier(tier);
        assert_eq!(fixture.count_allowed(9, &as_tier("free")), 2, "{name}");
        assert_eq!(fixture.count_allowed(9, &as_tier("premium")), 3, "{name}");
        assert_eq!(fixture.count_allowed(9, &as_tier("free")), 0, "{name}");
        assert_eq!(fixture.count_allowed(9, &as_tier("premium")), 0, "{name}");
    }
}

#[test]
fn a_change_to_a_slower_limit_never_refills_it_rule_5() {
    let changes = [
        ("token_bucket: 10/s burst 20", "token_bucket: 1/s burst 20"),
        ("sliding_window: 20/s", "sliding_window: 20/h"),
        ("sliding_counter: 20/s", "sliding_counter: 20/h"),
        ("fixed_window: 20/s", "fixed_window: 20/h"),
        ("quota: 20/day", "quota: 20/month"),
    ];
    for (old, new) in changes {
        let fixture = Fixture::with_policy(&limits(old));
        assert_eq!(fixture.count_allowed(30, &user("u")), 20, "{old}");
        fixture.reload(&limits(new));
        assert_eq!(fixture.count_allowed(30, &user("u")), 0, "{new}");
    }
}

#[test]
fn a_key_refused_by_a_slower_limit_outlives_the_faster_one_rule_5() {
    let changes = [
        ("token_bucket: 10/s burst 20", "token_bucket: 20/day burst 20"),
        ("sliding_window: 20/s", "sliding_window: 20/h"),
        ("fixed_window: 20/s", "fixed_window: 20/h"),
    ];
    for (old, new) in changes {
        let fixture = Fixture::with_policy(&limits(old));
        assert_eq!(fixture.count_allowed(30, &user("u")), 20, "{old}");
        fixture.reload(&limits(new));
        assert_eq!(fixture.outcome(&user("u")), Outcome::Limited, "{new}");
        fixture.advance(seconds(60));
        for other in 0..100 {
            fixture.check(&user(&other.to_string()));
        }
        assert_eq!(fixture.count_allowed(30, &user("u")), 0, "{new}");
    }
}

#[test]
fn a_place_survives_a_reload_and_can_be_released_rule_5() {
    let fixture = Fixture::with_policy(&limits("concurrency: 2, lease: 10s"));
    let mut lease = fixture.check(&user("u")).reservation.unwrap();
    fixture.reload(&limits("concurrency: 1, lease: 20s"));
    assert_eq!(fixture.outcome(&user("u")), Outcome::Limited);
    assert!(fixture.limiter.renew(&lease).unwrap());
    assert!(fixture.limiter.release(&mut lease).unwrap());
    assert_eq!(fixture.outcome(&user("u")), Outcome::Allowed);
}

#[test]
fn another_algorithm_or_another_by_starts_a_new_count_rule_5() {
    let fixture = Fixture::with_policy(&limits("total: 1"));
    assert_eq!(fixture.count_allowed(2, &user("u")), 1);
    fixture.reload("limits:\n  a: { by: [user, path], total: 1 }");
    assert_eq!(fixture.count_allowed(2, &user("u")), 1);
    fixture.reload(&limits("sliding_window: 1/h"));
    assert_eq!(fixture.count_allowed(2, &user("u")), 1);
}

#[test]
fn a_reload_that_only_adds_limits_keeps_the_others_rule_5() {
    let fixture = Fixture::with_policy("limits:\n  a: { by: user, total: 3 }");
    assert_eq!(fixture.count_allowed(2, &user("u")), 2);
    fixture.reload("limits:\n  b: { by: user, total: 9 }\n  a: { by: user, total: 3 }");
    assert_eq!(fixture.remaining(0, &user("u")), 9);
    assert_eq!(fixture.remaining(1, &user("u")), 1);
}

/// Two tiers share one address: the refill of the generous tier does not pay the strict tier's debt.
fn tiers_behind_one_address(spec: &str, wait: Duration) {
    let fixture = Fixture::with_policy(&format!(
        "identity: {{ default_tier: free }}
limits:
  a: {{ by: ip, {spec} }}"
    ));
    let anonymous = Request::new("GET", "/").ip([192, 0, 2, 1].into());
    let logged_in = Request::new("GET", "/").ip([192, 0, 2, 1].into()).user("u").tier("free");
    for _ in 0..3 {
        assert!(fixture.check(&anonymous).is_allowed(), "{spec}");
    }
    assert!(!fixture.check(&anonymous).is_allowed(), "{spec}");
    fixture.clock.advance(wait);
    assert!(fixture.check(&logged_in).is_allowed(), "{spec}");
    assert!(!fixture.check(&anonymous).is_allowed(), "{spec}: a full limit was handed back");
}

#[test]
fn tiers_that_share_a_key_count_apart_rule_5() {
    let minute = Duration::from_secs(61);
    tiers_behind_one_address("token_bucket: { anonymous: 3/h, free: 100/s }", minute);
    tiers_behind_one_address("sliding_window: { anonymous: 3/h, free: 100/min }", minute);
    tiers_behind_one_address("sliding_counter: { anonymous: 3/h, free: 100/min }", minute);
    tiers_behind_one_address("fixed_window: { anonymous: 3/h, free: 100/min }", minute);
}

#[test]
fn unknown_rows_of_a_map_share_one_count_rule_5() {
    let fixture = Fixture::with_policy(
        "identity: { attributes: { plan: { header: X-Plan } } }
limits:
  a: { by: ip, tier_by: plan, quota: { gold: 9/day, default: 2/day } }",
    );
    let with = |plan| Request::new("GET", "/").ip([192, 0, 2, 1].into()).header("X-Plan", plan);
    assert!(fixture.check(&with("x1")).is_allowed());
    assert!(fixture.check(&with("x2")).is_allowed());
    assert!(!fixture.check(&with("x3")).is_allowed(), "a made-up plan is no new allowance");
    assert!(fixture.check(&with("gold")).is_allowed());
}

#[test]
fn a_limit_that_becomes_a_tier_map_keeps_its_count_in_the_default_row_rule_5() {
    let fixture = Fixture::with_policy(
        "identity: { default_tier: free }\nlimits:\n  a: { by: ip, quota: 2/day }",
    );
    let request = Request::new("GET", "/").ip([192, 0, 2, 1].into()).user("u");
    assert!(fixture.check(&request).is_allowed() && fixture.check(&request).is_allowed());
    fixture.reload("identity: { default_tier: free }\nlimits:\n  a: { by: ip, quota: { free: 2/day, anonymous: 1/day, default: 9/day } }");
    assert!(!fixture.check(&request).is_allowed());
}

/// Spends two at the fast pace and the rest at the slow one, then tries the fast one again, each as
/// another tier of the same user.
fn there_and_back(spec: &str, wait: Duration) {
    let fixture = Fixture::with_policy(&format!(
        "identity: {{ default_tier: free }}
limits:
  a: {{ by: user, {spec} }}"
    ));
    let as_tier = |tier: &'static str| Request::new("GET", "/").user("u").tier(tier);
    assert_eq!(fixture.count_allowed(2, &as_tier("free")), 2, "{spec}");
    assert_eq!(fixture.count_allowed(30, &as_tier("premium")), 8, "{spec}");
    fixture.advance(wait);
    assert_eq!(fixture.count_allowed(1, &as_tier("premium")), 0, "{spec}");
    assert_eq!(fixture.count_allowed(1, &as_tier("free")), 1, "{spec}");
    for other in 0..100 {
        fixture.check(&user(&other.to_string()));
    }
    assert_eq!(
        fixture.count_allowed(30, &as_tier("premium")),
        0,
        "{spec}: a full limit was handed back"
    );
}

#[test]
fn a_change_of_tier_and_back_refills_nothing_rule_5() {
    there_and_back("quota: { free: 2/day, premium: 10/month }", seconds(86_400));
    there_and_back("fixed_window: { free: 2/min, premium: 10/h }", seconds(120));
    there_and_back("sliding_counter: { free: 2/min, premium: 10/h }", seconds(180));
    there_and_back("sliding_window: { free: 2/min, premium: 10/h }", seconds(120));
    there_and_back("token_bucket: { free: 2/s, premium: 10/day }", seconds(60));
}

fn factored(times: &str, rest: &str) -> Fixture {
    Fixture::with_policy(&format!(
        "identity: {{ attributes: {{ usd: given }} }}
limits: {{ a: {{ by: user, {rest} }} }}
factors: {{ some: {{ times: {times} }} }}"
    ))
}

#[test]
fn a_factor_rounds_count_and_burst_down_to_at_least_one_rule_5() {
    for (times, written, effective) in [
        ("0.5", "token_bucket: 5/min burst 3", "2/min burst 1"),
        ("0.5", "token_bucket: 1/min burst 1", "1/min"),
        ("0.1", "sliding_window: 19/min", "1/min"),
        ("0.001", "sliding_window: 5/min", "1/min"),
        ("1.5", "fixed_window: 3/min", "4/min"),
        ("10", "quota: 3/day", "30/day"),
        ("0.333333", "sliding_counter: 3/min", "1/min"),
        ("2", "total: 3", "3"),
        ("2", "concurrency: 3", "3"),
        ("2", "total: 3, scaled: true", "6"),
        ("2", "sliding_window: 3/min, scaled: false", "3/min"),
        ("2", "sliding_window: 3/min, cost: usd", "3/min"),
        ("2", "sliding_window: 3/min, cost: usd, scaled: true", "6/min"),
    ] {
        let fixture = factored(times, written);
        let decided = fixture.check(&user("u").attribute("usd", "1"));
        assert_eq!(decided.limits[0].spec.to_string(), effective, "{written} × {times}");
    }
}

#[test]
fn all_factors_that_apply_are_multiplied_rule_5() {
    let fixture = Fixture::with_policy(
        "limits: { a: { by: user, sliding_window: 100/min } }
factors:
  one: { times: 0.7 }
  two: { times: 0.7 }
  other: { when: { method: POST }, times: 3 }",
    );
    let decided = fixture.check(&user("u"));
    assert_eq!(
        (decided.factor_ppm(), decided.limits[0].spec.to_string()),
        (490_000, "49/min".into())
    );
}

#[test]
fn headers_and_explain_show_the_effective_spec_rule_5() {
    let fixture = factored("0.5", "sliding_window: 10/min");
    let decided = fixture.check(&user("u"));
    let response = tidegate::Response::of(&decided, tidegate::Jitter::None);
    assert_eq!(response.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(response.header("ratelimit-policy"), Some("\"a\";q=5;w=60"));
    let explained = fixture.limiter.explain(&user("u")).unwrap();
    assert_eq!(explained.factors, [("some".to_owned(), 500_000)]);
    assert_eq!(explained.limits[0].applies.as_ref().unwrap().spec, "5/min");
}

#[test]
fn a_factor_keeps_what_is_owed_and_refills_nothing_rule_5() {
    let fixture = Fixture::with_policy(
        "limits: { a: { by: user, sliding_window: 10/min } }
factors: { overload: { load_above: 80%, times: 0.5 } }",
    );
    assert_eq!(fixture.count_allowed(4, &user("u")), 4);
    fixture.limiter.set_load(900_000);
    assert_eq!(fixture.count_allowed(9, &user("u")), 1, "five in all");
    fixture.limiter.set_load(0);
    assert_eq!(fixture.count_allowed(20, &user("u")), 5, "ten in all");
    fixture.limiter.set_load(900_000);
    assert_eq!(fixture.count_allowed(9, &user("u")), 0);
}
