//! Challenges at the gateway: a page for browsers, JSON for programs, and the path where both send their
//! solutions, which is never forwarded.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use tidegate::Decision;
use tidegate::engine::Context;

use super::inbound::InboundRequest;
use super::page;
use super::target;
use crate::app::App;
use crate::body::Body;
use crate::challenge::{ChallengeError, ChallengePost, PATH, Page, Pass, add_challenge_member};
use crate::listen::RequestBody;
use crate::respond;
use crate::wire::endpoint::{ErrorResponse, read_body};

/// The longest solution: the tokens of some services are long.
const SOLUTION_BYTES_MAX: usize = 16 * 1024;

/// True if a request is for [`PATH`].
pub(super) fn is_solution(head: &Parts) -> bool {
    target::is_path(head, PATH)
}

/// The refusal of a request whose client must solve a challenge first.
pub(super) fn refusal(
    app: &App,
    decision: &Decision,
    context: &Context<'_>,
    head: &Parts,
) -> Response<Body> {
    let offer = app.issue_challenge(context).ok();
    let mut response = match &offer {
        Some(offer) if wants_page(&head.headers) => {
            let page = Page::new(offer, head.method.is_safe());
            let mut response = respond::refusal_with(decision, |_| Bytes::from(page.html));
            page::set_headers(&mut response, &page.content_security_policy);
            response
        }
        Some(offer) => {
            respond::refusal_with(decision, |body| add_challenge(body, &offer.json(Some(PATH))))
        }
        None => page::refusal(decision, &head.headers),
    };
    no_store(&mut response);
    response.headers_mut().append(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// Offers a challenge, or grants a pass for its solution.
pub(super) async fn answer_solution(
    app: &App,
    inbound: &InboundRequest,
    body: RequestBody,
    body_timeout: Duration,
) -> Response<Body> {
    let mut response = redeem_solution(app, inbound, body, body_timeout).await;
    no_store(&mut response);
    response
}

async fn redeem_solution(
    app: &App,
    inbound: &InboundRequest,
    body: RequestBody,
    body_timeout: Duration,
) -> Response<Body> {
    let head = inbound.head();
    if head.method != Method::POST {
        return respond::wrong_method("POST");
    }
    // Another site cannot send this type unasked, and so cannot fail in a visitor's name.
    if !is_json(&head.headers) {
        let detail = "expected Content-Type: application/json";
        return respond::problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
    }
    let text = match read_body(body, SOLUTION_BYTES_MAX, body_timeout).await {
        Ok(text) => text,
        Err(ErrorResponse(response)) => return *response,
    };
    let Ok(said) = serde_json::from_slice::<ChallengePost<'_>>(&text) else {
        return respond::bad_request("", "expected `token` and `solution`, or {}");
    };
    let request = inbound.to_request(app);
    let context = match app.engine.context(&request) {
        Ok(context) => context,
        Err(error) => return respond::bad_request(&error.field, &error.detail),
    };
    let answered = match said.solution() {
        Some(solution) => app
            .redeem_solution(&context, solution)
            .await
            .map(|granted| grant_pass(&granted, inbound.is_over_tls())),
        None => app
            .issue_challenge(&context)
            .map(|offer| respond::json(format!("{{\"challenge\":{}}}", offer.json(Some(PATH))))),
    };
    answered.unwrap_or_else(ChallengeError::answer)
}

fn grant_pass(granted: &Pass, over_tls: bool) -> Response<Body> {
    let mut response = respond::json(granted.json(over_tls));
    // Made of letters, digits and dots, so it is a header value.
    if let Ok(cookie) = HeaderValue::try_from(granted.cookie(over_tls)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// A body with the challenge in it, where it is an object.
fn add_challenge(body: Bytes, challenge: &str) -> Bytes {
    match String::from_utf8(body.to_vec()) {
        Ok(mut json) => {
            add_challenge_member(&mut json, 0, challenge);
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

/// True if a browser shows the answer: it accepts HTML by name.
fn wants_page(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        is_html && !parts.any(page::is_zero_quality)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_would_be_forwarded_to_the_path_of_solutions_is_one() {
        let is_solution = |path: &str| {
            let (head, ()) = http::Request::post(path).body(()).unwrap().into_parts();
            is_solution(&head)
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
            assert!(is_solution(path), "{path}");
        }
        for path in [
            "/",
            "/challenge",
            "/.well-known/tidegate/challenges",
            "/x/.well-known/tidegate/challenge",
        ] {
            assert!(!is_solution(path), "{path}");
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
