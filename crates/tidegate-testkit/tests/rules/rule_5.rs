//! A changed spec keeps what is owed: by reload and by tier, for every algorithm.

use std::time::Duration;

use tidegate::{Outcome, Request};

use crate::{Desk, seconds, user};

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
fn rule_5_a_raised_limit_adds_only_the_difference() {
    for kind in KINDS {
        let desk = Desk::with_policy(&limits(&kind(3)));
        assert_eq!(desk.passing(9, &user("u")), 3);
        desk.reload(&limits(&kind(5)));
        assert_eq!(desk.passing(9, &user("u")), 2, "{}", kind(5));
    }
}

#[test]
fn rule_5_a_lowered_limit_counts_what_was_spent_before() {
    for kind in KINDS {
        let desk = Desk::with_policy(&limits(&kind(9)));
        assert_eq!(desk.passing(3, &user("u")), 3);
        desk.reload(&limits(&kind(4)));
        assert_eq!(desk.passing(9, &user("u")), 1, "{}", kind(4));
        desk.reload(&limits(&kind(2)));
        assert_eq!(desk.passing(9, &user("u")), 0, "{}", kind(2));
    }
}

#[test]
fn rule_5_reloading_the_same_again_changes_nothing() {
    for kind in KINDS {
        let desk = Desk::with_policy(&limits(&kind(4)));
        for _ in 0..4 {
            assert_eq!(desk.passing(1, &user("u")), 1);
            desk.reload(&limits(&kind(4)));
        }
        assert_eq!(desk.passing(9, &user("u")), 0, "{}", kind(4));
    }
}

#[test]
fn rule_5_another_tier_is_another_spec_of_the_same_state() {
    for kind in KINDS {
        let (name, free) =
            kind(2).split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let premium = kind(5).split_once(": ").unwrap().1.to_owned();
        let desk = Desk::with_policy(&format!(
            "identity: {{ default_tier: free }}
limits:
  a: {{ by: user, {name}: {{ free: {free}, premium: {premium} }} }}"
        ));
        let as_tier = |tier: &'static str| Request::new("GET", "/").user("u").tier(tier);
        assert_eq!(desk.passing(9, &as_tier("free")), 2, "{name}");
        assert_eq!(desk.passing(9, &as_tier("premium")), 3, "{name}");
        assert_eq!(desk.passing(9, &as_tier("free")), 0, "{name}");
        assert_eq!(desk.passing(9, &as_tier("premium")), 0, "{name}");
    }
}

#[test]
fn rule_5_a_slower_limit_never_hands_back_a_full_one() {
    let changes = [
        ("token_bucket: 10/s burst 20", "token_bucket: 1/s burst 20"),
        ("sliding_window: 20/s", "sliding_window: 20/h"),
        ("sliding_counter: 20/s", "sliding_counter: 20/h"),
        ("fixed_window: 20/s", "fixed_window: 20/h"),
        ("quota: 20/day", "quota: 20/month"),
    ];
    for (old, new) in changes {
        let desk = Desk::with_policy(&limits(old));
        assert_eq!(desk.passing(30, &user("u")), 20, "{old}");
        desk.reload(&limits(new));
        assert_eq!(desk.passing(30, &user("u")), 0, "{new}");
    }
}

#[test]
fn rule_5_a_key_refused_by_a_slower_limit_outlives_the_faster_one() {
    let changes = [
        ("token_bucket: 10/s burst 20", "token_bucket: 20/day burst 20"),
        ("sliding_window: 20/s", "sliding_window: 20/h"),
        ("fixed_window: 20/s", "fixed_window: 20/h"),
    ];
    for (old, new) in changes {
        let desk = Desk::with_policy(&limits(old));
        assert_eq!(desk.passing(30, &user("u")), 20, "{old}");
        desk.reload(&limits(new));
        assert_eq!(desk.outcome(&user("u")), Outcome::Limited, "{new}");
        desk.wait(seconds(60));
        for other in 0..100 {
            desk.check(&user(&other.to_string()));
        }
        assert_eq!(desk.passing(30, &user("u")), 0, "{new}");
    }
}

