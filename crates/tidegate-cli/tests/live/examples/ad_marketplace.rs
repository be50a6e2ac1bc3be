//! The marketplace: the edge by address, the API by user, the business by channel and negotiation,
//! and the calls of the service to others.

use serde_json::{Value, json};

use super::{Caller, Example, assert_headers, assert_refusal, exhaust};
use crate::support::{Answer, Reply, Upstream};

const NAME: &str = "ad-marketplace";

/// The 429 of the ad marketplace, for a rate such as `60 requests per minute`.
fn body(rate: &str) -> Value {
    json!({
        "type": "https://api.admarketplace.com/errors/rate-limit-exceeded",
        "title": "Rate Limit Exceeded",
        "status": 429,
        "detail": format!("You have exceeded the rate limit of {rate}"),
        "retryAfter": 30,
    })
}

fn assert_limited(refusal: &Answer, limit: u64, per: &str) {
    let rate = format!("{limit} requests per {per}");
    assert_refusal(refusal, limit, 60, "retryAfter", body(&rate));
    assert_eq!(refusal.header("content-type"), Some("application/problem+json"));
}

fn user(example: &Example, name: &str) -> Caller {
    example.behind_proxy(&[("X-User-Id", name)])
}

#[test]
fn an_address_has_its_burst_at_the_edge() {
    let example = Example::start(NAME);
    let mut client = example.caller();
    assert_limited(&client.exhaust(4, 1, "POST", "/api/v1/auth/refresh"), 5, "minute");
    assert_limited(&client.exhaust(51, 30, "GET", "/api/v1/prices"), 30, "second");
    let outside = client.send("GET", "/about");
    assert_eq!((outside.status, outside.header("x-ratelimit-limit")), (200, None));
}

#[test]
fn each_group_of_endpoints_has_its_rate_and_burst() {
    let example = Example::start(NAME);
    for (method, target, limit, burst) in [
        ("POST", "/api/v1/auth/validate", 5_u64, 3),
        ("PUT", "/api/v1/deals/d1", 20, 5),
        ("GET", "/api/v1/deals", 60, 20),
        ("GET", "/api/v1/channels?q=news", 30, 10),
        ("POST", "/api/v1/creatives", 10, 3),
        ("POST", "/api/v1/deals/d1/disputes", 5, 2),
        ("GET", "/api/v1/admin/users", 120, 30),
    ] {
        // Each has an address of its own, or the edge would refuse first.
        let address = format!("192.0.2.{limit}");
        let headers = [("X-User-Id", target), ("X-Forwarded-For", address.as_str())];
        let mut caller = example.behind_proxy(&headers);
        let refusal = exhaust(burst, limit.div_ceil(60), || match method {
            "POST" => caller.send_json(method, target, &json!({ "telegramUserId": 7 })),
            _ => caller.send(method, target),
        });
        assert_limited(&refusal, limit, "minute");
    }
}

#[test]
fn a_user_has_thirty_requests_of_all_kinds_at_once() {
    let example = Example::start(NAME);
    let refusal = user(&example, "u1").exhaust(30, 2, "GET", "/api/v1/profile");
    assert_limited(&refusal, 120, "minute");
}

#[test]
fn an_answer_says_limit_remaining_and_reset_and_no_retry_after() {
    let example = Example::start(NAME);
    let mut reader = user(&example, "u1");
    assert_headers(&reader.send("GET", "/api/v1/deals"), 60, 19);
}

/// A service that refuses a deal of no value.
fn service() -> Upstream {
    Upstream::replying(|seen| {
        let is_bad = seen.body.windows(9).any(|part| part == b"\"price\":0");
        Reply::Answer(if is_bad { 422 } else { 200 }, String::new())
    })
}

#[test]
fn five_deals_a_day_for_a_channel_and_only_those_that_were_made() {
    let example = Example::over(service(), NAME, &[], &[]);
    let offer =
        |name: &str, deal: Value| user(&example, name).send_json("POST", "/api/v1/deals", &deal);
    for nth in 0..5 {
        let name = format!("u{nth}");
        assert_eq!(offer(&name, json!({ "channelId": 42, "price": 0 })).status, 422);
        assert_eq!(offer(&name, json!({ "channelId": 42, "price": 5 })).status, 200);
    }
    let refusal = offer("u9", json!({ "channelId": 42, "price": 5 }));
    assert_refusal(&refusal, 5, 86_400, "retryAfter", body("5 requests per day"));
    let nameless = offer("u9", json!({}));
    assert_eq!(nameless.status, 400, "{}", nameless.text());
    assert_eq!(offer("u9", json!({ "channelId": 7, "price": 5 })).status, 200);
}

