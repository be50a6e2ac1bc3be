//! The answer that a decision asks for: status, headers and body, the same on every surface.

mod body;

use std::borrow::Cow;
use std::fmt::Write as _;

pub(crate) use body::{Body, Piece, Placeholder, as_written, parse_text};

use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::Enforcement;
use crate::units::{SECOND_US, seconds_rounded_up};

/// How the policy answers.
#[derive(Debug)]
pub(crate) struct ResponseRules {
    pub(crate) headers: HeaderStyle,
    pub(crate) message: Vec<Piece>,
    pub(crate) body: Option<Body>,
    pub(crate) content_type: Option<String>,
    pub(crate) add: Vec<(String, String)>,
    /// The most that is added to Retry-After, in millionths of it.
    pub(crate) jitter_ppm: u32,
    pub(crate) blocked: BlockedRules,
}

/// How a blocked client is answered.
#[derive(Debug)]
pub(crate) struct BlockedRules {
    pub(crate) status: u16,
    pub(crate) body: Option<Body>,
}

/// Which rate limit headers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    X,
    /// `RateLimit-Policy` and `RateLimit`.
    Ietf,
    /// All of them.
    Both,
}

/// How much of the policy's jitter to add to Retry-After.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// None: exact.
    None,
    /// This many millionths of the policy's span, drawn by the surface.
    Millionths(u32),
}

/// An answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status; 200 where the request passes.
    pub status: u16,
    /// Headers to set, on the upstream's answer where the request passes.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// The body of a refusal.
    pub body: Option<String>,
}

impl Response {
    /// Renders a decision.
    #[must_use]
    pub fn of(decision: &Decision, jitter: Jitter) -> Self {
        let retry_after_us = decision.retry_after_us().map(|us| jittered(us, jitter, decision));
        let mut headers = Vec::with_capacity(8);
        rate_limit_headers(decision, &mut headers);
        let warnings: Vec<&str> = decision.warnings().collect();
        if !warnings.is_empty() {
            headers.push(header("X-RateLimit-Warning", warnings.join(", ")));
        }
        let body =
            (!decision.is_allowed()).then(|| refusal(decision, retry_after_us, &mut headers));
        Self { status: decision.status(), headers, body }
    }

    /// The value of a header, whatever its case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

type Headers = Vec<(Cow<'static, str>, String)>;

/// Adds, never subtracts.
fn jittered(us: u64, jitter: Jitter, decision: &Decision) -> u64 {
    let Jitter::Millionths(roll) = jitter else { return us };
    let span = u128::from(us) * u128::from(decision.policy.response.jitter_ppm) / 1_000_000;
    let extra = span * u128::from(roll.min(1_000_000)) / 1_000_000;
    us.saturating_add(u64::try_from(extra).unwrap_or(u64::MAX))
}

/// Everything that only a refusal has; returns its body.
fn refusal(decision: &Decision, retry_after_us: Option<u64>, headers: &mut Headers) -> String {
    let rules = &decision.policy.response;
    if let Some(us) = retry_after_us {
        headers.push(header("Retry-After", seconds_rounded_up(us).max(1).to_string()));
    }
    let values = body::Values { decision, retry_after_us };
    let (body, standard_type) = match policy_body(decision) {
        Some(body) => (body.render(&values), "application/json"),
        None => (body::problem_details(&values), "application/problem+json"),
    };
    let content_type = rules.content_type.as_deref().unwrap_or(standard_type);
    headers.push(header("Content-Type", content_type));
    let added = rules.add.iter().cloned();
    headers.extend(added.map(|(name, value)| (Cow::Owned(name), value)));
    body
}

fn policy_body(decision: &Decision) -> Option<&Body> {
    let rules = &decision.policy.response;
    if decision.outcome == Outcome::Blocked {
        return rules.blocked.body.as_ref();
    }
    let limit = decision.limit().and_then(|report| decision.limit_of(report));
    limit.and_then(|limit| limit.refusal.body.as_ref()).or(rules.body.as_ref())
}

fn rate_limit_headers(decision: &Decision, headers: &mut Headers) {
    let style = decision.policy.response.headers;
    if let Some(named) = decision.limit().filter(|_| style != HeaderStyle::Ietf) {
        headers.push(header("X-RateLimit-Limit", named.spec.number().to_string()));
        headers.push(header("X-RateLimit-Remaining", named.remaining().to_string()));
        if let Some(reset) = reset_unix_seconds(decision, named) {
            headers.push(header("X-RateLimit-Reset", reset.to_string()));
        }
    }
    if style != HeaderStyle::X {
        ietf_headers(decision, headers);
    }
}

fn ietf_headers(decision: &Decision, headers: &mut Headers) {
    let (mut policies, mut states) = (String::with_capacity(64), String::with_capacity(64));
    for report in decision.limits.iter().filter(|report| report.enforcement != Enforcement::Shadow)
    {
        let Some(limit) = decision.limit_of(report).filter(|limit| limit.is_published()) else {
            continue;
        };
        let comma = if policies.is_empty() { "" } else { ", " };
        let (name, number, remaining) = (limit.name(), report.spec.number(), report.remaining());
        // Writing to a String cannot fail.
        let _ = write!(policies, "{comma}\"{name}\";q={}", number.whole());
        let _ = write!(states, "{comma}\"{name}\";r={remaining}");
        if let Some(us) = report.spec.window_us() {
            let _ = write!(policies, ";w={}", seconds_rounded_up(us));
        }
        if let Some(us) = report.retry_after_us().or(report.reset_us) {
            let _ = write!(states, ";t={}", seconds_rounded_up(us));
        }
    }
    if !policies.is_empty() {
        headers.push(header("RateLimit-Policy", policies));
        headers.push(header("RateLimit", states));
    }
}

/// When nothing is owed any more, as Unix seconds, rounded up.
pub(crate) fn reset_unix_seconds(decision: &Decision, report: &LimitReport) -> Option<u64> {
    report.reset_us.map(|us| decision.now.unix_us.saturating_add(us).div_ceil(SECOND_US))
}

fn header(name: &'static str, value: impl Into<String>) -> (Cow<'static, str>, String) {
    (Cow::Borrowed(name), value.into())
}
