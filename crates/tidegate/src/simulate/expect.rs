//! What a step expects, and whether it came.
//!
//! Every value is compared as the text that a report shows of it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde_json::Value as Json;

use crate::clock::micros;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::policy::compile::fields::{
    Fields, Keys, boolean, entries, integer, one_or_many, parsed, text, word,
};
use crate::policy::diagnostics::Reporter;
use crate::policy::document::{Node, Value};
use crate::protection::events::{Consequences, Effect};
use crate::request::RequestError;
use crate::response::{Jitter, Response};
use crate::text::push_decimal;
use crate::units::{Amount, parse_exact_duration};

/// In the order in which mismatches are reported.
const KEYS: Keys = Keys::new(
    "outcome limit status retry_after remaining reset waited field operation tier degraded \
     headers body delay warnings flags notified factor",
);
/// What a report can lead to.
const REPORT_KEYS: Keys = Keys::new("outcome status field degraded delay warnings flags notified");

/// The text of a value that is not there.
const NONE: &str = "none";

/// What a step does, as far as anything can be expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    /// A decision comes of it.
    Request,
    /// Delays, warnings and bans come of it.
    Report,
    /// Nothing comes of it.
    Other,
}

/// What came of a step.
pub(super) enum StepResult<'c> {
    /// A decision, how long it had waited, and what the answer to the request led to.
    Decision(&'c Decision, Duration, &'c Consequences),
    /// What an event led to.
    Consequences(&'c Consequences),
    /// A request that cannot be understood.
    InvalidRequest(&'c RequestError),
}

/// What must come of a step; what is left out is not checked.
#[derive(Debug, Default)]
pub(super) struct Expectation(Vec<(Aspect, String)>);

/// One thing that can be expected of a step.
#[derive(Debug, PartialEq, Eq)]
enum Aspect {
    /// By its key under `expect`.
    Key(&'static str),
    Header(String),
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(key),
            Self::Header(name) => write!(f, "header {name}"),
        }
    }
}

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
    pub(super) fn read(node: &Node, kind: StepKind, diagnostics: &Reporter) -> Self {
        let keys = match kind {
            StepKind::Request => &KEYS,
            StepKind::Report => &REPORT_KEYS,
            StepKind::Other => {
                let message = "found `expect` on a step that is neither a request nor a report";
                diagnostics.error(node.at, message);
                return Self::default();
            }
        };
        if !matches!(node.value, Value::Map(_)) {
            let outcome = expected_text("outcome", node, diagnostics);
            return Self(outcome.map(|text| (Aspect::Key("outcome"), text)).into_iter().collect());
        }
        let mut expected = Vec::new();
        let fields = Fields::of(node, "`expect`", keys, diagnostics);
        for key in keys.known() {
            let Some(node) = fields.as_ref().and_then(|fields| fields.get(key)) else { continue };
            if key == "headers" {
                expected.extend(expected_headers(node, diagnostics));
            } else {
                let text = expected_text(key, node, diagnostics);
                expected.extend(text.map(|text| (Aspect::Key(key), text)));
            }
        }
        Self(expected)
    }

    /// Everything that did not come as expected.
    pub(super) fn mismatches(&self, result: &StepResult<'_>) -> Vec<Mismatch> {
        if let StepResult::InvalidRequest(error) = result {
            return self.invalid_request_mismatches(error);
        }
        let mut mismatches = Vec::new();
        for (aspect, expected) in &self.0 {
            let found = result.text(aspect);
            if *expected != found {
                mismatches.push(mismatch(aspect, expected, &found));
            }
        }
        mismatches
    }

    /// A request that cannot be decided is answered 400, and names the field at fault. Nothing else
    /// can be expected of it.
    fn invalid_request_mismatches(&self, error: &RequestError) -> Vec<Mismatch> {
        let expected = |key| {
            let expected = self.0.iter().find(|(aspect, _)| *aspect == Aspect::Key(key));
            expected.map(|(_, text)| text.as_str())
        };
        let is_of_decision = |aspect: &Aspect| !matches!(aspect, Aspect::Key("status" | "field"));
        let mut mismatches = Vec::new();
        if expected("status") != Some("400") || self.0.iter().any(|(one, _)| is_of_decision(one)) {
            let outcome = expected("outcome").unwrap_or("a decision");
            let found = format!("status 400: {error}");
            mismatches.push(mismatch(&Aspect::Key("outcome"), outcome, &found));
        }
        if let Some(field) = expected("field").filter(|field| *field != error.field) {
            mismatches.push(mismatch(&Aspect::Key("field"), field, &error.field));
        }
        mismatches
    }
}

