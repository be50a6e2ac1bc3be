//! The rate limit headers and the problem details of refusals, as clients read them: by a parser of
//! structured fields that is not ours.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;
use sfv::{BareItem, List, ListEntry, Parser};
use tidegate::clock::FakeClock;
use tidegate::{Amount, Jitter, Limiter, NewMark, Outcome, Policy, Request, Response, Subject};

const MONDAY: u64 = 1_767_603_600;

/// Names with what a client reads as `quota`, `qu`, `w`, `r` or `t`.
type Items = Vec<(String, HashMap<String, BareItem>)>;

fn limiter(policy: &str) -> (Limiter, FakeClock) {
    let text = format!("{{tidegate: 1, name: api, {policy}}}");
    let policy = Policy::parse("api.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    let clock = FakeClock::at_unix_seconds(MONDAY);
    (Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap(), clock)
}

fn user(name: &str) -> Request<'_> {
    Request::new("GET", "/things").user(name)
}

fn headers(limiter: &Limiter, cost: u64) -> [String; 2] {
    let request = user("u").cost(Amount::from_units(cost).unwrap());
    let decision = limiter.check(&request).unwrap();
    let response = Response::of(&decision, Jitter::None);
    ["RateLimit-Policy", "RateLimit"].map(|name| response.header(name).unwrap().to_owned())
}

fn parse(header: &str) -> Items {
    let list: List =
        Parser::new(header).parse().unwrap_or_else(|error| panic!("{header}: {error}"));
    let items = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("{header}"),
    });
    let parameter = |(key, value): (sfv::Key, BareItem)| (key.as_str().to_owned(), value);
    items
        .map(|item| {
            let name = item.bare_item.as_string().unwrap().as_str().to_owned();
            (name, item.params.into_iter().map(parameter).collect())
        })
        .collect()
}

fn number(parameters: &HashMap<String, BareItem>, name: &str) -> Option<i64> {
    parameters.get(name).map(|value| i64::from(value.as_integer().unwrap()))
}

