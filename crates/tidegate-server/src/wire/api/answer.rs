//! A decision as the decision API tells it.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;
use tidegate::plan::Enforcement;
use tidegate::units::Amount;
use tidegate::{Decision, LimitReport, Response};
use utoipa::ToSchema;

use super::fields::FieldError;
use crate::respond::{Problem, jitter};

const MILLISECOND_US: u64 = 1_000;

/// The answer to a check, as JSON.
pub(crate) fn decided(decision: &Decision, lease: Option<&str>, waited_us: Option<u64>) -> Vec<u8> {
    to_json(&Answer::of(decision, lease, waited_us))
}

/// What is answered for a request of a batch that could not be decided.
pub(crate) fn undecided(error: &FieldError) -> Vec<u8> {
    to_json(&Problem::of_field(&error.field, &error.detail))
}

pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut json = Vec::with_capacity(1_024);
    // Strings and numbers into memory: neither can fail.
    let _ = serde_json::to_writer(&mut json, value);
    json
}

/// A decision.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Decision)]
pub(super) struct Answer<'a> {
    /// Whether the request may pass.
    allowed: bool,
    /// `allowed`, `exempt`, `warned`, `limited`, `blocked`, `banned` or `challenged`.
    #[schema(pattern = "^(allowed|exempt|warned|limited|blocked|banned|challenged)$")]
    outcome: &'static str,
    /// The limit that refuses, or the one that is closest.
    #[schema(required)]
    limit: Option<&'a str>,
    /// The status for the client: 200, or that of the refusal.
    #[schema(minimum = 100, maximum = 599)]
    status: u16,
    /// When the same request would pass if nobody else came; null where no waiting helps.
    #[schema(required)]
    retry_after_ms: Option<u64>,
    /// The operation that the request was found to be.
    operation: &'a str,
    /// The tier that it was decided by.
    tier: &'a str,
    /// What the client should be told although it passes.
    warnings: Vec<&'a str>,
    /// Headers for the client.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: Headers,
    /// The body of the refusal, for the client.
    #[schema(required, value_type = Option<serde_json::Value>)]
    body: Option<Box<RawValue>>,
    /// Every limit that applied.
    #[schema(value_type = Vec<Limit<'a>>)]
    limits: Limits<'a>,
    /// What to release, renew or settle by, where there is something to.
    #[schema(required, pattern = "^[0-9a-f]{32}$")]
    lease: Option<&'a str>,
    /// Decided without the store.
    degraded: bool,
    /// How long it waited; only in acquire.
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
            waited_ms: waited_us.map(|us| us / MILLISECOND_US),
        }
    }
}

struct Headers(Vec<(Cow<'static, str>, String)>);

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

/// A limit that applied to the request.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LimitState)]
pub(super) struct Limit<'a> {
    /// The limit's name.
    name: &'a str,
    /// How it counts.
    algorithm: &'static str,
    /// The number in its spec.
    #[schema(value_type = f64)]
    limit: Number,
    /// Its window; null where it has none.
    #[schema(required)]
    window_ms: Option<u64>,
    /// How many more of this cost would pass now.
    remaining: u64,
    /// When nothing is owed any more, from now.
    #[schema(required)]
    reset_ms: Option<u64>,
    /// Whether this limit lets it pass.
    allowed: bool,
    /// On trial: told, but without effect.
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
