//! Who a request is from, and what is believed of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::net::IpAddr;

use tidegate::engine::Explanation;
use tidegate::engine::policy::Options;
use tidegate::{Limiter, Policy, Request};

const POLICY: &str = "
tidegate: 1
name: api
tiers: [free, premium]
identity:
  trusted_proxies: [10.0.0.0/8]
  user: { header: X-User-Id }
  tier: { header: X-User-Tier }
  default_tier: free
  internal: { header: X-Internal, secret_env: SECRET }
  attributes:
    kyc:   { header: X-Kyc-Level, trusted: true }
    key:   { header: X-Api-Key }
    email: { body: /user/email, fold: true }
    page:  { query: page }
    room:  given
operations:
  booking: POST /rooms/{room}/bookings
  outgoing: {}
limits:
  ip:     { by: ip, total: 9 }
  client: { by: client, total: 9 }
  kyc:    { by: kyc, total: 9, missing: skip }
  key:    { by: key, total: 9 }
  email:  { by: email, total: 9, missing: skip }
  page:   { by: page, total: 9, missing: skip }
  room:   { by: room, total: 9, key: 'room:{room:raw}' }
  needed: { when: outgoing, by: room, total: 9, missing: refuse }
";

fn limiter() -> Limiter {
    let mut options = Options::default();
    options.env.insert("SECRET".into(), "s3cret".into());
    let checked = Policy::check("api.yaml", POLICY, &options);
    Limiter::new(checked.unwrap_or_else(|errors| panic!("{errors}")).policy)
}