#[test]
fn rule_5_a_place_outlives_a_reload_and_can_be_given_back() {
    let desk = Desk::with_policy(&limits("concurrency: 2, lease: 10s"));
    let mut lease = desk.check(&user("u")).reservation.unwrap();
    desk.reload(&limits("concurrency: 1, lease: 20s"));
    assert_eq!(desk.outcome(&user("u")), Outcome::Limited);
    assert!(desk.limiter.renew(&lease).unwrap());
    assert!(desk.limiter.release(&mut lease).unwrap());
    assert_eq!(desk.outcome(&user("u")), Outcome::Allowed);
}

#[test]
fn rule_5_the_promise_is_within_one_algorithm_and_by() {
    let desk = Desk::with_policy(&limits("total: 1"));
    assert_eq!(desk.passing(2, &user("u")), 1);
    desk.reload("limits:\n  a: { by: [user, path], total: 1 }");
    assert_eq!(desk.passing(2, &user("u")), 1);
    desk.reload(&limits("sliding_window: 1/h"));
    assert_eq!(desk.passing(2, &user("u")), 1);
}

#[test]
fn rule_5_a_reload_that_only_adds_limits_keeps_the_others() {
    let desk = Desk::with_policy("limits:\n  a: { by: user, total: 3 }");
    assert_eq!(desk.passing(2, &user("u")), 2);
    desk.reload("limits:\n  b: { by: user, total: 9 }\n  a: { by: user, total: 3 }");
    assert_eq!(desk.remaining(0, &user("u")), 9);
    assert_eq!(desk.remaining(1, &user("u")), 1);
}

/// Behind one address two tiers meet: what the generous one refills, the strict one still owes.
fn tiers_behind_one_address(spec: &str, wait: Duration) {
    let desk = Desk::with_policy(&format!(
        "identity: {{ default_tier: free }}
limits:
  a: {{ by: ip, {spec} }}"
    ));
    let anonymous = Request::new("GET", "/").ip([192, 0, 2, 1].into());
    let logged_in = Request::new("GET", "/").ip([192, 0, 2, 1].into()).user("u").tier("free");
    for _ in 0..3 {
        assert!(desk.check(&anonymous).is_allowed(), "{spec}");
    }
    assert!(!desk.check(&anonymous).is_allowed(), "{spec}");
    desk.clock.advance(wait);
    assert!(desk.check(&logged_in).is_allowed(), "{spec}");
    assert!(!desk.check(&anonymous).is_allowed(), "{spec}: a full limit was handed back");
}

#[test]
fn rule_5_a_generous_tier_pays_back_nothing_for_a_strict_one_on_the_same_key() {
    let minute = Duration::from_secs(61);
    tiers_behind_one_address("token_bucket: { anonymous: 3/h, free: 100/s }", minute);
    tiers_behind_one_address("sliding_window: { anonymous: 3/h, free: 100/min }", minute);
    tiers_behind_one_address("sliding_counter: { anonymous: 3/h, free: 100/min }", minute);
    tiers_behind_one_address("fixed_window: { anonymous: 3/h, free: 100/min }", minute);
}

#[test]
fn rule_5_unknown_rows_of_a_map_share_one_count() {
    let desk = Desk::with_policy(
        "identity: { attributes: { plan: { header: X-Plan } } }
limits:
  a: { by: ip, tier_by: plan, quota: { gold: 9/day, default: 2/day } }",
    );
    let with = |plan| Request::new("GET", "/").ip([192, 0, 2, 1].into()).header("X-Plan", plan);
    assert!(desk.check(&with("x1")).is_allowed());
    assert!(desk.check(&with("x2")).is_allowed());
    assert!(!desk.check(&with("x3")).is_allowed(), "a made-up plan is no new allowance");
    assert!(desk.check(&with("gold")).is_allowed());
}

#[test]
fn rule_5_a_limit_that_gets_a_map_keeps_what_its_default_row_owes() {
    let desk = Desk::with_policy(
        "identity: { default_tier: free }\nlimits:\n  a: { by: ip, quota: 2/day }",
    );
    let request = Request::new("GET", "/").ip([192, 0, 2, 1].into()).user("u");
    assert!(desk.check(&request).is_allowed() && desk.check(&request).is_allowed());
    desk.reload("identity: { default_tier: free }\nlimits:\n  a: { by: ip, quota: { free: 2/day, anonymous: 1/day, default: 9/day } }");
    assert!(!desk.check(&request).is_allowed());
}

