//! Tests of hosts, origins, tokens and roles.

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

/// The status of the refusal of a GET, 200 if it is authorised.
fn status(auth: &Auth, headers: &[(&str, &str)]) -> u16 {
    get(auth, &parts("/x", headers)).map_or_else(|error| error.status.as_u16(), |_| 200)
}

fn get(auth: &Auth, parts: &Parts) -> Result<Option<TokenHolder>, AuthError> {
    auth.authorize(parts, auth.realm.least_access(&Method::GET))
}

fn tokens() -> Option<SharedTokens> {
    use sha2::{Digest as _, Sha256};
    let line = |role: Role| {
        let hex = data_encoding::HEXLOWER.encode(&Sha256::digest(role.name()));
        format!("{0} a-{0} {hex}\n", role.name())
    };
    let text: String = Role::ALL.into_iter().map(line).collect();
    Some(Arc::new(ArcSwap::from_pointee(Tokens::parse("t", &text).unwrap())))
}

#[test]
fn without_tokens_loopback_is_served_and_admin_warns_of_it() {
    let local = parts("/x", &[("host", "localhost:7070")]);
    let api = Auth::new(Realm::Api, LOOPBACK, None);
    assert!(get(&api, &local).is_ok());
    assert_eq!(api.warning(), None);
    let admin = Auth::new(Realm::Admin, LOOPBACK, None);
    assert!(get(&admin, &local).is_ok());
    assert!(admin.warning().is_some());
}

#[test]
fn on_loopback_only_local_hosts_are_served() {
    let auth = Auth::new(Realm::Api, Ipv6Addr::LOCALHOST.into(), None);
    for host in ["localhost", "LocalHost:1", "127.0.0.1:7070", "127.0.0.1", "[::1]", "[::1]:7070"] {
        assert_eq!(status(&auth, &[("host", host)]), 200, "{host}");
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
        assert_eq!(status(&auth, &[("host", host)]), 403, "{host}");
    }
    assert_eq!(status(&auth, &[("host", "")]), 400);
}

#[test]
fn a_missing_or_second_host_is_refused_but_old_http_has_none() {
    let auth = Auth::new(Realm::Api, LOOPBACK, None);
    assert_eq!(status(&auth, &[]), 400);
    assert_eq!(status(&auth, &[("host", "localhost"), ("host", "localhost")]), 400);
    let mut old = parts("/x", &[]);
    old.version = Version::HTTP_10;
    assert!(get(&auth, &old).is_ok());
}

#[test]
fn the_authority_of_the_target_counts_as_well_as_the_header() {
    let auth = Auth::new(Realm::Api, LOOPBACK, None);
    let status = |uri, headers: &[(&str, &str)]| get(&auth, &parts(uri, headers)).is_ok();
    assert!(status("http://localhost:7070/x", &[]));
    assert!(!status("http://evil.example/x", &[]));
    assert!(!status("http://evil.example/x", &[("host", "localhost")]));
    assert!(!status("http://localhost/x", &[("host", "evil.example")]));
}

#[test]
fn on_loopback_pages_from_elsewhere_are_refused() {
    let auth = Auth::new(Realm::Api, LOOPBACK, None);
    let from = |origin| status(&auth, &[("host", "localhost"), ("origin", origin)]);
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
    let auth = |realm| Auth::new(realm, LOOPBACK, None);
    assert_eq!(status(&auth(Realm::Admin), &image), 403);
    assert_eq!(status(&auth(Realm::Admin), &link), 200);
    assert_eq!(status(&auth(Realm::Api), &link), 403);
    assert_eq!(status(&auth(Realm::Api), &[local, ("sec-fetch-site", "none")]), 200);
}

#[test]
fn each_role_has_its_listeners() {
    for (realm, served) in [
        (Realm::Api, [Role::Client, Role::Operator, Role::Superadmin]),
        (Realm::Admin, [Role::Viewer, Role::Operator, Role::Superadmin]),
    ] {
        let auth = Auth::new(realm, PUBLIC, tokens());
        assert_eq!(auth.warning(), None);
        for role in Role::ALL {
            let authorization = format!("Bearer {}", role.name());
            let expected = if served.contains(&role) { 200 } else { 403 };
            let found = status(&auth, &[("authorization", &authorization)]);
            assert_eq!(found, expected, "{realm:?} {role:?}");
        }
    }
}

#[test]
fn a_viewer_looks_and_changes_nothing() {
    let auth = Auth::new(Realm::Admin, PUBLIC, tokens());
    for (role, may) in [(Role::Viewer, false), (Role::Operator, true), (Role::Superadmin, true)] {
        let parts = parts("/x", &[("authorization", &format!("Bearer {}", role.name()))]);
        assert!(get(&auth, &parts).is_ok());
        for method in [Method::DELETE, Method::POST, Method::PUT] {
            let needed = Realm::Admin.least_access(&method);
            assert_eq!(needed, Access::Role(Role::Operator));
            assert_eq!(auth.authorize(&parts, needed).is_ok(), may, "{role:?}");
        }
    }
}

#[test]
fn with_tokens_loopback_needs_one_too() {
    let auth = Auth::new(Realm::Admin, LOOPBACK, tokens());
    assert_eq!(status(&auth, &[("host", "localhost")]), 401);
    let token = ("authorization", "Bearer viewer");
    assert_eq!(status(&auth, &[("host", "localhost"), token]), 200);
    assert_eq!(status(&auth, &[("host", "evil.example"), token]), 403);
}

#[test]
fn no_token_a_wrong_one_or_two_are_401() {
    let auth = Auth::new(Realm::Api, PUBLIC, tokens());
    let token = ("authorization", "Bearer client");
    assert_eq!(status(&auth, &[]), 401);
    assert_eq!(status(&auth, &[("authorization", "Bearer nobody")]), 401);
    assert_eq!(status(&auth, &[token, token]), 401);
}

#[test]
fn replaced_tokens_hold_at_once() {
    let shared = tokens().unwrap();
    let auth = Auth::new(Realm::Api, PUBLIC, Some(Arc::clone(&shared)));
    let token = [("authorization", "Bearer client")];
    assert_eq!(status(&auth, &token), 200);
    shared.store(Arc::new(Tokens::default()));
    assert_eq!(status(&auth, &token), 401);
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

#[test]
fn what_needs_no_token_is_open_to_everybody_but_pages_from_elsewhere() {
    let public = Auth::new(Realm::Api, PUBLIC, tokens());
    let local = Auth::new(Realm::Api, LOOPBACK, tokens());
    let may = |auth: &Auth, headers: &[(&str, &str)], access| {
        auth.authorize(&parts("/limits", headers), access).is_ok()
    };
    let (here, elsewhere) = ([("host", "localhost")], [("host", "evil.example")]);
    for access in [Access::Everybody, Access::Anywhere] {
        assert!(may(&public, &elsewhere, access) && may(&local, &here, access), "{access:?}");
        assert_eq!(may(&local, &elsewhere, access), access == Access::Anywhere);
        let page = [("host", "localhost"), ("origin", "https://evil.example")];
        assert_eq!(may(&local, &page, access), access == Access::Anywhere);
    }
    assert!(!may(&public, &here, Access::Role(Role::Client)));
}