fn mismatch(aspect: &Aspect, expected: &str, found: &str) -> Mismatch {
    let (expected, found) = (expected.to_owned(), found.to_owned());
    Mismatch { what: aspect.to_string(), expected, found }
}

/// The text of what is expected under a key; `None` if it cannot be read.
fn expected_text(key: &str, node: &Node, diagnostics: &Reporter) -> Option<String> {
    let read_text = |expected| text(node, expected, diagnostics).map(str::to_owned);
    let duration = || {
        let text = text(node, "a duration such as 29.5s", diagnostics)?;
        parsed(parse_exact_duration(text), node.at, diagnostics).map(|us| seconds(Some(us)))
    };
    let integer = |range| integer(node, range, diagnostics).map(|number: u64| number.to_string());
    let texts = |expected| {
        let nodes = one_or_many(node).iter();
        let texts = nodes.filter_map(|node| text(node, expected, diagnostics));
        Some(list(texts))
    };
    match key {
        "limit" | "retry_after" | "reset" if node.is_null() => Some(NONE.to_owned()),
        "outcome" => {
            let names = Outcome::ALL.iter().map(|outcome| (outcome.name(), outcome.name()));
            let words: Vec<_> = names.collect();
            word(node, &words, diagnostics).map(str::to_owned)
        }
        "limit" => read_text("the name of a limit"),
        "retry_after" | "reset" | "waited" | "delay" => duration(),
        "status" => integer(100..=599),
        "remaining" => integer(0..=Amount::MAX.whole()),
        "degraded" => boolean(node, diagnostics).map(|truth| truth.to_string()),
        "body" => Some(json_text(&node.to_json())),
        "warnings" => texts("a warning"),
        "flags" => texts("a flag"),
        "notified" => texts("a webhook"),
        "factor" => {
            let text = text(node, "a factor such as 0.5", diagnostics)?;
            parsed(Amount::parse(text), node.at, diagnostics).map(|factor| factor.to_string())
        }
        _ => read_text("a name"),
    }
}

fn expected_headers(node: &Node, diagnostics: &Reporter) -> Vec<(Aspect, String)> {
    let mut headers = Vec::new();
    for entry in entries(node, "`headers`", diagnostics).unwrap_or_default() {
        let value = match entry.value.text() {
            Some(_) if entry.value.is_null() => Some(NONE),
            Some(value) => Some(value),
            None => text(&entry.value, "a header's value, or null for none", diagnostics),
        };
        let header = |value: &str| (Aspect::Header(entry.key.clone()), value.to_owned());
        headers.extend(value.map(header));
    }
    headers
}

