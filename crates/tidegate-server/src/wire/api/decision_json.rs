//! A decision as JSON. It is written by hand, because no other JSON is made as often.

use std::time::Duration;

use tidegate::engine::plan::Enforcement;
use tidegate::engine::policy::Limit;
use tidegate::engine::text::{push_decimal, push_json, push_name, push_number};
use tidegate::engine::{Sink, render};
use tidegate::{Decision, LimitReport};

use crate::challenge::add_challenge_member;
use crate::respond::jitter;
use crate::wire::json::millis_up;

const MILLISECOND_US: u64 = 1_000;

/// Room for nearly every answer.
const ANSWER_BYTES: usize = 1_024;

/// What an answer has besides the decision.
#[derive(Default)]
pub(super) struct Extras<'a> {
    pub(super) lease: Option<&'a str>,
    /// The challenge as JSON, for the body of the refusal.
    pub(super) challenge: Option<&'a str>,
    pub(super) waited_us: Option<u64>,
    /// The status that settles the lease makes no event.
    pub(super) status_unseen: bool,
}

/// Appends the answer to a check.
pub(super) fn write(json: &mut String, decision: &Decision, extras: &Extras<'_>) {
    let Extras { lease, challenge, waited_us, status_unseen } = *extras;
    json.reserve(ANSWER_BYTES);
    json.push_str("{\"allowed\":");
    json.push_str(boolean(decision.is_allowed()));
    json.push_str(",\"outcome\":\"");
    json.push_str(decision.outcome.name());
    json.push_str("\",\"limit\":");
    push_text(json, decision.limit_name(), push_name);
    json.push_str(",\"status\":");
    push_number(json, decision.status().into());
    json.push_str(",\"retry_after_ms\":");
    let wait = decision.retry_after();
    push_ms(json, wait);
    json.push_str(",\"operation\":");
    push_name(json, decision.operation());
    json.push_str(",\"tier\":");
    push_name(json, decision.tier());
    json.push_str(",\"warnings\":[");
    write_list(json, decision.warnings(), push_name);
    json.push_str("],\"headers\":{");
    let mut members = HeaderMembers { json, headers: 0, has_body: false, challenge };
    render(decision, jitter(), &mut members);
    if !members.has_body {
        json.push_str("},\"body\":null");
    }
    json.push_str(",\"limits\":[");
    write_list(json, &decision.limits, |json, report| write_limit(json, decision, report));
    json.push_str("],\"lease\":");
    push_text(json, lease, push_json);
    json.push_str(",\"degraded\":");
    json.push_str(boolean(decision.degraded));
    if !decision.delay().is_zero() {
        json.push_str(",\"delay_ms\":");
        push_number(json, millis_up(decision.delay()));
    }
    if let Some(us) = waited_us {
        json.push_str(",\"waited_ms\":");
        push_number(json, us / MILLISECOND_US);
    }
    if status_unseen {
        json.push_str(",\"status_unseen\":true");
    }
    json.push('}');
}

/// Writes the headers of an answer as members of an object, and the body after it.
struct HeaderMembers<'j> {
    json: &'j mut String,
    headers: usize,
    has_body: bool,
    challenge: Option<&'j str>,
}

impl<'d> Sink<'d> for HeaderMembers<'_> {
    const IN_JSON: bool = true;

    fn header(&mut self, name: &'d str, write: impl FnOnce(&mut String)) {
        if self.headers > 0 {
            self.json.push(',');
        }
        self.headers += 1;
        push_name(self.json, name);
        self.json.push_str(":\"");
        write(self.json);
        self.json.push('"');
    }

    fn body(&mut self, write: impl FnOnce(&mut String)) {
        self.json.push_str("},\"body\":");
        let start = self.json.len();
        write(self.json);
        if let Some(challenge) = self.challenge {
            add_challenge_member(self.json, start, challenge);
        }
        self.has_body = true;
    }
}

fn write_limit(json: &mut String, decision: &Decision, report: &LimitReport) {
    json.push_str(decision.limit_of(report).map_or("{", Limit::json_head));
    json.push_str("\"limit\":");
    push_decimal(json, report.spec.number().micros());
    json.push_str(",\"window_ms\":");
    push_ms(json, report.spec.window_us().map(Duration::from_micros));
    json.push_str(",\"remaining\":");
    push_number(json, report.remaining());
    json.push_str(",\"reset_ms\":");
    push_ms(json, report.reset_after());
    json.push_str(",\"allowed\":");
    json.push_str(boolean(report.is_allowed()));
    json.push_str(",\"shadow\":");
    json.push_str(boolean(report.enforcement == Enforcement::Shadow));
    json.push('}');
}

const fn boolean(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

fn push_text(json: &mut String, text: Option<&str>, push: fn(&mut String, &str)) {
    match text {
        Some(text) => push(json, text),
        None => json.push_str("null"),
    }
}

/// Milliseconds, rounded up.
fn push_ms(json: &mut String, duration: Option<Duration>) {
    match duration {
        Some(duration) => push_number(json, millis_up(duration)),
        None => json.push_str("null"),
    }
}

fn write_list<T>(
    json: &mut String,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut String, T),
) {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            json.push(',');
        }
        write(json, item);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tidegate::{Limiter, Policy, Request};

    use super::*;

    fn written(decision: &Decision, lease: Option<&str>, waited_us: Option<u64>) -> Value {
        let mut json = String::new();
        write(&mut json, decision, &Extras { lease, waited_us, ..Extras::default() });
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    #[test]
    fn a_decision_is_told_in_full_whatever_its_words_hold() {
        let text = "{tidegate: 1, name: api,
            limits: {one: {by: user, total: 1, message: \"say \\\"no\\\"\"},
                     soft: {by: user, sliding_window: 1/h, exceed: warn},
                     trial: {by: user, total: 1, shadow: true}},
            response: {headers: ietf, body: {why: '{message}', left: '{remaining}'}}}";
        let policy = Policy::parse("api.yaml", text).unwrap_or_else(|errors| panic!("{errors}"));
        let limiter = Limiter::new(policy);
        let request = Request::new("GET", "/").user("u");
        let allowed = written(&limiter.check(&request).unwrap(), Some("abc"), Some(2_999));
        assert_eq!(allowed["lease"], "abc");
        assert_eq!(allowed["waited_ms"], 2);
        assert_eq!(allowed["body"], Value::Null);
        let refused = written(&limiter.check(&request).unwrap(), None, None);
        assert_eq!(refused["body"], json!({"why": "say \"no\"", "left": 0}));
        assert_eq!(refused["headers"]["RateLimit-Policy"], "\"one\";q=1, \"soft\";q=1;w=3600");
        assert_eq!(refused["retry_after_ms"], Value::Null);
        assert_eq!(refused["limits"][2]["shadow"], true);
        assert_eq!(refused["limits"][1]["window_ms"], 3_600_000);
        assert!(refused.get("waited_ms").is_none());
    }
}
