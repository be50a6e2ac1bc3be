//! A mark as operators see it.

use serde::Serialize;
use serde_json::{Map, Value};
use tidegate::clock::Now;
use tidegate::marks::Mark;

use crate::telemetry::timestamp;

#[derive(Serialize)]
pub(super) struct Shown<'m> {
    id: String,
    key: Map<String, Value>,
    /// The policy that it holds in; all without it.
    policy: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flag: Option<&'m str>,
    /// The penalty or ratio that set it, or `operator`.
    source: &'m str,
    reason: &'m str,
    since: String,
    until: Option<String>,
    left_ms: Option<u64>,
}

impl<'m> Shown<'m> {
    pub(super) fn of(mark: &'m Mark, now: Now) -> Self {
        let part = |(name, value): (&str, &str)| (name.to_owned(), Value::from(value));
        Self {
            id: format!("{:032x}", mark.id.0),
            key: mark.subject.parts().map(part).collect(),
            policy: mark.policy.as_deref(),
            flag: mark.flag.as_deref(),
            source: &mark.source,
            reason: &mark.reason,
            since: timestamp(mark.since_unix_us),
            until: mark.until_unix_us.map(timestamp),
            left_ms: mark.left_us(now).map(|us| us.div_ceil(1_000)),
        }
    }
}
