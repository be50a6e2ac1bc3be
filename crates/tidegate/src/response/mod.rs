//! Renders the answer to a decision: status, headers and body, the same on every surface.

mod body;
mod headers;
mod problem;

use std::ops::Range;

use smallvec::SmallVec;

pub(crate) use body::{Body, Fill, Piece, Placeholder, parse_text, template_text};
pub(crate) use headers::HeaderItems;

use crate::decision::{Decision, Outcome};
use crate::text::{push_escaped, push_number};
use crate::units::seconds_rounded_up;

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
    pub(crate) blocked: RefusalRules,
    pub(crate) banned: RefusalRules,
    pub(crate) challenged: RefusalRules,
}

/// The answer to a client that is blocked, banned or challenged, not refused by a limit.
#[derive(Debug)]
pub(crate) struct RefusalRules {
    pub(crate) status: u16,
    pub(crate) body: Option<Body>,
}

impl RefusalRules {
    /// Where the policy says nothing.
    pub(crate) const FORBIDDEN: Self = Self { status: 403, body: None };
}

impl ResponseRules {
    /// The rules for blocked, banned and challenged clients; `None` for all other outcomes.
    pub(crate) const fn refusal(&self, outcome: Outcome) -> Option<&RefusalRules> {
        match outcome {
            Outcome::Blocked => Some(&self.blocked),
            Outcome::Banned => Some(&self.banned),
            Outcome::Challenged => Some(&self.challenged),
            Outcome::Allowed | Outcome::Exempt | Outcome::Warned | Outcome::Limited => None,
        }
    }
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
    /// Where the body of a refusal stands.
    pub body_span: Option<Range<usize>>,
    header_spans: SmallVec<[(&'d str, Range<usize>); 8]>,
}

/// Where an answer is rendered to: first the headers, then the body of a refusal.
pub trait Sink<'d> {
    /// Whether the values of headers stand in JSON strings, and are escaped for that.
    const IN_JSON: bool;

    /// Takes a header; `write` appends its value.
    fn header(&mut self, name: &'d str, write: impl FnOnce(&mut String));

    /// Takes the body, which is JSON; `write` appends it.
    fn body(&mut self, write: impl FnOnce(&mut String));
}

/// Renders the headers and body that a decision asks for.
pub fn render<'d>(decision: &'d Decision, jitter: Jitter, sink: &mut impl Sink<'d>) {
    headers::render(decision, sink);
    if decision.warnings().next().is_some() {
        sink.header("X-RateLimit-Warning", |text| {
            for (index, name) in decision.warnings().enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                text.push_str(name);
            }
        });
    }
    if !decision.is_allowed() {
        let retry_after_us = decision.retry_after_us().map(|us| add_jitter(us, jitter, decision));
        render_refusal(decision, retry_after_us, sink);
    }
}

impl<'d> Response<'d> {
    /// Renders a decision.
    #[must_use]
    pub fn of(decision: &'d Decision, jitter: Jitter) -> Self {
        let mut response = Self {
            status: decision.status(),
            text: String::with_capacity(TEXT_BYTES),
            header_spans: SmallVec::new(),
            body_span: None,
        };
        render(decision, jitter, &mut response);
        response
    }

    /// Headers to set, on the upstream's answer where the request passes: the name of each, and
    /// where its value stands in the text.
    #[must_use]
    pub fn header_spans(&self) -> &[(&'d str, Range<usize>)] {
        &self.header_spans
    }

    /// The headers, with their values.
    pub fn headers(&self) -> impl Iterator<Item = (&'d str, &str)> {
        self.header_spans.iter().map(|(name, span)| (*name, self.at(span)))
    }

    /// The value of a header; the case of its name does not matter.
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

    fn append(&mut self, write: impl FnOnce(&mut String)) -> Range<usize> {
        let start = self.text.len();
        write(&mut self.text);
        start..self.text.len()
    }
}

impl<'d> Sink<'d> for Response<'d> {
    const IN_JSON: bool = false;

    fn header(&mut self, name: &'d str, write: impl FnOnce(&mut String)) {
        let span = self.append(write);
        self.header_spans.push((name, span));
    }

    fn body(&mut self, write: impl FnOnce(&mut String)) {
        self.body_span = Some(self.append(write));
    }
}

/// Everything that only a refusal has.
fn render_refusal<'d, S: Sink<'d>>(
    decision: &'d Decision,
    retry_after_us: Option<u64>,
    sink: &mut S,
) {
    let rules = &decision.policy().response;
    if let Some(us) = retry_after_us {
        sink.header("Retry-After", |text| push_number(text, seconds_rounded_up(us).max(1)));
    }
    let push = if S::IN_JSON { push_escaped } else { String::push_str };
    let body = policy_body(decision);
    let standard = body.map_or("application/problem+json", |_| "application/json");
    sink.header("Content-Type", |text| {
        push(text, rules.content_type.as_deref().unwrap_or(standard));
    });
    for (name, value) in &rules.add {
        sink.header(name, |text| push(text, value));
    }
    let values = body::Values { decision, retry_after_us };
    sink.body(|text| match body {
        Some(body) => body.write(&values, text),
        None => problem::write(&values, text),
    });
}

/// Adds, never subtracts.
fn add_jitter(us: u64, jitter: Jitter, decision: &Decision) -> u64 {
    let (Jitter::Millionths(roll), ppm @ 1..) = (jitter, decision.policy().response.jitter_ppm)
    else {
        return us;
    };
    let span = u128::from(us) * u128::from(ppm) / 1_000_000;
    let extra = span * u128::from(roll.min(1_000_000)) / 1_000_000;
    us.saturating_add(u64::try_from(extra).unwrap_or(u64::MAX))
}

impl Decision {
    /// True if the policy sets the body of this refusal; otherwise the body is problem details.
    #[must_use]
    pub fn has_own_body(&self) -> bool {
        policy_body(self).is_some()
    }
}

fn policy_body(decision: &Decision) -> Option<&Body> {
    let rules = &decision.policy().response;
    if let Some(refusal) = rules.refusal(decision.outcome) {
        return refusal.body.as_ref();
    }
    let limit = decision.limit().and_then(|report| decision.limit_of(report));
    limit.and_then(|limit| limit.refusal.body.as_ref()).or(rules.body.as_ref())
}