/// Two at the fast pace and all the rest at the slow one, then the fast one again, each as another
/// tier of the same user.
fn there_and_back(spec: &str, wait: Duration) {
    let desk = Desk::with_policy(&format!(
        "identity: {{ default_tier: free }}
limits:
  a: {{ by: user, {spec} }}"
    ));
    let as_tier = |tier: &'static str| Request::new("GET", "/").user("u").tier(tier);
    assert_eq!(desk.passing(2, &as_tier("free")), 2, "{spec}");
    assert_eq!(desk.passing(30, &as_tier("premium")), 8, "{spec}");
    desk.wait(wait);
    assert_eq!(desk.passing(1, &as_tier("premium")), 0, "{spec}");
    assert_eq!(desk.passing(1, &as_tier("free")), 1, "{spec}");
    for other in 0..100 {
        desk.check(&user(&other.to_string()));
    }
    assert_eq!(desk.passing(30, &as_tier("premium")), 0, "{spec}: a full limit was handed back");
}

#[test]
fn rule_5_a_change_of_tier_and_back_hands_nothing_back() {
    there_and_back("quota: { free: 2/day, premium: 10/month }", seconds(86_400));
    there_and_back("fixed_window: { free: 2/min, premium: 10/h }", seconds(120));
    there_and_back("sliding_counter: { free: 2/min, premium: 10/h }", seconds(180));
    there_and_back("sliding_window: { free: 2/min, premium: 10/h }", seconds(120));
    there_and_back("token_bucket: { free: 2/s, premium: 10/day }", seconds(60));
}

fn factored(times: &str, rest: &str) -> Desk {
    Desk::with_policy(&format!(
        "identity: {{ attributes: {{ usd: given }} }}
limits: {{ a: {{ by: user, {rest} }} }}
factors: {{ some: {{ times: {times} }} }}"
    ))
}

#[test]
fn rule_5_count_and_burst_are_each_floored_and_at_least_one() {
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
        let desk = factored(times, written);
        let decided = desk.check(&user("u").attribute("usd", "1"));
        assert_eq!(decided.limits[0].spec.to_string(), effective, "{written} × {times}");
    }
}

#[test]
fn rule_5_all_factors_that_apply_are_multiplied() {
    let desk = Desk::with_policy(
        "limits: { a: { by: user, sliding_window: 100/min } }
factors:
  one: { times: 0.7 }
  two: { times: 0.7 }
  other: { when: { method: POST }, times: 3 }",
    );
    let decided = desk.check(&user("u"));
    assert_eq!(
        (decided.factor_ppm(), decided.limits[0].spec.to_string()),
        (490_000, "49/min".into())
    );
}

#[test]
fn rule_5_the_effective_spec_is_seen_in_headers_and_explained() {
    let desk = factored("0.5", "sliding_window: 10/min");
    let decided = desk.check(&user("u"));
    let response = tidegate::Response::of(&decided, tidegate::Jitter::None);
    assert_eq!(response.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(response.header("ratelimit-policy"), Some("\"a\";q=5;w=60"));
    let explained = desk.limiter.explain(&user("u")).unwrap();
    assert_eq!(explained.factors, [("some".to_owned(), 500_000)]);
    assert_eq!(explained.limits[0].applies.as_ref().unwrap().spec, "5/min");
}

#[test]
fn rule_5_a_factor_keeps_what_is_owed_and_hands_no_full_limit_back() {
    let desk = Desk::with_policy(
        "limits: { a: { by: user, sliding_window: 10/min } }
factors: { overload: { load_above: 80%, times: 0.5 } }",
    );
    assert_eq!(desk.passing(4, &user("u")), 4);
    desk.limiter.set_load(900_000);
    assert_eq!(desk.passing(9, &user("u")), 1, "five in all");
    desk.limiter.set_load(0);
    assert_eq!(desk.passing(20, &user("u")), 5, "ten in all");
    desk.limiter.set_load(900_000);
    assert_eq!(desk.passing(9, &user("u")), 0);
}
