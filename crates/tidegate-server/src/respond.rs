//! Turning decisions and errors into HTTP answers, the same on every listener.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use tidegate::{Decision, HeaderSpans, Jitter};

use crate::body::Body;

/// The refusal that a decision asks for.
pub(crate) fn refusal(decision: &Decision) -> Response<Body> {
    let rendered = tidegate::Response::of(decision, jitter());
    let text = Bytes::from(rendered.text);
    let body = rendered.body_span.map_or_else(Bytes::new, |span| text.slice(span));
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() =
        StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    set(&mut response, &text, rendered.header_spans);
    response
}

/// Puts the rate limit headers on an answer that passes.
pub(crate) fn annotate<B>(response: &mut Response<B>, decision: &Decision) {
    let rendered = tidegate::Response::of(decision, Jitter::None);
    set(response, &Bytes::from(rendered.text), rendered.header_spans);
}

/// A request that cannot be understood.
pub(crate) fn bad_request(field: &str, detail: &str) -> Response<Body> {
    // What is wrong with the whole has no field.
    let place = if field.is_empty() { String::new() } else { format!("{field}: ") };
    let body = serde_json::json!({
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": format!("{place}{detail}"),
        "field": field,
    });
    with_type(StatusCode::BAD_REQUEST, "application/problem+json", body.to_string())
}

/// Problem details (RFC 9457) for anything else.
pub(crate) fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    let body = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": detail,
    });
    with_type(status, "application/problem+json", body.to_string())
}

/// A JSON answer.
pub(crate) fn json(body: impl Into<Bytes>) -> Response<Body> {
    with_type(StatusCode::OK, "application/json", body)
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
fn set<B>(response: &mut Response<B>, text: &Bytes, headers: HeaderSpans<'_>) {
    response.headers_mut().reserve(headers.len());
    for (name, span) in headers {
        let value = HeaderValue::from_maybe_shared(text.slice(span));
        if let (Some(name), Ok(value)) = (header_name(name), value) {
            response.headers_mut().insert(name, value);
        }
    }
}

/// The names that nearly every answer has need no reading.
fn header_name(name: &str) -> Option<HeaderName> {
    Some(match name {
        "X-RateLimit-Limit" => HeaderName::from_static("x-ratelimit-limit"),
        "X-RateLimit-Remaining" => HeaderName::from_static("x-ratelimit-remaining"),
        "X-RateLimit-Reset" => HeaderName::from_static("x-ratelimit-reset"),
        "RateLimit-Policy" => HeaderName::from_static("ratelimit-policy"),
        "RateLimit" => HeaderName::from_static("ratelimit"),
        "Retry-After" => header::RETRY_AFTER,
        "Content-Type" => header::CONTENT_TYPE,
        other => HeaderName::try_from(other).ok()?,
    })
}
