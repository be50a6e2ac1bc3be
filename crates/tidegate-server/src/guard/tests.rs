//! Callers at the door.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt as _;

use super::*;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

/// The status that a guard answers, 200 if it admits.
fn status(guard: &Guard, headers: &[(&str, &str)]) -> u16 {
    guard.admit(&parts("/x", headers)).map_or_else(|refused| refused.status.as_u16(), |_| 200)
}

fn tokens() -> Option<SharedTokens> {
    use sha2::{Digest as _, Sha256};
    let line = |role: Role| {
        let hash: [u8; 32] = Sha256::digest(role.name()).into();
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{0} a-{0} {hex}\n", role.name())
    };
    let text: String = Role::ALL.into_iter().map(line).collect();
    Some(Arc::new(ArcSwap::from_pointee(Tokens::parse("t", &text).unwrap())))
}

#[test]
fn without_tokens_loopback_is_served_and_admin_warns_of_it() {
    let local = parts("/x", &[("host", "localhost:7070")]);
    let api = Guard::new(Guarded::Api, LOOPBACK, None);
    assert!(api.admit(&local).is_ok());
    assert_eq!(api.warning(), None);
    let admin = Guard::new(Guarded::Admin, LOOPBACK, None);
    assert!(admin.admit(&local).is_ok());
    assert!(admin.warning().is_some());
}

#[test]
fn on_loopback_only_local_hosts_are_served() {
    let guard = Guard::new(Guarded::Api, Ipv6Addr::LOCALHOST.into(), None);
    for host in ["localhost", "LocalHost:1", "127.0.0.1:7070", "127.0.0.1", "[::1]", "[::1]:7070"] {
        assert_eq!(status(&guard, &[("host", host)]), 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.0.2.1",
        "me@localhost",
        "[2001:db8::1]:7070",
        "localhost:x@evil.example",
        "[localhost]",
        "::1",
        "localhost:80/x",
        "a b",
        "0.0.0.0",
    ] {
        assert_eq!(status(&guard, &[("host", host)]), 403, "{host}");
    }
    assert_eq!(status(&guard, &[("host", "")]), 400);
}

#[test]
fn a_missing_or_second_host_is_refused_but_old_http_has_none() {
    let guard = Guard::new(Guarded::Api, LOOPBACK, None);
    assert_eq!(status(&guard, &[]), 400);
    assert_eq!(status(&guard, &[("host", "localhost"), ("host", "localhost")]), 400);
    let mut old = parts("/x", &[]);
    old.version = Version::HTTP_10;
    assert!(guard.admit(&old).is_ok());
}

#[test]
fn the_authority_of_the_target_counts_as_well_as_the_header() {
    let guard = Guard::new(Guarded::Api, LOOPBACK, None);
    let status = |uri, headers: &[(&str, &str)]| guard.admit(&parts(uri, headers)).is_ok();
    assert!(status("http://localhost:7070/x", &[]));
    assert!(!status("http://evil.example/x", &[]));
    assert!(!status("http://evil.example/x", &[("host", "localhost")]));
    assert!(!status("http://localhost/x", &[("host", "evil.example")]));
}

#[test]
fn on_loopback_pages_from_elsewhere_are_refused() {
    let guard = Guard::new(Guarded::Api, LOOPBACK, None);
    let from = |origin| status(&guard, &[("host", "localhost"), ("origin", origin)]);
    for origin in ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:7071"] {
        assert_eq!(from(origin), 200, "{origin}");
    }
    for origin in [
        "null",
        "",
        "https://evil.example",
        "http://localhost.evil.example",
        "http://localhost/@evil.example",
        "file://",
    ] {
        assert_eq!(from(origin), 403, "{origin}");
    }
}

#[test]
fn an_image_on_another_site_reaches_nothing_and_a_link_only_looks() {
    let local = ("host", "localhost");
    let image = [local, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")];
    let link = [local, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    let guard = |guarded| Guard::new(guarded, LOOPBACK, None);
    assert_eq!(status(&guard(Guarded::Admin), &image), 403);
    assert_eq!(status(&guard(Guarded::Admin), &link), 200);
    assert_eq!(status(&guard(Guarded::Api), &link), 403);
    assert_eq!(status(&guard(Guarded::Api), &[local, ("sec-fetch-site", "none")]), 200);
}

#[test]
fn each_role_has_its_listeners() {
    for (guarded, served) in [
        (Guarded::Api, [Role::Client, Role::Operator, Role::Superadmin]),
        (Guarded::Admin, [Role::Viewer, Role::Operator, Role::Superadmin]),
    ] {
        let guard = Guard::new(guarded, PUBLIC, tokens());
        assert_eq!(guard.warning(), None);
        for role in Role::ALL {
            let authorization = format!("Bearer {}", role.name());
            let expected = if served.contains(&role) { 200 } else { 403 };
            let found = status(&guard, &[("authorization", &authorization)]);
            assert_eq!(found, expected, "{guarded:?} {role:?}");
        }
    }
}

#[test]
fn a_viewer_looks_and_changes_nothing() {
    let guard = Guard::new(Guarded::Admin, PUBLIC, tokens());
    for (role, may) in [(Role::Viewer, false), (Role::Operator, true), (Role::Superadmin, true)] {
        let mut parts = parts("/x", &[("authorization", &format!("Bearer {}", role.name()))]);
        assert!(guard.admit(&parts).is_ok());
        for method in [Method::DELETE, Method::POST, Method::PUT] {
            parts.method = method;
            assert_eq!(guard.admit(&parts).is_ok(), may, "{role:?}");
        }
    }
}

#[test]
fn with_tokens_loopback_needs_one_too() {
    let guard = Guard::new(Guarded::Admin, LOOPBACK, tokens());
    assert_eq!(status(&guard, &[("host", "localhost")]), 401);
    let token = ("authorization", "Bearer viewer");
    assert_eq!(status(&guard, &[("host", "localhost"), token]), 200);
    assert_eq!(status(&guard, &[("host", "evil.example"), token]), 403);
}

#[test]
fn no_token_a_wrong_one_or_two_are_401() {
    let guard = Guard::new(Guarded::Api, PUBLIC, tokens());
    let token = ("authorization", "Bearer client");
    assert_eq!(status(&guard, &[]), 401);
    assert_eq!(status(&guard, &[("authorization", "Bearer nobody")]), 401);
    assert_eq!(status(&guard, &[token, token]), 401);
}

#[test]
fn replaced_tokens_hold_at_once() {
    let shared = tokens().unwrap();
    let guard = Guard::new(Guarded::Api, PUBLIC, Some(Arc::clone(&shared)));
    let token = [("authorization", "Bearer client")];
    assert_eq!(status(&guard, &token), 200);
    shared.store(Arc::new(Tokens::default()));
    assert_eq!(status(&guard, &token), 401);
}

#[test]
fn health_is_for_everybody_to_ask_and_nothing_else() {
    let guard = Guard::new(Guarded::Admin, PUBLIC, tokens());
    assert!(guard.admit(&parts("/ready?x=1", &[])).is_ok());
    assert!(guard.admit(&parts("/health", &[])).is_ok());
    assert!(guard.admit(&parts("/health/x", &[])).is_err());
    let mut post = parts("/health", &[]);
    post.method = Method::POST;
    assert!(guard.admit(&post).is_err());
}

#[tokio::test]
async fn a_401_says_what_it_wants_as_problem_details() {
    let response = NO_TOKEN.into_response();
    assert_eq!(response.status(), 401);
    assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["status"], 401);
    assert_eq!(problem["title"], "Unauthorized");
}
