//! What a step expects, and whether it came.

use std::time::Duration;

use serde_json::Value as Json;

use crate::decision::{Decision, Outcome};
use crate::events::{Effect, Reported};
use crate::limiter::Acquired;
use crate::policy::compile::fields::{
    Fields, Keys, boolean, entries, integer, one_or_many, text, unit, word,
};
use crate::policy::diagnostics::Diagnostics;
use crate::policy::document::{Entry, Node, Value};
use crate::request::RequestError;
use crate::response::{Jitter, Response};
use crate::text::push_decimal;
use crate::units::{Amount, parse_exact_duration};

const KEYS: Keys = Keys {
    known: &[
        "outcome",
        "limit",
        "status",
        "retry_after",
        "remaining",
        "reset",
        "headers",
        "body",
        "operation",
        "tier",
        "warnings",
        "degraded",
        "waited",
        "field",
        "delay",
        "factor",
        "flags",
        "notified",
    ],
    later: &[],
};
/// What a report can lead to.
const REPORT_KEYS: Keys = Keys {
    known: &["outcome", "delay", "warnings", "flags", "notified", "degraded", "status", "field"],
    later: &[],
};

/// As much as a limit can have.
const REMAINING_MAX: u64 = Amount::MAX.whole();

/// What a step does, as far as anything can be expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A decision comes of it.
    Request,
    /// Delays, warnings and bans come of it.
    Report,
    /// Nothing comes of it.
    Other,
}

/// What came of a step.
pub(super) enum Came<'c> {
    /// A decision, and what the answer to the request led to.
    Decision(&'c Acquired, &'c Reported),
    /// What an event led to.
    Reported(&'c Reported),
    /// A request that cannot be understood.
    Refused(&'c RequestError),
}

/// What must come of a step; what is left out is not checked.
#[derive(Debug, Default)]
pub(super) struct Expectation {
    outcome: Option<Outcome>,
    limit: Option<Maybe<String>>,
    status: Option<u64>,
    retry_after_us: Option<Maybe<u64>>,
    remaining: Option<u64>,
    reset_us: Option<Maybe<u64>>,
    headers: Vec<(String, Maybe<String>)>,
    body: Option<Json>,
    operation: Option<String>,
    tier: Option<String>,
    warnings: Option<Vec<String>>,
    degraded: Option<bool>,
    waited_us: Option<u64>,
    delay_us: Option<u64>,
    factor_ppm: Option<u64>,
    flags: Option<Vec<String>>,
    notified: Option<Vec<String>>,
    /// Of a request that is answered 400: what was wrong with it.
    field: Option<String>,
}

/// A value, or that there is none (`null`).
type Maybe<T> = Option<T>;

/// Something that was expected and did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What was looked at: `outcome`, `retry_after`, a header.
    pub what: String,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub found: String,
}

impl Expectation {
    pub(super) fn read(node: &Node, kind: Kind, diagnostics: &mut Diagnostics) -> Self {
        let keys = match kind {
            Kind::Request => &KEYS,
            Kind::Report => &REPORT_KEYS,
            Kind::Other => {
                let message = "found `expect` on a step that is neither a request nor a report";
                diagnostics.error(node.at, message);
                return Self::default();
            }
        };
        if !matches!(node.value, Value::Map(_)) {
            return Self { outcome: outcome(node, diagnostics), ..Self::default() };
        }
        let Some(fields) = Fields::of(node, "`expect`", keys, diagnostics) else {
            return Self::default();
        };
        let mut said = |key: &str| {
            fields.get(key).and_then(|node| text(node, "a name", diagnostics)).map(str::to_owned)
        };
        let (operation, tier, field) = (said("operation"), said("tier"), said("field"));
        Self {
            outcome: fields.get("outcome").and_then(|node| outcome(node, diagnostics)),
            limit: fields.get("limit").and_then(|node| {
                maybe(node, |node| {
                    text(node, "the name of a limit", diagnostics).map(str::to_owned)
                })
            }),
            status: fields.get("status").and_then(|node| integer(node, 100, 599, diagnostics)),
            retry_after_us: fields
                .get("retry_after")
                .and_then(|node| maybe(node, |node| duration(node, diagnostics))),
            remaining: fields
                .get("remaining")
                .and_then(|node| integer(node, 0, REMAINING_MAX, diagnostics)),
            reset_us: fields
                .get("reset")
                .and_then(|node| maybe(node, |node| duration(node, diagnostics))),
            headers: fields
                .get("headers")
                .map(|node| headers(node, diagnostics))
                .unwrap_or_default(),
            body: fields.get("body").map(json),
            operation,
            tier,
            warnings: fields.get("warnings").map(|node| texts(node, "a warning", diagnostics)),
            degraded: fields.get("degraded").and_then(|node| boolean(node, diagnostics)),
            waited_us: fields.get("waited").and_then(|node| duration(node, diagnostics)),
            delay_us: fields.get("delay").and_then(|node| duration(node, diagnostics)),
            factor_ppm: fields.get("factor").and_then(|node| factor(node, diagnostics)),
            flags: fields.get("flags").map(|node| texts(node, "a flag", diagnostics)),
            notified: fields.get("notified").map(|node| texts(node, "a webhook", diagnostics)),
            field,
        }
    }

