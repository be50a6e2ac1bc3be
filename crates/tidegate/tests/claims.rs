//! Who a request is from by the claims of its token.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use tidegate::engine::Explanation;
use tidegate::engine::identity::Claims;
use tidegate::{Limiter, Policy, Request};

const POLICY: &str = "
tidegate: 1
name: api
tiers: [free, pro]
identity:
  user: { jwt: sub }
  tier: { jwt: /plan/name }
  default_tier: free
  attributes:
    kyc: { jwt: kyc_level, fold: true }
    org: { jwt: org }
limits:
  user: { by: client, sliding_window: { free: 1/min, pro: 2/min, anonymous: 1/min } }
  org:  { by: org, total: 9, key: 'org:{org:raw}' }
  kyc:
    by: user
    tier_by: kyc
    total: { full: 7, default: 3 }
";

fn limiter() -> Limiter {
    Limiter::new(Policy::parse("api.yaml", POLICY).unwrap_or_else(|errors| panic!("{errors}")))
}

fn claims(json: &str) -> Claims {
    Claims::parse(json).unwrap()
}

fn explain(request: &Request<'_>) -> Explanation {
    limiter().explain(request).unwrap()
}

fn spec(explanation: &Explanation, name: &str) -> Option<String> {
    let limit = explanation.limits.iter().find(|limit| limit.name == name).unwrap();
    limit.applies.as_ref().ok().map(|application| application.spec.clone())
}

#[test]
fn claims_are_believed_whatever_the_peer_is() {
    let claims = claims(r#"{"sub":"u1","plan":{"name":"pro"},"kyc_level":" FULL "}"#);
    let request = Request::new("GET", "/").claims(claims);
    for request in [request.clone(), request.peer("198.51.100.7".parse().unwrap())] {
        let explained = explain(&request);
        assert_eq!((explained.user.as_deref(), &*explained.tier), (Some("u1"), "pro"));
        assert_eq!(spec(&explained, "kyc").as_deref(), Some("7"));
    }
}

#[test]
fn what_the_caller_says_goes_before_claims() {
    let claims = claims(r#"{"sub":"u1","plan":{"name":"pro"},"kyc_level":"full"}"#);
    let request = Request::new("GET", "/").claims(claims);
    let request = request.user("u2").tier("free").attribute("kyc", "none");
    let explained = explain(&request);
    assert_eq!((explained.user.as_deref(), &*explained.tier), (Some("u2"), "free"));
    assert_eq!(spec(&explained, "kyc").as_deref(), Some("3"));
}

#[test]
fn a_number_is_a_user_by_its_decimal_text() {
    let user = |json| explain(&Request::new("GET", "/").claims(claims(json))).user;
    assert_eq!(user(r#"{"sub":42}"#).as_deref(), Some("42"));
    assert_eq!(user(r#"{"sub":4.20e1}"#).as_deref(), Some("42"));
    for none in [r#"{"sub":["u1"]}"#, r#"{"sub":null}"#, r#"{"sub":""}"#, "{}"] {
        assert_eq!(user(none), None, "{none}");
    }
}

#[test]
fn without_claims_everyone_is_anonymous_and_shares_what_counts_by_a_claim() {
    let explained = explain(&Request::new("GET", "/").ip("192.0.2.1".parse().unwrap()));
    assert_eq!((explained.user.as_deref(), &*explained.tier), (None, "anonymous"));
    assert!(spec(&explained, "org").is_some(), "a missing claim shares one key");
    assert_eq!(spec(&explained, "kyc"), None);
}

#[test]
fn a_tier_that_is_not_known_is_named() {
    let explained =
        explain(&Request::new("GET", "/").claims(claims(r#"{"sub":"u1","plan":{"name":"gold"}}"#)));
    assert_eq!((&*explained.tier, explained.unknown_tier.as_deref()), ("free", Some("gold")));
}

#[test]
fn users_of_tokens_are_counted_apart() {
    let limiter = limiter();
    let from = |json| Request::new("GET", "/").claims(claims(json));
    let allowed = |json| limiter.check(&from(json)).unwrap().is_allowed();
    assert!(allowed(r#"{"sub":"u1","org":"a"}"#));
    assert!(!allowed(r#"{"sub":"u1","org":"a"}"#));
    assert!(allowed(r#"{"sub":"u2","org":"a"}"#));
    assert!(allowed(r#"{"sub":"u3","org":"a","plan":{"name":"pro"}}"#));
    assert!(allowed(r#"{"sub":"u3","org":"a","plan":{"name":"pro"}}"#));
}

#[test]
fn a_policy_says_whether_it_reads_tokens() {
    let uses = |identity: &str| {
        let text = format!("{{ tidegate: 1, name: n, identity: {{ {identity} }} }}");
        Policy::parse("n.yaml", &text).unwrap().uses_jwt()
    };
    assert!(uses("user: { jwt: sub }"));
    assert!(uses("tier: { jwt: plan }"));
    assert!(uses("attributes: { kyc: { jwt: kyc } }"));
    assert!(!uses("user: { header: X-User }, attributes: { kyc: { header: X-Kyc }, a: given }"));
}
