//! The published limits of a policy: as JSON, and as a page for people.

mod json;
mod page;
mod phrases;
mod reading_guide;

use std::sync::Arc;

use data_encoding::HEXLOWER;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use sha2::{Digest as _, Sha256};
use tidegate::Policy;

pub(in crate::wire) use self::json::Limits;
use crate::app::App;
use crate::body::Body;
use crate::respond;
use crate::wire::endpoint::{Answer, ErrorResponse};
use crate::wire::query::{Query, unknown_parameter};

/// `GET /v1/limits`.
pub(in crate::wire) fn json(app: &App, parts: &Parts) -> Answer {
    Ok(json_of(&*find_policy(app, parts)?, app, &parts.headers))
}

/// `GET /limits`: a page, or JSON for a caller that accepts JSON alone.
pub(in crate::wire) fn page(app: &App, parts: &Parts) -> Answer {
    Ok(page_of(&*find_policy(app, parts)?, app, &parts.headers))
}

fn json_of(policy: &Policy, app: &App, request: &HeaderMap) -> Response<Body> {
    let text = json::render(&policy.published(app.now()));
    with_etag(request, respond::json(text.clone()), text.as_bytes())
}

/// The published limits of one policy, as a page or as JSON.
pub(in crate::wire) fn page_of(policy: &Policy, app: &App, request: &HeaderMap) -> Response<Body> {
    let mut response = if wants_json(request) {
        json_of(policy, app, request)
    } else {
        let text = page::render(&policy.published(app.now()));
        let whole = respond::with_type(StatusCode::OK, "text/html; charset=utf-8", text.clone());
        let mut response = with_etag(request, whole, text.as_bytes());
        let headers = response.headers_mut();
        if let Ok(csp) = HeaderValue::try_from(page::content_security_policy()) {
            headers.insert(header::CONTENT_SECURITY_POLICY, csp);
        }
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// The policy that `?policy=NAME` names, or the first.
fn find_policy(app: &App, parts: &Parts) -> Result<Arc<Policy>, ErrorResponse> {
    let mut query = Query::parse(parts.uri.query().unwrap_or_default())?;
    let name = query.take("policy");
    if let Some(unknown) = query.names().next() {
        return Err(unknown_parameter(unknown, "`policy` alone").into());
    }
    let policy = match &name {
        None => app.engine.first_policy(),
        Some(name) => app.engine.policies().into_iter().find(|policy| policy.name() == *name),
    };
    let unknown = "there is no policy of this name in force";
    policy.ok_or_else(|| respond::problem(StatusCode::NOT_FOUND, unknown).into())
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accepts = |kind: &str| {
        let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(',')).any(|range| {
            range.split(';').next().is_some_and(|name| name.trim().eq_ignore_ascii_case(kind))
        })
    };
    accepts("application/json") && !accepts("text/html")
}

/// Caches must ask again, so that a reload shows at once. An unchanged answer is a 304.
fn with_etag(request: &HeaderMap, whole: Response<Body>, text: &[u8]) -> Response<Body> {
    let tag = format!("\"{}\"", HEXLOWER.encode(&Sha256::digest(text)[..16]));
    let known = request.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let same = known.is_some_and(|tags| {
        tags.split(',').any(|known| known.trim().trim_start_matches("W/") == tag)
    });
    let mut response = if same {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        whole
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_gets_the_page_and_a_program_that_asks_for_json_gets_json() {
        let wants = |accept: &'static str| {
            let headers = [(header::ACCEPT, HeaderValue::from_static(accept))];
            wants_json(&headers.into_iter().collect())
        };
        assert!(wants("application/json"));
        assert!(wants("Application/JSON; q=0.9, */*"));
        assert!(!wants("text/html,application/json"));
        assert!(!wants("*/*"));
        assert!(!wants_json(&HeaderMap::new()));
    }
}