impl StepResult<'_> {
    /// The text of what came.
    fn text(&self, aspect: &Aspect) -> Cow<'_, str> {
        let key = match aspect {
            Aspect::Header(name) => return self.header(name).map_or(NONE.into(), Cow::Owned),
            Aspect::Key(key) => *key,
        };
        match key {
            "delay" => seconds(Some(self.delay_us())).into(),
            "warnings" => list(self.warnings()).into(),
            "flags" => list(self.flags()).into(),
            "notified" => list(self.notified()).into(),
            _ => match self {
                Self::Decision(decision, waited, _) => decision_text(key, decision, *waited),
                Self::Consequences(reported) => consequences_text(key, reported),
                Self::InvalidRequest(_) => NONE.into(),
            },
        }
    }

    fn header(&self, name: &str) -> Option<String> {
        let response = Response::of(self.decision()?, Jitter::None);
        response.header(name).map(str::to_owned)
    }

    fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Decision(decision, ..) => Some(decision),
            Self::Consequences(_) | Self::InvalidRequest(_) => None,
        }
    }

    /// What an event, or the answer to the request, led to.
    fn consequences(&self) -> Option<&Consequences> {
        match self {
            Self::Decision(_, _, consequences) | Self::Consequences(consequences) => {
                Some(consequences)
            }
            Self::InvalidRequest(_) => None,
        }
    }

    fn delay_us(&self) -> u64 {
        let decided = self.decision().map_or(Duration::ZERO, Decision::delay);
        micros(self.consequences().map_or(Duration::ZERO, |led_to| led_to.delay).max(decided))
    }

    fn warnings(&self) -> impl Iterator<Item = &str> {
        let led_to = self.consequences().into_iter().flat_map(|led_to| &led_to.warnings);
        let decided = self.decision().into_iter().flat_map(Decision::warnings);
        decided.chain(led_to.map(String::as_str))
    }

    fn flags(&self) -> impl Iterator<Item = &str> {
        let led_to = self.consequences().into_iter().flat_map(|led_to| &led_to.flags);
        let decided = self.decision().into_iter().flat_map(Decision::flags);
        decided.chain(led_to).map(String::as_str)
    }

    fn notified(&self) -> impl Iterator<Item = &str> {
        let led_to = self.consequences().into_iter().flat_map(|led_to| &led_to.effects);
        let decided = self.decision().into_iter().flat_map(Decision::effects);
        decided.chain(led_to).filter_map(|effect| match effect {
            Effect::Notify(notice) => Some(notice.webhook.as_str()),
            _ => None,
        })
    }
}

fn decision_text<'d>(key: &str, decision: &'d Decision, waited: Duration) -> Cow<'d, str> {
    let named = decision.limit();
    match key {
        "outcome" => decision.outcome.name().into(),
        "limit" => decision.limit_name().unwrap_or(NONE).into(),
        "status" => decision.status().to_string().into(),
        "retry_after" => seconds(decision.retry_after_us()).into(),
        "remaining" => match named.map(LimitReport::remaining) {
            Some(remaining) => remaining.to_string().into(),
            None => NONE.into(),
        },
        "reset" => seconds(named.and_then(|report| report.reset_us)).into(),
        "waited" => seconds(u64::try_from(waited.as_micros()).ok()).into(),
        "operation" => decision.operation().into(),
        "tier" => decision.tier().into(),
        "degraded" => decision.degraded.to_string().into(),
        "factor" => decimal(decision.factor_ppm()).into(),
        "body" => {
            let response = Response::of(decision, Jitter::None);
            json_text(response.body().unwrap_or("null")).into()
        }
        _ => NONE.into(),
    }
}

fn consequences_text(key: &str, reported: &Consequences) -> Cow<'static, str> {
    let outcome = match reported {
        Consequences { banned: true, .. } => Outcome::Banned,
        Consequences { challenged: true, .. } => Outcome::Challenged,
        _ => Outcome::Allowed,
    };
    match key {
        "outcome" => outcome.name().into(),
        "status" => "200".into(),
        "degraded" => reported.degraded.to_string().into(),
        _ => NONE.into(),
    }
}

fn list<'l>(texts: impl Iterator<Item = &'l str>) -> String {
    format!("{:?}", texts.collect::<Vec<_>>())
}

/// JSON in one spelling. A number that no JSON value can hold is compared as it is written.
fn json_text(text: &str) -> String {
    serde_json::from_str(text).unwrap_or_else(|_| Json::from(text)).to_string()
}

/// An exact duration in seconds.
pub(super) fn seconds(us: Option<u64>) -> String {
    us.map_or_else(|| NONE.to_owned(), |us| format!("{}s", decimal(us)))
}

/// Millionths as a decimal number.
fn decimal(millionths: u64) -> String {
    let mut text = String::new();
    push_decimal(&mut text, millionths);
    text
}