fn explain(request: &Request<'_>) -> Explanation {
    limiter().explain(request).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn applies(explanation: &Explanation, name: &str) -> bool {
    explanation.limits.iter().any(|limit| limit.name == name && limit.applies.is_ok())
}

/// The key of a limit, by one limiter's secret.
fn key(limiter: &Limiter, request: &Request<'_>, name: &str) -> String {
    let explanation = limiter.explain(request).unwrap();
    let limit = explanation.limits.iter().find(|limit| limit.name == name).unwrap();
    limit.applies.as_ref().unwrap().key.clone()
}

#[test]
fn headers_are_believed_only_behind_a_trusted_proxy() {
    let said = |peer: &str| {
        let request = Request::new("GET", "/").peer(ip(peer)).header("x-user-id", "u1");
        let request = request.header("X-User-Tier", "premium").header("X-Kyc-Level", "3");
        explain(&request.header("X-Internal", "s3cret"))
    };
    let believed = said("10.0.0.1");
    assert_eq!((believed.user.as_deref(), believed.tier.as_str()), (Some("u1"), "premium"));
    assert!(believed.internal && applies(&believed, "kyc"));
    let stranger = said("192.0.2.1");
    assert_eq!((stranger.user.as_deref(), stranger.tier.as_str()), (None, "anonymous"));
    assert!(!stranger.internal && !applies(&stranger, "kyc"));
}

#[test]
fn a_wrong_secret_makes_nobody_internal() {
    for secret in ["", "s3cre", "s3cret!", "S3cret"] {
        let request = Request::new("GET", "/").peer(ip("10.0.0.1")).header("X-Internal", secret);
        assert!(!explain(&request).internal, "{secret}");
    }
}

#[test]
fn a_tier_is_known_or_the_default_and_no_user_is_anonymous() {
    let tier = |user: Option<&'static str>, tier: Option<&'static str>| {
        let request = user.into_iter().fold(Request::new("GET", "/"), Request::user);
        explain(&tier.into_iter().fold(request, Request::tier)).tier
    };
    assert_eq!(tier(Some("u1"), Some("premium")), "premium");
    assert_eq!(tier(Some("u1"), Some("platinum")), "free");
    assert_eq!(tier(Some("u1"), Some("anonymous")), "free");
    assert_eq!(tier(Some("u1"), None), "free");
    assert_eq!(tier(None, None), "anonymous");
    assert_eq!(tier(Some(""), None), "anonymous");
    assert_eq!(tier(None, Some("premium")), "premium");
}

#[test]
fn addresses_are_their_prefix_and_mapped_ones_are_ipv4() {
    let address = |text: &str| explain(&Request::new("GET", "/").ip(ip(text))).address.unwrap();
    assert_eq!(address("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    assert_eq!(address("::ffff:192.0.2.1"), "192.0.2.1");
}

#[test]
fn users_and_addresses_never_collide_as_clients() {
    let limiter = limiter();
    let by_address = key(&limiter, &Request::new("GET", "/").ip(ip("192.0.2.1")), "client");
    for user in ["192.0.2.1", "ip:192.0.2.1"] {
        assert_ne!(key(&limiter, &Request::new("GET", "/").user(user), "client"), by_address);
    }
}

#[test]
fn given_goes_before_captured() {
    let limiter = limiter();
    let request = Request::new("POST", "/rooms/r9/bookings");
    assert_eq!(key(&limiter, &request, "room"), "room:r9");
    assert_eq!(key(&limiter, &request.attribute("room", "r1"), "room"), "room:r1");
}

#[test]
fn a_header_that_is_missing_shares_one_key_and_a_given_attribute_is_skipped() {
    let limiter = limiter();
    let missing = Request::new("GET", "/");
    assert!(applies(&explain(&missing), "key") && !applies(&explain(&missing), "room"));
    let empty = Request::new("GET", "/").header("X-Api-Key", "");
    assert_ne!(key(&limiter, &missing, "key"), key(&limiter, &empty, "key"));
}

#[test]
fn bodies_and_queries_feed_attributes() {
    let limiter = limiter();
    let with = |body: &'static str| {
        key(&limiter, &Request::new("POST", "/").body(body.as_bytes()), "email")
    };
    assert_eq!(with(r#"{"user":{"email":" A@B.c "}}"#), with(r#"{"user":{"email":"a@b.c"}}"#));
    assert!(applies(&explain(&Request::new("GET", "/?page=2")), "page"));
    let large = format!(r#"{{"user":{{"email":"{}"}}}}"#, "a".repeat(70_000));
    let large = Request::new("POST", "/").body(large.into_bytes());
    let unreadable = explain(&large).unreadable;
    assert_eq!(unreadable, [("email".to_owned(), tidegate::Unreadable::Size)]);
}

#[test]
fn what_cannot_be_understood_is_refused_by_field() {
    let field = |request: Request<'_>| limiter().check(&request).unwrap_err().field;
    assert_eq!(field(Request::new("GET", "/a%2Fb")), "path");
    assert_eq!(field(Request::new("GET", "a")), "path");
    assert_eq!(field(Request::operation("nothing")), "operation");
    assert_eq!(field(Request::operation("outgoing")), "attributes.room");
}

#[test]
fn an_attribute_that_the_query_says_twice_is_refused_for_a_service_could_believe_the_other() {
    for path in ["/?page=1&page=2", "/?page=1&page=1", "/?page&x=1&p%61ge=2", "/?page=&page="] {
        let error = limiter().check(&Request::new("GET", path)).unwrap_err();
        assert_eq!(error.field, "attributes.page", "{path}");
        assert_eq!(
            error.detail,
            "found twice in the query (in another case or as `name[]` too), expected it once",
            "{path}"
        );
    }
    for path in ["/?page=1&pages=2", "/?x=1&x=2&page=1", "/?page=1#&page=2", "/?page=1%26page=2"] {
        assert!(limiter().check(&Request::new("GET", path)).is_ok(), "{path}");
    }
    let given = Request::new("GET", "/?page=1&page=2").attribute("page", "1");
    assert!(limiter().check(&given).is_ok(), "the query is not asked");
}

#[test]
fn what_only_proxies_may_say_is_known() {
    let limiter = limiter();
    let policy = limiter.first_policy().unwrap();
    let claims: Vec<&str> = policy.claim_headers().collect();
    let names = ["x-user-id", "x-user-tier", "x-internal", "x-kyc-level"];
    assert!(claims.iter().zip(names).all(|(claim, name)| claim.eq_ignore_ascii_case(name)));
    assert_eq!(claims.len(), names.len());
    let facts: Vec<&str> = policy.fact_headers().skip(claims.len()).collect();
    assert!(facts.iter().all(|fact| !claims.contains(fact)), "{facts:?}");
    assert!(policy.trusts("10.1.2.3".parse().unwrap()));
    assert!(!policy.trusts("192.0.2.1".parse().unwrap()));
}
