//! What a step expects, and whether it came.

use std::time::Duration;

use serde_json::Value as Json;

use crate::decision::{Decision, LimitReport, Outcome};
use crate::policy::compile::fields::{
    Fields, Keys, boolean, entries, integer, one_or_many, text, unit, word,
};
use crate::policy::diagnostics::Diagnostics;
use crate::policy::document::{Entry, Node, Value};
use crate::protection::events::{Consequences, Effect};
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
    /// A decision, how long it had waited, and what the answer to the request led to.
    Decision(&'c Decision, Duration, &'c Consequences),
    /// What an event led to.
    Consequences(&'c Consequences),
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
        let mut found = Comparison::default();
        match came {
            Came::Decision(decision, waited, answered) => {
                self.compare_decision(decision, *waited, &mut found);
                self.compare_led_to(&LedTo::of_decision(decision, answered), &mut found);
            }
            Came::Consequences(reported) => {
                found.compare("outcome", self.outcome, || outcome_of(reported), outcome_name);
                found.compare("status", self.status, || 200, number);
                found.compare("field", self.field.as_deref(), || "none", str::to_owned);
                found.compare("degraded", self.degraded, || reported.degraded, truth);
                self.compare_led_to(&LedTo::of_report(reported), &mut found);
            }
            Came::Refused(error) => return self.refusal_mismatches(error),
        }
        found.0
    }

    /// What came of penalties, ratios and factors.
    fn compare_led_to(&self, came: &LedTo<'_>, found: &mut Comparison) {
        found.compare("delay", self.delay_us.map(Some), || Some(came.delay_us), seconds);
        found.compare_lists("warnings", self.warnings.as_deref(), || came.warnings());
        found.compare_lists("flags", self.flags.as_deref(), || came.flags());
        found.compare_lists("notified", self.notified.as_deref(), || came.notified());
        found.compare("factor", self.factor_ppm, || came.factor_ppm, decimal);
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
        let context = self.tier.is_some() || self.degraded.is_some() || self.factor_ppm.is_some();
        numbers || names || answer || led_to || context
    }

    fn compare_decision(&self, decision: &Decision, waited: Duration, found: &mut Comparison) {
        let named = decision.limit();
        found.compare("outcome", self.outcome, || decision.outcome, outcome_name);
        let limit = self.limit.as_ref().map(|limit| or_none(limit.as_deref()));
        found.compare("limit", limit, || or_none(decision.limit_name()), str::to_owned);
        found.compare("status", self.status, || decision.status().into(), number);
        found.compare("retry_after", self.retry_after_us, || decision.retry_after_us(), seconds);
        let remaining = || named.map(LimitReport::remaining);
        found.compare("remaining", self.remaining.map(Some), remaining, |one| {
            one.map_or_else(|| "none".to_owned(), number)
        });
        let reset_us = || named.and_then(|report| report.reset_us);
        found.compare("reset", self.reset_us, reset_us, seconds);
        let waited_us = || u64::try_from(waited.as_micros()).ok();
        found.compare("waited", self.waited_us.map(Some), waited_us, seconds);
        found.compare("field", self.field.as_deref(), || "none", str::to_owned);
        let operation = || decision.operation();
        found.compare("operation", self.operation.as_deref(), operation, str::to_owned);
        found.compare("tier", self.tier.as_deref(), || decision.tier(), str::to_owned);
        found.compare("degraded", self.degraded, || decision.degraded, truth);
        if !self.headers.is_empty() || self.body.is_some() {
            self.compare_response(&Response::of(decision, Jitter::None), found);
        }
    }

    fn compare_response(&self, response: &Response, found: &mut Comparison) {
        for (name, expected) in &self.headers {
            let (expected, came) = (or_none(expected.as_deref()), or_none(response.header(name)));
            found.compare(&format!("header {name}"), Some(expected), || came, str::to_owned);
        }
        if let Some(body) = &self.body {
            let came = response.body().map_or(Json::Null, read_json).to_string();
            found.compare("body", Some(&*body.to_string()), || &came, str::to_owned);
        }
    }
}

/// What did not come as expected, so far. Texts are made of what did not come alone: a step may be
/// taken millions of times.
#[derive(Default)]
struct Comparison(Vec<Mismatch>);

impl Comparison {
    #[inline(always)]
    fn compare<T: Copy + PartialEq>(
        &mut self,
        what: &str,
        expected: Option<T>,
        came: impl FnOnce() -> T,
        shown: impl Fn(T) -> String,
    ) {
        let Some(expected) = expected else { return };
        let came = came();
        if expected != came {
            self.add(what, shown(expected), shown(came));
        }
    }

    #[cold]
    fn add(&mut self, what: &str, expected: String, found: String) {
        self.0.push(Mismatch { what: what.to_owned(), expected, found });
    }

    fn compare_lists<'l, L: Iterator<Item = &'l str>>(
        &mut self,
        what: &str,
        expected: Option<&[String]>,
        came: impl Fn() -> L,
    ) {
        if let Some(expected) = expected.filter(|expected| !came().eq(expected.iter())) {
            let found = came().collect::<Vec<_>>();
            self.add(what, format!("{expected:?}"), format!("{found:?}"));
        }
    }
}

/// What penalties, ratios and factors made of a step.
struct LedTo<'c> {
    decision: Option<&'c Decision>,
    reported: &'c Consequences,
    delay_us: u64,
    factor_ppm: u64,
}

impl<'c> LedTo<'c> {
    fn of_decision(decision: &'c Decision, answered: &'c Consequences) -> Self {
        Self {
            decision: Some(decision),
            reported: answered,
            delay_us: decision.delay_us().max(answered.delay_us),
            factor_ppm: decision.factor_ppm(),
        }
    }

    fn of_report(reported: &'c Consequences) -> Self {
        Self { decision: None, reported, delay_us: reported.delay_us, factor_ppm: 0 }
    }

    fn warnings(&self) -> impl Iterator<Item = &'c str> {
        let decided = self.decision.into_iter().flat_map(Decision::warnings);
        decided.chain(self.reported.warnings.iter().map(String::as_str))
    }

    fn flags(&self) -> impl Iterator<Item = &'c str> {
        let decided = self.decision.into_iter().flat_map(Decision::flags);
        decided.chain(&self.reported.flags).map(String::as_str)
    }

    fn notified(&self) -> impl Iterator<Item = &'c str> {
        let webhook = |effect: &'c Effect| match effect {
            Effect::Notify(notice) => Some(notice.webhook.as_str()),
            _ => None,
        };
        let decided = self.decision.into_iter().flat_map(Decision::effects);
        decided.chain(&self.reported.effects).filter_map(webhook)
    }
}

/// A report as an outcome.
fn outcome_of(reported: &Consequences) -> Outcome {
    match reported {
        Consequences { banned: true, .. } => Outcome::Banned,
        Consequences { challenged: true, .. } => Outcome::Challenged,
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

fn or_none(text: Option<&str>) -> &str {
    text.unwrap_or("none")
}

fn outcome_name(outcome: Outcome) -> String {
    outcome.name().to_owned()
}

fn number(number: u64) -> String {
    number.to_string()
}

fn truth(truth: bool) -> String {
    truth.to_string()
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
