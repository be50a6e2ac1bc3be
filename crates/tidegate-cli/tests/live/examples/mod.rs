//! The five example policies, each in front of a service, with the exact answers to clients.

mod ad_marketplace;
mod exchange;
mod exchange_api;
mod hostel;
mod learning_platform;
mod user_service;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::support::client::Connection;
use crate::support::{Answer, Client, Daemon, Upstream, now};

/// The longest window of the limits that [`assert_headers`] is asked about, in seconds.
const LONGEST_WINDOW: u64 = 300;

/// An example policy that is served, with a service behind it.
struct Example {
    daemon: Daemon,
    upstream: Upstream,
}

impl Example {
    fn start(name: &str) -> Self {
        Self::start_with(name, &[], &[])
    }

    /// The same with variables and further arguments.
    fn start_with(name: &str, env: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::over(Upstream::start(), name, env, arguments)
    }

    /// The same in front of this service.
    fn over(upstream: Upstream, name: &str, env: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut command = Daemon::command();
        command.arg(policy_path(name)).args(["--gateway", "127.0.0.1:0"]);
        command.args(["--upstream", &upstream.url()]).args(arguments).envs(env.iter().copied());
        Self { daemon: Daemon::start(&mut command), upstream }
    }

    /// A client of the gateway that keeps its connection.
    fn caller(&self) -> Caller {
        Caller::new(self.daemon.gateway(), &[])
    }

    /// A client behind a trusted proxy, with these headers.
    fn behind_proxy(&self, headers: &[(&'static str, &str)]) -> Caller {
        Caller::new(self.daemon.gateway(), headers)
    }
}

fn policy_path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
    root.join(format!("{name}.yaml"))
}

/// A client that sends the same headers each time.
struct Caller {
    connection: Connection,
    headers: Vec<(&'static str, String)>,
}

impl Caller {
    fn new(client: Client, headers: &[(&'static str, &str)]) -> Self {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Self { connection: client.connect(), headers }
    }

    fn send(&mut self, method: &str, target: &str) -> Answer {
        self.send_with(method, target, None)
    }

    fn send_json(&mut self, method: &str, target: &str, body: &Value) -> Answer {
        self.send_with(method, target, Some(&body.to_string()))
    }

    fn send_with(&mut self, method: &str, target: &str, body: Option<&str>) -> Answer {
        let mut headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        if body.is_some() {
            headers.push(("Content-Type", "application/json"));
        }
        self.connection.request(method, target, &headers, body);
        self.connection.answer()
    }

    /// Sends as many requests as must pass.
    fn pass(&mut self, times: usize, method: &str, target: &str) {
        for nth in 1..=times {
            let answer = self.send(method, target);
            assert_eq!(answer.status, 200, "request {nth} of {times}: {}", answer.text());
        }
    }

    /// Sends until it is refused. At least `burst` requests pass, and no more than were refilled at
    /// `rate` a second meanwhile.
    fn exhaust(&mut self, burst: u64, rate: u64, method: &str, target: &str) -> Answer {
        exhaust(burst, rate, || self.send(method, target))
    }
}

fn exhaust(burst: u64, rate: u64, mut send: impl FnMut() -> Answer) -> Answer {
    let started = now();
    for passed in 0.. {
        let answer = send();
        if answer.status == 200 {
            let most = burst + rate * (started.elapsed() + Duration::from_secs(1)).as_secs() + 1;
            assert!(passed < most, "{passed} passed already, expected at most {most}");
            continue;
        }
        assert!(passed >= burst, "{passed} passed, expected {burst}: {}", answer.text());
        return answer;
    }
    unreachable!("requests are sent until one is refused")
}

/// Checks a refusal: its status, its rate limit headers and its body, in which the member `wait`
/// must say the same as `Retry-After`, from 1 to `longest`.
fn assert_refusal(refusal: &Answer, limit: u64, longest: u64, wait: &str, expected: Value) {
    assert_eq!(refusal.status, 429, "{}", refusal.text());
    assert_eq!(number(refusal, "x-ratelimit-limit"), limit);
    assert_eq!(number(refusal, "x-ratelimit-remaining"), 0);
    assert_reset(refusal, longest);
    let seconds = number(refusal, "retry-after");
    assert!((1..=longest).contains(&seconds), "Retry-After: {seconds}");
    let mut body = refusal.json();
    assert_eq!(body[wait].take(), Value::from(seconds));
    let mut expected = expected;
    expected[wait] = Value::Null;
    assert_eq!(body, expected);
}

/// Checks the rate limit headers of an admitted answer.
fn assert_headers(answer: &Answer, limit: u64, remaining: u64) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(number(answer, "x-ratelimit-limit"), limit);
    assert_eq!(number(answer, "x-ratelimit-remaining"), remaining);
    assert_reset(answer, LONGEST_WINDOW);
    assert_eq!(answer.header("retry-after"), None, "only on a refusal");
}

/// `X-RateLimit-Reset` is a Unix time that comes within twice the window: a bucket may hold two.
fn assert_reset(answer: &Answer, window: u64) {
    let (reset, now) = (number(answer, "x-ratelimit-reset"), unix_seconds());
    let latest = now + 2 * window + 2;
    assert!((now..=latest).contains(&reset), "X-RateLimit-Reset: {reset}, and it is {now}");
}

fn number(answer: &Answer, name: &str) -> u64 {
    let value = answer.header(name).unwrap_or_else(|| panic!("there is no {name}: {answer:?}"));
    value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
}

#[allow(clippy::disallowed_methods, reason = "a test compares with real time")]
fn unix_seconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // The daemon may have rounded an instant that is just past.
    now.unwrap().as_secs().saturating_sub(1)
}

#[test]
fn only_limits_that_services_ask_for_themselves_are_warned_of() {
    for (name, expected) in [
        ("ad-marketplace", &["ton-api", "telegram", "telegram-chat", "telegram-group"][..]),
        ("exchange", &["block.countries", "position", "volume-per-day", "symbols", "channels"]),
        ("hostel", &[]),
        ("learning-platform", &[]),
        ("user-service", &[]),
    ] {
        let status = Example::start(name).daemon.status();
        let warnings = status["warnings"].as_array().unwrap().iter();
        let of_policy =
            warnings.filter_map(|warning| warning.as_str().unwrap().split_once(".yaml: "));
        let limits: Vec<&str> =
            of_policy.map(|(_, text)| text.split('`').nth(1).unwrap()).collect();
        assert_eq!(limits, expected, "{name}");
    }
}
