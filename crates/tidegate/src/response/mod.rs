//! The answer that a decision asks for: status, headers and body, the same on every surface.

mod body;

use std::ops::Range;

use smallvec::SmallVec;

pub(crate) use body::{Body, Piece, Placeholder, as_written, parse_text};

use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::Enforcement;
use crate::policy::model::Limit;
use crate::text::{push_decimal, push_number};
use crate::units::{SECOND_US, seconds_rounded_up};

/// Room for the headers and body of nearly every answer.
const TEXT_BYTES: usize = 512;

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

/// An answer to a client. All that was rendered for it stands in one text.
#[derive(Clone, Debug)]
pub struct Response<'d> {
    /// The HTTP status; 200 where the request passes.
    pub status: u16,
    /// The values of the headers and the body, one behind the other.
    pub text: String,
    /// Headers to set, on the upstream's answer where the request passes: the name of each, and
    /// where its value stands.
    pub header_spans: HeaderSpans<'d>,
    /// Where the body of a refusal stands.
    pub body_span: Option<Range<usize>>,
}

/// Names of headers, and where their values stand.
pub type HeaderSpans<'d> = SmallVec<[(&'d str, Range<usize>); 8]>;

impl<'d> Response<'d> {
    /// Renders a decision.
    #[must_use]
    pub fn of(decision: &'d Decision, jitter: Jitter) -> Self {
        let retry_after_us = decision.retry_after_us().map(|us| jittered(us, jitter, decision));
        let mut response = Self {
            status: decision.status(),
            text: String::with_capacity(TEXT_BYTES),
            header_spans: SmallVec::new(),
            body_span: None,
        };
        response.add_rate_limits(decision);
        if decision.outcome == Outcome::Warned {
            response.add_warnings(decision);
        }
        if !decision.is_allowed() {
            response.refuse(decision, retry_after_us);
        }
        response
    }

    /// The headers, with their values.
    pub fn headers(&self) -> impl Iterator<Item = (&'d str, &str)> {
        self.header_spans.iter().map(|(name, span)| (*name, self.at(span)))
    }

    /// The value of a header, whatever its case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The body of a refusal.
    #[must_use]
    pub fn body(&self) -> Option<&str> {
        self.body_span.as_ref().map(|span| self.at(span))
    }

    fn at(&self, span: &Range<usize>) -> &str {
        self.text.get(span.clone()).unwrap_or_default()
    }

    fn add(&mut self, name: &'d str, write: impl FnOnce(&mut String)) {
        let start = self.text.len();
        write(&mut self.text);
        self.header_spans.push((name, start..self.text.len()));
    }

    fn add_rate_limits(&mut self, decision: &Decision) {
        let style = decision.policy.response.headers;
        if let Some(named) = decision.limit().filter(|_| style != HeaderStyle::Ietf) {
            let limit = named.spec.number().micros();
            self.add("X-RateLimit-Limit", |text| push_decimal(text, limit));
            self.add("X-RateLimit-Remaining", |text| push_number(text, named.remaining()));
            if let Some(reset) = reset_unix_seconds(decision, named) {
                self.add("X-RateLimit-Reset", |text| push_number(text, reset));
            }
        }
        if style != HeaderStyle::X && published(decision).next().is_some() {
            self.add("RateLimit-Policy", |text| write_policies(decision, text));
            self.add("RateLimit", |text| write_states(decision, text));
        }
    }

    fn add_warnings(&mut self, decision: &Decision) {
        self.add("X-RateLimit-Warning", |text| {
            for (index, name) in decision.warnings().enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                text.push_str(name);
            }
        });
    }

    /// Everything that only a refusal has.
    fn refuse(&mut self, decision: &'d Decision, retry_after_us: Option<u64>) {
        let rules = &decision.policy.response;
        if let Some(us) = retry_after_us {
            self.add("Retry-After", |text| push_number(text, seconds_rounded_up(us).max(1)));
        }
        let body = policy_body(decision);
        let standard = body.map_or("application/problem+json", |_| "application/json");
        let content_type = rules.content_type.as_deref().unwrap_or(standard);
        self.add("Content-Type", |text| text.push_str(content_type));
        for (name, value) in &rules.add {
            self.add(name, |text| text.push_str(value));
        }
        let start = self.text.len();
        let values = body::Values { decision, retry_after_us };
        match body {
            Some(body) => body.write(&values, &mut self.text),
            None => body::write_problem_details(&values, &mut self.text),
        }
        self.body_span = Some(start..self.text.len());
    }
}

/// Adds, never subtracts.
fn jittered(us: u64, jitter: Jitter, decision: &Decision) -> u64 {
    let Jitter::Millionths(roll) = jitter else { return us };
    let span = u128::from(us) * u128::from(decision.policy.response.jitter_ppm) / 1_000_000;
    let extra = span * u128::from(roll.min(1_000_000)) / 1_000_000;
    us.saturating_add(u64::try_from(extra).unwrap_or(u64::MAX))
}

fn policy_body(decision: &Decision) -> Option<&Body> {
    let rules = &decision.policy.response;
    if decision.outcome == Outcome::Blocked {
        return rules.blocked.body.as_ref();
    }
    let limit = decision.limit().and_then(|report| decision.limit_of(report));
    limit.and_then(|limit| limit.refusal.body.as_ref()).or(rules.body.as_ref())
}

/// The limits that a client may know of.
fn published(decision: &Decision) -> impl Iterator<Item = (&Limit, &LimitReport)> {
    let shown = |report: &&LimitReport| report.enforcement != Enforcement::Shadow;
    decision.limits.iter().filter(shown).filter_map(|report| {
        let limit = decision.limit_of(report).filter(|limit| limit.is_published())?;
        Some((limit, report))
    })
}

/// `"per-user";q=100;w=60, …`
fn write_policies(decision: &Decision, text: &mut String) {
    for (index, (limit, report)) in published(decision).enumerate() {
        push_item(text, index, limit, ";q=", report.spec.number().whole());
        if let Some(us) = report.spec.window_us() {
            text.push_str(";w=");
            push_number(text, seconds_rounded_up(us));
        }
    }
}

/// `"per-user";r=99;t=1, …`
fn write_states(decision: &Decision, text: &mut String) {
    for (index, (limit, report)) in published(decision).enumerate() {
        push_item(text, index, limit, ";r=", report.remaining());
        if let Some(us) = report.retry_after_us().or(report.reset_us) {
            text.push_str(";t=");
            push_number(text, seconds_rounded_up(us));
        }
    }
}

fn push_item(text: &mut String, index: usize, limit: &Limit, parameter: &str, value: u64) {
    text.push_str(if index > 0 { ", \"" } else { "\"" });
    text.push_str(limit.name());
    text.push('"');
    text.push_str(parameter);
    push_number(text, value);
}

/// When nothing is owed any more, as Unix seconds, rounded up.
pub(crate) fn reset_unix_seconds(decision: &Decision, report: &LimitReport) -> Option<u64> {
    report.reset_us.map(|us| decision.now.unix_us.saturating_add(us).div_ceil(SECOND_US))
}
