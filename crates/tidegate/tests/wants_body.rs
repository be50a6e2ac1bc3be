//! Which requests are worth reading the body of.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use tidegate::{Limiter, Policy, Request};

/// A policy with these rules, two attributes in the body and two operations.
fn limiter(rules: &str) -> Limiter {
    let text = format!(
        "
tidegate: 1
name: api
identity:
  attributes: {{ email: {{ body: /email }}, amount: {{ body: /amount }}, page: {{ query: page }} }}
operations: {{ login: POST /login, mail: 'POST /mail/{{email}}', pay: POST /pay }}
{rules}
"
    );
    Limiter::new(Policy::parse("api.yaml", &text).unwrap_or_else(|errors| panic!("{errors}")))
}

fn post(path: &str) -> Request<'_> {
    Request::new("POST", path)
}

#[test]
fn only_operations_that_a_limit_reads_the_body_of() {
    let limiter = limiter(
        "limits:
  email: { when: [login, mail], by: email, total: 5 }
  page: { by: page, total: 5 }",
    );
    assert!(limiter.wants_body(&post("/login")));
    assert!(!limiter.wants_body(&post("/pay")));
    assert!(!limiter.wants_body(&Request::new("GET", "/login")));
    assert!(!limiter.wants_body(&post("/mail/a@b.c")), "captured goes before the body");
    assert!(!limiter.wants_body(&post("/login").attribute("email", "a")), "given does too");
    assert!(!limiter.wants_body(&post("/login%2F")), "refused as it stands");
    assert!(!limiter.wants_body(&post("/login").policy("other")));
}

#[test]
fn every_use_of_an_attribute_counts() {
    for limit in [
        "{ by: email, total: 5 }",
        "{ by: ip, total: 5, cost: amount }",
        "{ ceiling: 5, value: amount }",
        "{ by: ip, tier_by: email, total: { a: 5, default: 1 } }",
        "{ by: ip, total: 5, when: { attributes: { email: a } } }",
        "{ by: ip, total: 5, when: { not: { attributes: { email: a } } } }",
        "{ by: ip, total: 5, when: { not: { method: POST, attributes: { email: a } } } }",
    ] {
        let limiter = limiter(&format!("limits: {{ a: {limit} }}"));
        assert!(limiter.wants_body(&post("/pay")), "{limit}");
    }
    for limit in [
        "{ by: page, total: 5 }",
        "{ by: email, total: 5, when: { method: GET } }",
        "{ by: email, total: 5, when: { authenticated: true } }",
        "{ by: email, total: 5, when: { attributes: { page: 2 } } }",
        "{ by: email, total: 5, when: { not: { path: /pay } } }",
    ] {
        let limiter = limiter(&format!("limits: {{ a: {limit} }}"));
        assert!(!limiter.wants_body(&post("/pay")), "{limit}");
    }
}

#[test]
fn exemptions_and_blocks_are_asked_first() {
    let limit = "limits: { a: { by: email, total: 5 } }";
    let exempt = limiter(&format!("exempt: [{{ path: /pay }}]\n{limit}"));
    assert!(!exempt.wants_body(&post("/pay")));
    assert!(exempt.wants_body(&post("/login")));
    let by_body = limiter("exempt: [{ attributes: { email: a } }]\nenabled: false");
    assert!(by_body.wants_body(&post("/pay")));
    let blocked = limiter(&format!("block: {{ ips: 192.0.2.1 }}\n{limit}"));
    assert!(!blocked.wants_body(&post("/pay").ip("192.0.2.1".parse().unwrap())));
    let off = limiter(&format!("enabled: false\n{limit}"));
    assert!(!off.wants_body(&post("/pay")));
}
