//! Turning decisions and errors into HTTP answers, the same on every listener.
//!
//! An answer that is given often is made in the header map of its request ([`Room`]): hyper takes the
//! map back from the answer for the next request, so that a connection never makes another.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use tidegate::{Decision, HeaderSpans, Jitter};
use utoipa::ToSchema;

use crate::body::Body;

/// The type of problem details.
const PROBLEM: &str = "application/problem+json";
/// As a constant it is checked once, by the compiler.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Room for the headers of an answer.
pub(crate) struct Room(HeaderMap);

impl Room {
    /// The header map of a request that nobody needs any more.
    pub(crate) fn of(mut headers: HeaderMap) -> Self {
        headers.clear();
        Self(headers)
    }

    fn answer(self, body: impl Into<Bytes>) -> Response<Body> {
        let mut response = Response::new(Body::whole(body));
        *response.headers_mut() = self.0;
        response
    }
}

/// The refusal that a decision asks for.
pub(crate) fn refusal(decision: &Decision, room: Room) -> Response<Body> {
    refusal_with(decision, room, |body| body)
}

/// The same with a body that is made of the policy's.
pub(crate) fn refusal_with(
    decision: &Decision,
    room: Room,
    remade: impl FnOnce(Bytes) -> Bytes,
) -> Response<Body> {
    let rendered = tidegate::Response::of(decision, jitter());
    let text = Bytes::from(rendered.text);
    let body = rendered.body_span.map_or_else(Bytes::new, |span| text.slice(span));
    let mut response = room.answer(remade(body));
    *response.status_mut() =
        StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    set(&mut response, &text, &rendered.header_spans);
    response
}

/// Puts the rate limit headers on an answer that passes.
pub(crate) fn annotate<B>(response: &mut Response<B>, decision: &Decision) {
    let rendered = tidegate::Response::of(decision, Jitter::None);
    set(response, &Bytes::from(rendered.text), &rendered.header_spans);
}

/// A request that cannot be understood.
pub(crate) fn bad_request(field: &str, detail: &str) -> Response<Body> {
    Problem::of_field(field, detail).answer(StatusCode::BAD_REQUEST)
}

/// Problem details for anything else.
pub(crate) fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    Problem::new(status, detail).answer(status)
}

/// The same with a word that programs go by.
pub(crate) fn problem_because(
    status: StatusCode,
    detail: &str,
    reason: &'static str,
) -> Response<Body> {
    let mut problem = Problem::new(status, detail);
    problem.reason = Some(reason);
    problem.answer(status)
}

/// A call that is there, but not by this method; `allowed` is what `Allow` says.
pub(crate) fn wrong_method(allowed: &'static str) -> Response<Body> {
    let mut response =
        problem(StatusCode::METHOD_NOT_ALLOWED, &format!("this call takes {allowed}"));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Problem details (RFC 9457).
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Problem)]
pub(crate) struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    #[schema(value_type = String)]
    detail: Cow<'a, str>,
    /// What is wrong with the call: `attributes.room`, `[3].cost`; empty for all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// Why a challenge earns no pass: `expired`, `wrong`, `used`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl<'a> Problem<'a> {
    fn new(status: StatusCode, detail: &'a str) -> Self {
        Self {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: Cow::Borrowed(detail),
            field: None,
            reason: None,
        }
    }

    /// A request that cannot be understood, and where.
    pub(crate) fn of_field(field: &'a str, detail: &'a str) -> Self {
        let mut problem = Self::new(StatusCode::BAD_REQUEST, detail);
        problem.field = Some(field);
        // What is wrong with the whole has no place.
        if !field.is_empty() {
            problem.detail = Cow::Owned(format!("{field}: {detail}"));
        }
        problem
    }

    fn answer(&self, status: StatusCode) -> Response<Body> {
        // Strings and a number into memory: neither can fail.
        let json = serde_json::to_vec(self).unwrap_or_default();
        with_type(status, PROBLEM, json)
    }
}

/// A JSON answer.
pub(crate) fn json(body: impl Into<Bytes>) -> Response<Body> {
    json_in(Room(HeaderMap::new()), body)
}

/// A JSON answer in the room of its request.
pub(crate) fn json_in(room: Room, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = room.answer(body);
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// A whole answer of a type.
pub(crate) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// How much of the policy's jitter this refusal gets.
pub(crate) fn jitter() -> Jitter {
    Jitter::Millionths(fastrand::u32(..=1_000_000))
}

/// Names and values come from a checked policy; one that HTTP cannot carry is left out.
fn set<B>(response: &mut Response<B>, text: &Bytes, headers: &HeaderSpans<'_>) {
    response.headers_mut().reserve(headers.len());
    for (name, span) in headers {
        if let (Some(name), Some(value)) = (header_name(name), header_value(text, span.clone())) {
            response.headers_mut().insert(name, value);
        }
    }
}

/// The values that nearly every refusal has are not counted as parts of its text.
fn header_value(text: &Bytes, span: Range<usize>) -> Option<HeaderValue> {
    const NONE: HeaderValue = HeaderValue::from_static("0");
    const DETAILS: HeaderValue = HeaderValue::from_static(PROBLEM);
    match text.get(span.clone())? {
        b"0" => Some(NONE),
        b"application/json" => Some(JSON),
        b"application/problem+json" => Some(DETAILS),
        _ => HeaderValue::from_maybe_shared(text.slice(span)).ok(),
    }
}

/// The names that nearly every answer has need no reading.
fn header_name(name: &str) -> Option<HeaderName> {
    const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
    const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
    const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
    const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
    const STATE: HeaderName = HeaderName::from_static("ratelimit");
    Some(match name {
        "X-RateLimit-Limit" => LIMIT,
        "X-RateLimit-Remaining" => REMAINING,
        "X-RateLimit-Reset" => RESET,
        "RateLimit-Policy" => POLICY,
        "RateLimit" => STATE,
        "Retry-After" => header::RETRY_AFTER,
        "Content-Type" => header::CONTENT_TYPE,
        other => HeaderName::try_from(other).ok()?,
    })
}
