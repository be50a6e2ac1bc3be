//! A decision as the decision API tells it.

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;
use tidegate::plan::Enforcement;
use tidegate::units::Amount;
use tidegate::{Decision, LimitReport, Response};

use super::fields::FieldError;
use crate::respond::jitter;

const MILLISECOND_US: u64 = 1_000;

/// The answer to a check, as JSON.
pub(crate) fn decided(decision: &Decision, lease: Option<&str>, waited_us: Option<u64>) -> Vec<u8> {
    to_json(&Answer::of(decision, lease, waited_us))
}

/// What is answered for a request of a batch that could not be decided.
pub(crate) fn undecided(error: &FieldError) -> Vec<u8> {
    to_json(&Problem {
        r#type: "about:blank",
        title: "Bad Request",
        status: 400,
        detail: &error.detail,
        field: &error.field,
    })
}

pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut json = Vec::with_capacity(1_024);
    // Strings and numbers into memory: neither can fail.
    let _ = serde_json::to_writer(&mut json, value);
    json
}

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    field: &'a str,
}

#[derive(Serialize)]
struct Answer<'a> {
    allowed: bool,
    outcome: &'static str,
    limit: Option<&'a str>,
    status: u16,
    retry_after_ms: Option<u64>,
    operation: &'a str,
    tier: &'a str,
    warnings: Vec<&'a str>,
    headers: Headers,
    body: Option<Box<RawValue>>,
    limits: Limits<'a>,
    lease: Option<&'a str>,
    degraded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ms: Option<u64>,
}

impl<'a> Answer<'a> {
    fn of(decision: &'a Decision, lease: Option<&'a str>, waited_us: Option<u64>) -> Self {
        let response = Response::of(decision, jitter());
        Self {
            allowed: decision.is_allowed(),
            outcome: decision.outcome.name(),
            limit: decision.limit_name(),
            status: response.status,
            retry_after_ms: decision.retry_after().map(|wait| {
                u64::try_from(wait.as_micros()).unwrap_or(u64::MAX).div_ceil(MILLISECOND_US)
            }),
            operation: decision.operation(),
            tier: decision.tier(),
            warnings: decision.warnings().collect(),
            body: response.body.and_then(|body| RawValue::from_string(body).ok()),
            headers: Headers(response.headers),
            limits: Limits(decision),
            lease,
            degraded: decision.degraded,
            waited_ms: waited_us.map(|us| us.div_ceil(MILLISECOND_US)),
        }
    }
}

struct Headers(Vec<(String, String)>);

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

struct Limits<'a>(&'a Decision);

impl Serialize for Limits<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.limits.len()))?;
        for report in &self.0.limits {
            list.serialize_element(&Limit::of(self.0, report))?;
        }
        list.end()
    }
}

#[derive(Serialize)]
struct Limit<'a> {
    name: &'a str,
    algorithm: &'static str,
    limit: Number,
    window_ms: Option<u64>,
    remaining: u64,
    reset_ms: Option<u64>,
    allowed: bool,
    shadow: bool,
}

impl<'a> Limit<'a> {
    fn of(decision: &'a Decision, report: &LimitReport) -> Self {
        let limit = decision.limit_of(report);
        Self {
            name: limit.map_or("", |limit| limit.name()),
            algorithm: limit.map_or("", |limit| limit.algorithm().name()),
            limit: Number(report.spec.number()),
            window_ms: report.spec.window_us().map(|us| us.div_ceil(MILLISECOND_US)),
            remaining: report.remaining(),
            reset_ms: report.reset_us.map(|us| us.div_ceil(MILLISECOND_US)),
            allowed: report.is_allowed(),
            shadow: report.enforcement == Enforcement::Shadow,
        }
    }
}

/// An exact decimal as a JSON number.
pub(super) struct Number(pub(super) Amount);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.whole_up() == self.0 {
            return serializer.serialize_u64(self.0.whole());
        }
        let decimal = RawValue::from_string(self.0.to_string());
        decimal.map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}
