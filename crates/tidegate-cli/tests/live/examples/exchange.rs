//! The exchange at the gateway: requests, orders, withdrawals and connections.

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use super::{Caller, Example, assert_headers, assert_reset, exhaust, number};
use crate::support::client::Connection;
use crate::support::{Answer, Reply, Upstream, eventually};

const NAME: &str = "exchange";
/// Grace lets the first violation pass: here each limit is seen by itself.
pub(super) const LIMITS_ALONE: [&str; 2] = ["--profile", "limits-alone"];

fn account(example: &Example, id: &str, tier: &str) -> Caller {
    example.behind_proxy(&[("X-Account-Id", id), ("X-Account-Tier", tier), ("X-Kyc-Level", "1")])
}

/// The 429 of the exchange; the wait is a decimal number of seconds.
fn assert_limited(refusal: &Answer, limit: u64, window: (&str, u64), message: &str) {
    assert_eq!(refusal.status, 429, "{}", refusal.text());
    assert_eq!(number(refusal, "x-ratelimit-limit"), limit);
    assert_eq!(number(refusal, "x-ratelimit-remaining"), 0);
    assert_reset(refusal, window.1);
    let mut body = refusal.json();
    let wait = rounded_up(&body["retry_after"].take());
    assert!((1..=window.1).contains(&wait), "retry_after: {wait}");
    assert_eq!(number(refusal, "retry-after"), wait);
    let expected = json!({
        "error": "RateLimitExceeded", "message": message, "limit": limit, "window": window.0,
        "retry_after": null,
    });
    assert_eq!(body, expected);
    assert_eq!(refusal.header("content-type"), Some("application/json"));
}

/// A decimal number of seconds as whole ones.
fn rounded_up(seconds: &Value) -> u64 {
    let text = seconds.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, "0"));
    let rest: u64 = fraction.parse().unwrap();
    whole.parse::<u64>().unwrap() + u64::from(rest > 0)
}

#[test]
fn an_order_too_many_reads_the_printed_refusal() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    let mut trader = account(&example, "a1", "intermediate");
    let refusal = trader.exhaust(40, 20, "POST", "/api/v1/orders");
    assert_limited(&refusal, 20, ("1 second", 1), "Order placement rate limit exceeded");
    assert_eq!(refusal.header("retry-after"), Some("1"));
}

#[test]
fn an_answer_says_limit_remaining_and_reset() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    assert_headers(&account(&example, "a1", "retail").send("POST", "/api/v1/orders"), 5, 5);
    let mut trader = account(&example, "a2", "intermediate");
    assert_headers(&trader.send("POST", "/api/v1/orders"), 20, 20);
    let mut trader = account(&example, "a3", "professional");
    assert_headers(&trader.send("POST", "/api/v1/orders"), 100, 100);
}

#[test]
fn each_category_has_twice_its_rate_at_once() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    let minute = ("1 minute", 60);
    let second = ("1 second", 1);
    for (method, target, limit, rate, window, message) in [
        ("GET", "/api/v1/market/btc", 100, 2, minute, "Market data rate limit exceeded"),
        ("GET", "/api/v1/account/balance", 60, 1, minute, "Account query rate limit exceeded"),
        ("POST", "/api/v1/orders", 5, 5, second, "Order placement rate limit exceeded"),
        ("DELETE", "/api/v1/orders/7", 10, 10, second, "Order cancellation rate limit exceeded"),
    ] {
        let refusal = account(&example, "a1", "retail").exhaust(2 * limit, rate, method, target);
        assert_limited(&refusal, limit, window, message);
    }
    // A user who may cancel two hundred orders a second still sends at most fifty requests.
    let mut trader = account(&example, "a2", "professional");
    let refusal = trader.exhaust(100, 50, "DELETE", "/api/v1/orders/7");
    assert_limited(&refusal, 50, second, "Order cancellation rate limit exceeded");
}

#[test]
fn withdrawals_are_counted_in_requests_and_in_dollars() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    let mut owner = account(&example, "a1", "retail");
    let mut withdraw =
        |usd: u64| owner.send_json("POST", "/api/v1/withdrawals", &json!({ "amount_usd": usd }));
    assert_eq!(withdraw(9_900).status, 200);
    let refusal = withdraw(101);
    assert_eq!(refusal.status, 429);
    assert_eq!(refusal.json()["message"], "Daily withdrawal limit exceeded");
    assert_eq!(refusal.json()["limit"], 10_000);
    let refusal = exhaust(19, 1, || withdraw(1));
    assert_limited(&refusal, 10, ("1 hour", 3600), "Withdrawal rate limit exceeded");
    assert_eq!(withdraw(0).status, 429, "the requests themselves are used up");
}

#[test]
fn all_orders_are_cancelled_once_in_half_a_second() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    let mut trader = account(&example, "a1", "retail");
    let refusal = trader.exhaust(1, 2, "DELETE", "/api/v1/orders");
    assert_limited(&refusal, 1, ("500 milliseconds", 1), "Cancel-all rate limit exceeded");
}

#[test]
fn an_address_sends_a_thousand_requests_a_minute() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    let mut client = example.caller();
    let refusal = client.exhaust(1000, 17, "GET", "/about");
    assert_limited(&refusal, 1000, ("1 minute", 60), "Request rate limit exceeded");
    let mut other = example.behind_proxy(&[("X-Forwarded-For", "192.0.2.1")]);
    assert_eq!(other.send("GET", "/about").status, 200);
    let health = client.send("GET", "/health");
    assert_eq!((health.status, health.header("x-ratelimit-limit")), (200, None));
}

/// An upstream that agrees to every upgrade, and stays until the other side hangs up.
fn streams() -> Upstream {
    Upstream::replying(|_| {
        Reply::Take(Box::new(|mut socket| {
            let answer =
                "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            if socket.write_all(answer.as_bytes()).is_ok() {
                // It ends when the gateway hangs up, one way or another.
                let _ = socket.read_to_end(&mut Vec::new());
            }
        }))
    })
}

fn open_stream(example: &Example, target: &str) -> (Answer, Connection) {
    let mut connection = example.daemon.gateway().connect();
    let headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("X-Account-Id", "a1"),
    ];
    connection.request("GET", target, &headers, None);
    (connection.answer(), connection)
}

#[test]
fn connections_hold_their_places_until_they_close() {
    let example = Example::over(streams(), NAME, &[], &LIMITS_ALONE);
    for (target, most) in [("/ws/market", 10), ("/ws/private", 5)] {
        let mut open = Vec::new();
        for _ in 0..most {
            let (answer, connection) = open_stream(&example, target);
            assert_eq!(answer.status, 101, "{}", answer.text());
            open.push(connection);
        }
        let (refusal, _) = open_stream(&example, target);
        assert_eq!(refusal.status, 429);
        let body: Value = refusal.json();
        assert_eq!(body["message"], "Connection limit exceeded");
        assert_eq!(body["limit"], most);
        drop(open.pop());
        eventually("a place", || open_stream(&example, target).0.status == 101);
    }
}