    /// Everything that did not come as expected.
    pub(super) fn mismatches(&self, came: &Came<'_>) -> Vec<Mismatch> {
        match came {
            Came::Decision(Acquired { decision, waited }, answered) => {
                let mut found = self.decision_mismatches(decision, *waited);
                found.extend(self.led_to_mismatches(&LedTo::of_decision(decision, answered)));
                found
            }
            Came::Reported(reported) => {
                let mut found = Comparison::default();
                let outcome = self.outcome.map(|outcome| outcome.name().to_owned());
                found.compare("outcome", outcome, outcome_of(reported).name().to_owned());
                found.compare("status", self.status.map(|one| one.to_string()), "200".to_owned());
                found.compare("field", self.field.clone(), "none".to_owned());
                let degraded = self.degraded.map(|degraded| degraded.to_string());
                found.compare("degraded", degraded, reported.degraded.to_string());
                found.0.extend(self.led_to_mismatches(&LedTo::of_report(reported)));
                found.0
            }
            Came::Refused(error) => self.refusal_mismatches(error),
        }
    }

    /// What came of penalties, ratios and factors.
    fn led_to_mismatches(&self, came: &LedTo) -> Vec<Mismatch> {
        let mut found = Comparison::default();
        let listed = |list: &Vec<String>| format!("{list:?}");
        found.compare(
            "delay",
            self.delay_us.map(|us| seconds(Some(us))),
            seconds(Some(came.delay_us)),
        );
        found.compare("warnings", self.warnings.as_ref().map(listed), listed(&came.warnings));
        found.compare("flags", self.flags.as_ref().map(listed), listed(&came.flags));
        found.compare("notified", self.notified.as_ref().map(listed), listed(&came.notified));
        found.compare("factor", self.factor_ppm.map(decimal), decimal(came.factor_ppm));
        found.0
    }

    /// A request that cannot be decided is answered 400 and has nothing else to expect but the
    /// field at fault.
    fn refusal_mismatches(&self, error: &RequestError) -> Vec<Mismatch> {
        let mut mismatches = Vec::new();
        let mut mismatch = |what: &str, expected: String, found: String| {
            mismatches.push(Mismatch { what: what.to_owned(), expected, found });
        };
        if self.status != Some(400) || self.expects_decision() {
            let expected = self.outcome.map_or("a decision", Outcome::name);
            mismatch("outcome", expected.to_owned(), format!("status 400: {error}"));
        }
        if let Some(field) = self.field.as_ref().filter(|field| **field != error.field) {
            mismatch("field", field.clone(), error.field.clone());
        }
        mismatches
    }

    /// Whether it asks for something that only a decision has.
    fn expects_decision(&self) -> bool {
        let Self {
            status: _, field: _, outcome, limit, retry_after_us, remaining, reset_us, ..
        } = self;
        let times = retry_after_us.is_some() || reset_us.is_some() || self.waited_us.is_some();
        let numbers = times || remaining.is_some();
        let names = outcome.is_some() || limit.is_some() || self.operation.is_some();
        let answer = !self.headers.is_empty() || self.body.is_some() || self.warnings.is_some();
        let led_to = self.delay_us.is_some() || self.flags.is_some() || self.notified.is_some();
        let facts = self.tier.is_some() || self.degraded.is_some() || self.factor_ppm.is_some();
        numbers || names || answer || led_to || facts
    }

    fn decision_mismatches(&self, decision: &Decision, waited: Duration) -> Vec<Mismatch> {
        let mut found = Comparison::default();
        let mut compare = |what: &str, expected: Option<String>, came: String| {
            found.compare(what, expected, came);
        };
        let named = decision.limit();
        compare(
            "outcome",
            self.outcome.map(|outcome| outcome.name().to_owned()),
            decision.outcome.name().to_owned(),
        );
        compare(
            "limit",
            self.limit.clone().map(or_none),
            or_none(decision.limit_name().map(str::to_owned)),
        );
        compare(
            "status",
            self.status.map(|status| status.to_string()),
            decision.status().to_string(),
        );
        compare(
            "retry_after",
            self.retry_after_us.map(seconds),
            seconds(decision.retry_after_us()),
        );
        let remaining = or_none(named.map(|report| report.remaining().to_string()));
        compare("remaining", self.remaining.map(|number| number.to_string()), remaining);
        compare(
            "reset",
            self.reset_us.map(seconds),
            seconds(named.and_then(|report| report.reset_us)),
        );
        let waited_us = u64::try_from(waited.as_micros()).ok();
        compare("waited", self.waited_us.map(|us| seconds(Some(us))), seconds(waited_us));
        compare("field", self.field.clone(), "none".to_owned());
        compare("operation", self.operation.clone(), decision.operation().to_owned());
        compare("tier", self.tier.clone(), decision.tier().to_owned());
        compare(
            "degraded",
            self.degraded.map(|degraded| degraded.to_string()),
            decision.degraded.to_string(),
        );
        if !self.headers.is_empty() || self.body.is_some() {
            let response = Response::of(decision, Jitter::None);
            for (name, expected) in &self.headers {
                let came = response.header(name).map(str::to_owned);
                compare(&format!("header {name}"), Some(or_none(expected.clone())), or_none(came));
            }
            let body = response.body().map(read_json);
            compare(
                "body",
                self.body.as_ref().map(Json::to_string),
                body.unwrap_or(Json::Null).to_string(),
            );
        }
        found.0
    }
}