#[test]
fn a_bucket_shows_its_capacity_and_the_seconds_that_refill_it() {
    for (spec, policy, first, after_a_second) in [
        ("20/s burst 2x", "q=40;w=2", "r=39;t=2", "r=39;t=2"),
        ("1/s burst 20", "q=20;w=20", "r=19;t=19", "r=19;t=19"),
        ("20/min burst 5", "q=5;w=15", "r=4;t=12", "r=3;t=9"),
        ("1/10s", "q=1;w=10", "r=0;t=10", "r=0;t=9"),
        ("100/500ms", "q=100;w=1", "r=99;t=1", "r=99;t=1"),
    ] {
        let (limiter, clock) =
            limiter(&format!("limits: {{a: {{by: user, token_bucket: {spec}}}}}"));
        let expected = |state| [format!("\"a\";{policy}"), format!("\"a\";{state}")];
        assert_eq!(headers(&limiter, 1), expected(first), "{spec}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(headers(&limiter, 1), expected(after_a_second), "{spec}");
    }
}

#[test]
fn an_effective_window_is_never_the_time_until_the_bucket_is_full() {
    let (limiter, clock) = limiter("limits: {a: {by: user, token_bucket: 1/s burst 20}}");
    assert_eq!(headers(&limiter, 20)[1], "\"a\";r=0;t=1");
    clock.advance(Duration::from_millis(2_500));
    assert_eq!(headers(&limiter, 9)[1], "\"a\";r=2;t=2", "9 do not fit: Retry-After says when");
}

#[test]
fn windows_show_their_length_and_what_has_no_window_shows_neither() {
    for (spec, policy, state) in [
        ("sliding_window: 5/min", "q=5;w=60", "r=4;t=60"),
        ("fixed_window: 10/h", "q=10;w=3600", "r=9;t=3600"),
        ("quota: 10/day", "q=10;w=86400", "r=9;t=77760"),
        ("sliding_counter: 100/10s", "q=100;w=10", "r=99;t=20"),
        ("concurrency: 3", "q=3;qu=\"concurrent-requests\"", "r=2"),
        ("total: 10", "q=10", "r=9"),
    ] {
        let (limiter, _) = limiter(&format!("limits: {{a: {{by: user, {spec}}}}}"));
        let expected = [format!("\"a\";{policy}"), format!("\"a\";{state}")];
        assert_eq!(headers(&limiter, 1), expected, "{spec}");
    }
}

#[test]
fn what_remains_is_never_above_the_limit() {
    let (limiter, _) = limiter("limits: {a: {by: user, token_bucket: 1/s burst 20}}");
    let decision = limiter.check(&user("u")).unwrap();
    let response = Response::of(&decision, Jitter::None);
    assert_eq!(response.header("X-RateLimit-Limit"), Some("1"));
    assert_eq!(response.header("X-RateLimit-Remaining"), Some("1"));
    assert_eq!(decision.limits[0].remaining(), 19, "only the header is cut");
}

/// The problem details of a user's refusal.
fn problem(limiter: &Limiter, outcome: Outcome) -> Value {
    let decision = limiter.check(&user("u")).unwrap();
    assert_eq!(decision.outcome, outcome);
    let response = Response::of(&decision, Jitter::None);
    let mut body: Value = serde_json::from_str(response.body().unwrap()).unwrap();
    let registry = "https://iana.org/assignments/http-problem-types#";
    let kind = body["type"].as_str().unwrap();
    body["type"] = kind.strip_prefix(registry).unwrap_or(kind).into();
    body
}

#[test]
fn problem_details_have_the_registered_types_and_the_published_limits_that_refuse() {
    let limits = "limits: {roomy: {by: user, total: 9}, a: {by: user, total: 1}, \
                  b: {by: user, fixed_window: 1/h}, secret: {by: user, total: 1, publish: false}}";
    let (limiter, _) = limiter(limits);
    limiter.check(&user("u")).unwrap();
    let limited = problem(&limiter, Outcome::Limited);
    assert_eq!(limited["type"], "quota-exceeded");
    assert_eq!(limited["violated-policies"], serde_json::json!(["a", "b"]));

    limiter.ban(&NewMark::new(Subject::user("u"))).unwrap();
    let banned = problem(&limiter, Outcome::Banned);
    assert_eq!(banned["type"], "abnormal-usage-detected");
    assert_eq!(banned.get("violated-policies"), None);
}

#[test]
fn a_challenge_is_abnormal_usage_and_a_block_has_no_type_of_its_own() {
    let (challenging, _) = limiter("limits: {a: {by: user, total: 1, exceed: challenge}}");
    challenging.check(&user("u")).unwrap();
    let challenged = problem(&challenging, Outcome::Challenged);
    assert_eq!(challenged["type"], "abnormal-usage-detected");
    assert_eq!(challenged["violated-policies"], serde_json::json!(["a"]));

    let (blocking, _) = limiter("block: {ips: [203.0.113.0/24]}");
    let request = user("u").ip("203.0.113.7".parse().unwrap());
    let decision = blocking.check(&request).unwrap();
    let response = Response::of(&decision, Jitter::None);
    assert!(response.body().unwrap().starts_with("{\"type\":\"about:blank\""));
}

#[test]
fn a_refusal_by_a_limit_that_the_load_made_smaller_says_so() {
    let policy = "limits: {scaled: {by: user, fixed_window: 2/h}}, \
                  factors: {overload: {load_above: 80%, times: 0.5}}";
    let (limiter, _) = limiter(policy);
    limiter.check(&user("u")).unwrap();
    limiter.set_load(900_000);
    assert_eq!(problem(&limiter, Outcome::Limited)["type"], "temporary-reduced-capacity");
    limiter.set_load(0);
    limiter.check(&user("u")).unwrap();
    assert_eq!(problem(&limiter, Outcome::Limited)["type"], "quota-exceeded");
}

const ALGORITHMS: [&str; 6] =
    ["token_bucket", "sliding_window", "sliding_counter", "fixed_window", "concurrency", "total"];
const PERIODS: [&str; 6] = ["ms", "500ms", "s", "7s", "min", "day"];

/// A limit: its algorithm, count, period and burst, each by an index or a number.
type RandomLimit = (usize, u64, usize, u64, bool);

fn write_limit(index: usize, limit: &RandomLimit) -> String {
    let (algorithm, count, period, burst, published) = *limit;
    let spec = match algorithm {
        0 => format!("{count}/{} burst {burst}", PERIODS[period]),
        1..4 => format!("{count}/{}", PERIODS[period]),
        _ => count.to_string(),
    };
    format!("l{index}: {{by: user, {}: {spec}, publish: {published}}}", ALGORITHMS[algorithm])
}

proptest! {
    /// Whatever a policy limits and however it is used, a client can parse the headers, and they keep
    /// the draft's promises.
    #[test]
    fn any_client_can_parse_the_headers_of_any_policy(
        limits in prop::collection::vec(
            (0..6_usize, 1..2_000_u64, 0..6_usize, 1..2_000_u64, any::<bool>()), 1..6),
        steps in prop::collection::vec((1..40_u64, 0..3_000_u64), 1..25),
    ) {
        let texts: Vec<String> =
            limits.iter().enumerate().map(|(index, limit)| write_limit(index, limit)).collect();
        let (limiter, clock) = limiter(&format!("limits: {{{}}}", texts.join(", ")));
        let is_published = |index: &usize| limits[*index].4;
        let published: Vec<_> = (0..limits.len()).filter(is_published).collect();
        for (cost, gap_ms) in steps {
            clock.advance(Duration::from_millis(gap_ms));
            let request = user("u").cost(Amount::from_units(cost).unwrap());
            let decision = limiter.check(&request).unwrap();
            let response = Response::of(&decision, Jitter::None);
            let Some(policies) = response.header("RateLimit-Policy") else {
                prop_assert!(published.is_empty());
                continue;
            };
            let (policies, states) = (parse(policies), parse(response.header("RateLimit").unwrap()));
            prop_assert_eq!(policies.len(), published.len());
            prop_assert_eq!(states.len(), published.len());
            for ((index, policy), state) in published.iter().zip(&policies).zip(&states) {
                prop_assert_eq!(&policy.0, &format!("l{index}"));
                prop_assert_eq!(&policy.0, &state.0);
                let (quota, remaining) = (number(&policy.1, "q"), number(&state.1, "r"));
                let (quota, remaining) = (quota.unwrap(), remaining.unwrap());
                prop_assert!(0 <= remaining && remaining <= quota, "{} of {}", remaining, quota);
                let is_concurrency = limits[*index].0 == 4;
                prop_assert_eq!(policy.1.contains_key("qu"), is_concurrency);
                let (window, effective) = (number(&policy.1, "w"), number(&state.1, "t"));
                prop_assert_eq!(window.is_some(), limits[*index].0 < 4);
                prop_assert_eq!(effective.is_some(), window.is_some());
                if let (Some(window), Some(effective)) = (window, effective) {
                    prop_assert!(window >= 1 && effective >= 1);
                    prop_assert!(remaining * window <= effective * quota, "a rate above the limit's");
                }
            }
        }
    }
}
