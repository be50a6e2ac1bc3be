//! Which requests are worth reading the body of.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use tidegate::{Limiter, NewMark, Policy, Request, Subject};

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

/// False for a request that is refused as it stands.
fn wants_body(limiter: &Limiter, request: &Request<'_>) -> bool {
    limiter.context(request).is_ok_and(|context| limiter.wants_body(&context))
}

#[test]
fn only_operations_that_a_limit_reads_the_body_of() {
    let limiter = limiter(
        "limits:
  email: { when: [login, mail], by: email, total: 5 }
  page: { by: page, total: 5 }",
    );
    assert!(wants_body(&limiter, &post("/login")));
    assert!(!wants_body(&limiter, &post("/pay")));
    assert!(!wants_body(&limiter, &Request::new("GET", "/login")));
    assert!(!wants_body(&limiter, &post("/mail/a@b.c")), "captured goes before the body");
    assert!(!wants_body(&limiter, &post("/login").attribute("email", "a")), "given does too");
    assert!(!wants_body(&limiter, &post("/login%2F")), "refused as it stands");
    assert!(!wants_body(&limiter, &post("/login").policy("other")));
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
        assert!(wants_body(&limiter, &post("/pay")), "{limit}");
    }
    for limit in [
        "{ by: page, total: 5 }",
        "{ by: email, total: 5, when: { method: GET } }",
        "{ by: email, total: 5, when: { authenticated: true } }",
        "{ by: email, total: 5, when: { attributes: { page: 2 } } }",
        "{ by: email, total: 5, when: { not: { path: /pay } } }",
    ] {
        let limiter = limiter(&format!("limits: {{ a: {limit} }}"));
        assert!(!wants_body(&limiter, &post("/pay")), "{limit}");
    }
}

#[test]
fn exemptions_and_blocks_are_asked_first() {
    let limit = "limits: { a: { by: email, total: 5 } }";
    let exempt = limiter(&format!("exempt: [{{ path: /pay }}]\n{limit}"));
    assert!(!wants_body(&exempt, &post("/pay")));
    assert!(wants_body(&exempt, &post("/login")));
    let by_body = limiter("exempt: [{ attributes: { email: a } }]\nenabled: false");
    assert!(wants_body(&by_body, &post("/pay")));
    let blocked = limiter(&format!("block: {{ ips: 192.0.2.1 }}\n{limit}"));
    assert!(!wants_body(&blocked, &post("/pay").ip("192.0.2.1".parse().unwrap())));
    let off = limiter(&format!("enabled: false\n{limit}"));
    assert!(!wants_body(&off, &post("/pay")));
}

#[test]
fn what_penalties_ratios_and_factors_count_by_is_read_where_their_events_may_be_made() {
    let events = "events:
  failure: { when: login, status: 401 }
  success: { when: login, status: 2xx }
  paid: { when: pay, status: 2xx, value: amount }
  told: {}
";
    let rest = "within: 1h, ladder: { 5: { ban: { for: 1h, by: ip } } }";
    let wants =
        |rules: &str, path: &str| wants_body(&limiter(&format!("{events}{rules}")), &post(path));
    let by_email = format!("penalties: {{ a: {{ event: failure, by: email, {rest} }} }}");
    assert!(wants(&by_email, "/login"));
    assert!(!wants(&by_email, "/pay"));
    let forgiven =
        format!("penalties: {{ a: {{ event: told, forgive: success, by: email, {rest} }} }}");
    assert!(wants(&forgiven, "/login"));
    let told = format!("penalties: {{ a: {{ event: told, by: email, {rest} }} }}");
    assert!(!wants(&told, "/login"), "whoever reports it says whose it is");
    let by_ip = format!("penalties: {{ a: {{ event: failure, by: ip, {rest} }} }}");
    assert!(!wants(&by_ip, "/login"));
    let ratio = "ratios: { a: { of: told, to: paid, by: ip, within: 1h } }";
    assert!(wants(ratio, "/pay"), "its value is in the body");
    assert!(!wants(ratio, "/login"));
    let factor = "factors: { a: { when: { operation: pay, attributes: { email: a } }, times: 2 } }";
    assert!(wants(&format!("{factor}\nlimits: {{ a: {{ by: ip, fixed_window: 1/s }} }}"), "/pay"));
}

#[test]
fn while_somebody_is_banned_by_what_is_in_a_body_every_body_is_read() {
    let limiter = limiter(
        "events: { failure: { when: login, status: 401 } }
penalties: { a: { event: failure, by: email, within: 1h, ladder: { 1: { ban: 1h } } } }",
    );
    assert!(!wants_body(&limiter, &post("/pay")));
    limiter.ban(&NewMark::new(Subject::user("u1"))).unwrap();
    assert!(!wants_body(&limiter, &post("/pay")), "no body says who the user is");
    let login = post("/login").body(&br#"{"email":"a@b.c"}"#[..]);
    assert!(limiter.record_status(&login, 401).unwrap().banned);
    assert!(wants_body(&limiter, &post("/pay")));
    assert!(!wants_body(&limiter, &post("/pay").attribute("email", "a")));
}