/// What did not come as expected, so far.
#[derive(Default)]
struct Comparison(Vec<Mismatch>);

impl Comparison {
    fn compare(&mut self, what: &str, expected: Option<String>, came: String) {
        if let Some(expected) = expected.filter(|expected| *expected != came) {
            self.0.push(Mismatch { what: what.to_owned(), expected, found: came });
        }
    }
}

/// What penalties, ratios and factors made of a step.
struct LedTo {
    delay_us: u64,
    warnings: Vec<String>,
    flags: Vec<String>,
    notified: Vec<String>,
    factor_ppm: u64,
}

impl LedTo {
    fn of_decision(decision: &Decision, answered: &Reported) -> Self {
        let warnings = decision.warnings().chain(answered.warnings.iter().map(String::as_str));
        Self {
            delay_us: decision.delay_us().max(answered.delay_us),
            warnings: warnings.map(str::to_owned).collect(),
            flags: decision.flags().iter().chain(&answered.flags).cloned().collect(),
            notified: notified(decision.effects().iter().chain(&answered.effects)),
            factor_ppm: decision.factor_ppm(),
        }
    }

    fn of_report(reported: &Reported) -> Self {
        Self {
            delay_us: reported.delay_us,
            warnings: reported.warnings.clone(),
            flags: reported.flags.clone(),
            notified: notified(reported.effects.iter()),
            factor_ppm: 0,
        }
    }
}

fn notified<'e>(effects: impl Iterator<Item = &'e Effect>) -> Vec<String> {
    let webhook = |effect: &Effect| match effect {
        Effect::Notify(notice) => Some(notice.webhook.clone()),
        _ => None,
    };
    effects.filter_map(webhook).collect()
}

/// A report as an outcome.
fn outcome_of(reported: &Reported) -> Outcome {
    match reported {
        Reported { banned: true, .. } => Outcome::Banned,
        Reported { challenged: true, .. } => Outcome::Challenged,
        _ => Outcome::Allowed,
    }
}

fn outcome(node: &Node, diagnostics: &mut Diagnostics) -> Option<Outcome> {
    let words: Vec<(&str, Outcome)> =
        Outcome::ALL.iter().map(|outcome| (outcome.name(), *outcome)).collect();
    word(node, &words, diagnostics)
}

/// A value, or `null` for none. The outer `None` is a value that could not be read.
#[allow(clippy::option_option, reason = "left out, none and some are three things")]
fn maybe<T>(node: &Node, read: impl FnOnce(&Node) -> Option<T>) -> Option<Maybe<T>> {
    if node.is_null() { Some(None) } else { read(node).map(Some) }
}

fn duration(node: &Node, diagnostics: &mut Diagnostics) -> Option<u64> {
    let text = text(node, "a duration such as 29.5s", diagnostics)?;
    unit(parse_exact_duration(text), node.at, diagnostics)
}

fn headers(node: &Node, diagnostics: &mut Diagnostics) -> Vec<(String, Maybe<String>)> {
    let written = entries(node, "`headers`", diagnostics).unwrap_or_default();
    let mut value = |node: &Node| {
        maybe(node, |node| match node.text() {
            Some(text) => Some(text.to_owned()),
            None => {
                text(node, "a header's value, or null for none", diagnostics).map(str::to_owned)
            }
        })
    };
    let pair = |entry: &Entry| Some((entry.key.clone(), value(&entry.value)?));
    written.iter().filter_map(pair).collect()
}

fn texts(node: &Node, expected: &str, diagnostics: &mut Diagnostics) -> Vec<String> {
    let texts = one_or_many(node).iter();
    let texts = texts.filter_map(|node| text(node, expected, diagnostics));
    texts.map(str::to_owned).collect()
}

fn json(node: &Node) -> Json {
    read_json(&node.to_json())
}

/// A number that no JSON value can hold is compared as it is written.
fn read_json(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|_| Json::from(text))
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "none".to_owned())
}

/// An exact duration in seconds.
pub(super) fn seconds(us: Option<u64>) -> String {
    us.map_or_else(|| "none".to_owned(), |us| format!("{}s", decimal(us)))
}

/// Millionths as a decimal number.
fn decimal(millionths: u64) -> String {
    let mut text = String::new();
    push_decimal(&mut text, millionths);
    text
}

/// `0.5`, in millionths.
fn factor(node: &Node, diagnostics: &mut Diagnostics) -> Option<u64> {
    let text = text(node, "a factor such as 0.5", diagnostics)?;
    unit(Amount::parse(text), node.at, diagnostics).map(Amount::micros)
}
