//! Challenges at the gateway: a page for browsers, JSON for programs, and the path where both answer,
//! which is never the upstream's.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tidegate::Decision;
use tidegate::operation::forwarded_path;
use tokio::time::timeout;

use super::Shared;
use super::arrived::Arrived;
use crate::app::App;
use crate::body::Body;
use crate::challenge::{Granted, PATH, Page, Said, add_to};
use crate::respond;

/// The longest answer to a challenge: the tokens of some services are long.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// What every way to write [`PATH`] ends with; other paths need no closer look.
const LAST_SEGMENT: &str = "/challenge";

/// Whether a request is about a challenge, and not for the upstream.
/// However its dots and slashes are written: it would be forwarded without them.
pub(super) fn is_answer(head: &Parts) -> bool {
    let path = head.uri.path();
    path.ends_with(LAST_SEGMENT) && forwarded_path(path).is_ok_and(|path| path == PATH)
}

/// The refusal of a request whose client must solve a challenge first.
pub(super) fn refusal(app: &App, decision: &Decision, arrived: Arrived) -> Response<Body> {
    let offer = app.offer(&arrived.asked(app, None)).ok().and_then(Result::ok);
    let head = arrived.head();
    let (is_page, is_safe) = (wants_page(&head.headers), head.method.is_safe());
    let room = arrived.into_room();
    let mut response = match &offer {
        Some(offer) if is_page => {
            let page = Page::new(offer, is_safe);
            let mut response = respond::refusal_with(decision, room, |_| Bytes::from(page.html));
            let headers = response.headers_mut();
            let html = HeaderValue::from_static("text/html; charset=utf-8");
            headers.insert(header::CONTENT_TYPE, html);
            if let Ok(csp) = HeaderValue::try_from(page.content_security_policy) {
                headers.insert(header::CONTENT_SECURITY_POLICY, csp);
            }
            headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            response
        }
        Some(offer) => {
            respond::refusal_with(decision, room, |body| with_member(body, &offer.json(Some(PATH))))
        }
        None => respond::refusal(decision, room),
    };
    no_store(&mut response);
    response.headers_mut().append(header::VARY, HeaderValue::from_static("accept"));
    response
}

impl Shared {
    /// Gives a challenge, or a pass for its solution.
    pub(super) async fn challenge(
        self: Arc<Self>,
        arrived: Arrived,
        body: Incoming,
    ) -> Response<Body> {
        let mut response = self.challenged(&arrived, body).await;
        no_store(&mut response);
        response
    }

    async fn challenged(&self, arrived: &Arrived, body: Incoming) -> Response<Body> {
        let head = arrived.head();
        if head.method != Method::POST {
            return respond::wrong_method("POST");
        }
        // Another site cannot send this type unasked, and so cannot fail in a visitor's name.
        if !is_json(&head.headers) {
            let detail = "expected Content-Type: application/json";
            return respond::problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
        }
        let text = match timeout(self.bounds.body, whole(body)).await {
            Ok(Ok(text)) => text,
            Ok(Err(status)) => return respond::problem(status, "the body cannot be read"),
            Err(_) => {
                let detail = "the body did not come in time";
                return respond::problem(StatusCode::REQUEST_TIMEOUT, detail);
            }
        };
        let said: Said<'_> = match serde_json::from_slice(&text) {
            Ok(said) => said,
            Err(_) => return respond::bad_request("", "expected `token` and `solution`, or {}"),
        };
        let asked = arrived.asked(&self.app, None);
        let Some(solution) = said.solution() else {
            return match self.app.offer(&asked) {
                Ok(Ok(offer)) => {
                    let challenge = offer.json(Some(PATH));
                    respond::json(format!("{{\"challenge\":{challenge}}}"))
                }
                Ok(Err(refused)) => refused.answer(),
                Err(error) => respond::bad_request(&error.field, &error.detail),
            };
        };
        match self.app.redeem(&asked, solution).await {
            Ok(Ok(granted)) => granted_to(&granted, arrived.is_over_tls()),
            Ok(Err(refused)) => refused.answer(),
            Err(error) => respond::bad_request(&error.field, &error.detail),
        }
    }
}

fn granted_to(granted: &Granted, over_tls: bool) -> Response<Body> {
    let mut response = respond::json(granted.json(over_tls));
    // Made of letters, digits and dots, so it is one.
    if let Ok(cookie) = HeaderValue::try_from(granted.cookie(over_tls)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

async fn whole(body: Incoming) -> Result<Bytes, StatusCode> {
    let read = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| {
        let is_long = error.is::<http_body_util::LengthLimitError>();
        if is_long { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST }
    })
}

/// A body with the challenge in it, where it is an object.
fn with_member(body: Bytes, challenge: &str) -> Bytes {
    match String::from_utf8(body.to_vec()) {
        Ok(mut json) => {
            add_to(&mut json, 0, challenge);
            json.into()
        }
        Err(_) => body,
    }
}

fn no_store(response: &mut Response<Body>) {
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"))
}

/// Whether a browser shows what comes back: it names HTML, and does not rule it out.
fn wants_page(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        let is_out = |part: &str| {
            let quality = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
            quality.is_some_and(|q| q.bytes().all(|byte| matches!(byte, b'0' | b'.')))
        };
        is_html && !parts.any(is_out)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_would_be_forwarded_to_the_path_of_answers_is_one() {
        let is_answer = |path: &str| {
            let (head, ()) = http::Request::post(path).body(()).unwrap().into_parts();
            is_answer(&head)
        };
        for path in [
            PATH,
            "/.well-known/tidegate/challenge?x=/y",
            "//.well-known/tidegate/challenge",
            "/x/../.well-known/tidegate/challenge",
            "/.well-known/./tidegate/challenge",
            "/.well-known/x/../tidegate/challenge",
            "/.well-known/tidegate/%2e/challenge",
            "/.well-known/tidegate/y/%2E%2e/challenge",
        ] {
            assert!(is_answer(path), "{path}");
        }
        for path in [
            "/",
            "/challenge",
            "/.well-known/tidegate/challenges",
            "/x/.well-known/tidegate/challenge",
        ] {
            assert!(!is_answer(path), "{path}");
        }
    }

    #[test]
    fn browsers_get_the_page_and_programs_do_not() {
        let wants = |accept: &'static str| {
            let headers = [(header::ACCEPT, HeaderValue::from_static(accept))];
            wants_page(&headers.into_iter().collect())
        };
        assert!(wants("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(wants("application/json, Text/HTML; q=0.1"));
        assert!(!wants("*/*"));
        assert!(!wants("application/json"));
        assert!(!wants("text/html;q=0, */*"));
        assert!(!wants_page(&HeaderMap::new()));
    }
}