#[test]
fn disputes_of_a_user_are_counted_by_the_week() {
    let env = [("RATE_LIMIT_BUSINESS_MAX_DISPUTES_PER_USER_PER_WEEK", "2")];
    let example = Example::start_with(NAME, &env, &[]);
    let mut one = user(&example, "u1");
    one.pass(2, "POST", "/api/v1/deals/d1/disputes");
    let refusal = one.send("POST", "/api/v1/deals/d2/disputes");
    assert_refusal(&refusal, 2, 604_800, "retryAfter", body("2 requests per week"));
}

#[test]
fn a_negotiation_has_ten_counter_offers_of_both_sides() {
    let example = Example::start(NAME);
    let target = "/api/v1/deals/d1/counter-offers";
    for side in ["buyer", "seller"] {
        user(&example, side).pass(5, "POST", target);
    }
    let refusal = user(&example, "third").send("POST", target);
    assert_eq!((refusal.status, refusal.header("retry-after")), (429, None));
    let expected = json!({
        "type": "https://api.admarketplace.com/errors/rate-limit-exceeded",
        "title": "Rate Limit Exceeded",
        "status": 429,
        "detail": "This negotiation has had its 10 counter-offers",
    });
    assert_eq!(refusal.json(), expected);
}

#[test]
fn a_blacklisted_address_is_kept_out_even_when_limits_are_off() {
    let example = Example::start_with(NAME, &[("RATE_LIMIT_ENABLED", "false")], &[]);
    let mut blocked = example.behind_proxy(&[("X-Forwarded-For", "203.0.113.5")]);
    assert_eq!(blocked.send("GET", "/api/v1/deals").status, 403);
    assert_eq!(example.upstream.count(), 0);
    example.caller().pass(100, "POST", "/api/v1/auth/validate");
}

#[test]
fn the_service_asks_before_it_calls_ton() {
    let example = Example::start(NAME);
    for (key, rate) in [("basic", 10), ("advanced", 25)] {
        let attributes = json!({ "ton_key": key });
        let call = json!({ "operation": "ton.call", "attributes": attributes, "cost": rate });
        let answers = batch(&example, &[call.clone(), call]);
        assert_eq!(answers[0]["allowed"], true, "{key}");
        assert_eq!(answers[1]["limit"], "ton-api");
        assert_eq!(answers[1]["limits"][0]["limit"], rate);
    }
}

#[test]
fn a_call_to_ton_waits_for_its_turn_if_it_is_told_to() {
    let example = Example::start(NAME);
    let call = |cost: u64, max_wait_ms: u64| {
        let request = json!({ "operation": "ton.call", "cost": cost, "max_wait_ms": max_wait_ms });
        example.daemon.api().post("/v1/acquire", &request.to_string()).json()
    };
    assert_eq!(call(10, 0)["allowed"], true);
    assert_eq!(call(10, 100)["allowed"], false, "ten more would take a second");
    assert_eq!(call(10, 20_000)["allowed"], true);
}

#[test]
fn the_service_asks_before_it_writes_to_telegram() {
    let example = Example::start(NAME);
    let send = |chat: usize, group: Option<&str>| {
        let attributes = json!({ "chat": format!("c{chat}"), "group": group });
        json!({ "operation": "telegram.send", "attributes": attributes })
    };
    let same_chat = batch(&example, &[send(0, None), send(0, None)]);
    assert_eq!(same_chat[0]["allowed"], true, "{}", same_chat[0]);
    assert_eq!(same_chat[1]["limit"], "telegram-chat");
    let group: Vec<Value> = (1..=21).map(|chat| send(chat, Some("g1"))).collect();
    let answers = batch(&example, &group);
    assert!(answers[..20].iter().all(|answer| answer["allowed"] == true));
    assert_eq!(answers[20]["limit"], "telegram-group");
    let all: Vec<Value> = (100..131).map(|chat| send(chat, None)).collect();
    let refused = batch(&example, &all);
    assert_eq!(refused[30]["limit"], "telegram", "at most thirty in any second");
}

/// The API's answers to several checks at once.
fn batch(example: &Example, checks: &[Value]) -> Vec<Value> {
    let answer = example.daemon.api().post("/v1/check/batch", &json!(checks).to_string());
    answer.json().as_array().unwrap().clone()
}
