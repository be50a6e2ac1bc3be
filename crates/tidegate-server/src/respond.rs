//! Turns decisions and errors into status codes and headers, the same on every listener.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use tidegate::{Decision, Jitter};
use utoipa::ToSchema;

use crate::body::Body;

/// The media type of problem details.
const PROBLEM: &str = "application/problem+json";

/// The refusal that a decision asks for.
pub(crate) fn refusal(decision: &Decision) -> Response<Body> {
    refusal_with(decision, |body| body)
}

/// The refusal that a decision asks for, with another body that is made of the policy's.
pub(crate) fn refusal_with(
    decision: &Decision,
    remake: impl FnOnce(Bytes) -> Bytes,
) -> Response<Body> {
    let mut rendered = tidegate::Response::of(decision, jitter());
    let text = Bytes::from(std::mem::take(&mut rendered.text));
    let body = rendered.body_span.clone().map_or_else(Bytes::new, |span| text.slice(span));
    let mut response = Response::new(Body::whole(remake(body)));
    *response.status_mut() =
        StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    set_headers(&mut response, &text, rendered.header_spans());
    response
}

/// Puts the rate limit headers on an answer that passes.
pub(crate) fn annotate<B>(response: &mut Response<B>, decision: &Decision) {
    let mut rendered = tidegate::Response::of(decision, Jitter::None);
    let text = Bytes::from(std::mem::take(&mut rendered.text));
    set_headers(response, &text, rendered.header_spans());
}

/// A request that cannot be understood.
pub(crate) fn bad_request(field: &str, detail: &str) -> Response<Body> {
    Problem::of_field(field, detail).answer(StatusCode::BAD_REQUEST)
}

/// Problem details for anything else.
pub(crate) fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    Problem::new(status, detail).answer(status)
}

/// Problem details with a reason that programs go by.
pub(crate) fn problem_because(
    status: StatusCode,
    detail: &str,
    reason: &'static str,
) -> Response<Body> {
    let mut problem = Problem::new(status, detail);
    problem.reason = Some(reason);
    problem.answer(status)
}

/// A call that exists, but not with this method; `allowed` is what `Allow` says.
pub(crate) fn wrong_method(allowed: &str) -> Response<Body> {
    let mut response =
        problem(StatusCode::METHOD_NOT_ALLOWED, &format!("this call takes {allowed}"));
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
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
    /// The field of the call that is wrong: `attributes.room`, `[3].cost`; empty for the whole call.
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

    /// A request that cannot be understood, and the field that is wrong.
    pub(crate) fn of_field(field: &'a str, detail: &'a str) -> Self {
        let mut problem = Self::new(StatusCode::BAD_REQUEST, detail);
        problem.field = Some(field);
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
    with_type(StatusCode::OK, "application/json", body)
}

/// An answer of a media type.
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

/// A random share of the policy's jitter, for one refusal.
pub(crate) fn jitter() -> Jitter {
    Jitter::Millionths(fastrand::u32(..=1_000_000))
}

/// Names and values come from a checked policy; one that HTTP cannot carry is left out. `RateLimit` and
/// `RateLimit-Policy` are lists: those of an upstream stay, and ours are added.
fn set_headers<B>(response: &mut Response<B>, text: &Bytes, headers: &[(&str, Range<usize>)]) {
    for (name, span) in headers {
        let value = HeaderValue::from_maybe_shared(text.slice(span.clone()));
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(*name), value) {
            let is_list = matches!(name.as_str(), "ratelimit" | "ratelimit-policy");
            let headers = response.headers_mut();
            if is_list {
                headers.append(name, value);
            } else {
                headers.insert(name, value);
            }
        }
    }
}
