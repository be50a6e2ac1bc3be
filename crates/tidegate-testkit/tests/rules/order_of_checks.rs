//! Rule 2: exempt, blocked, banned, limits. `enabled: false` skips limits and penalties only.

use std::net::IpAddr;

use tidegate::{Outcome, Request};

use crate::Fixture;

const REST: &str = "
exempt:
  - path: /health
  - internal: true
block: { ips: [203.0.113.0/24] }
limits:
  all:  { by: global, total: 1 }
";

const BAD: [u8; 4] = [203, 0, 113, 9];
const GOOD: [u8; 4] = [198, 51, 100, 9];

fn get(path: &str, ip: [u8; 4]) -> Request<'_> {
    Request::new("GET", path).ip(IpAddr::from(ip))
}

#[test]
fn exempt_is_checked_before_blocked_rule_2() {
    let fixture = Fixture::with_policy(REST);
    assert_eq!(fixture.outcome(&get("/health", BAD)), Outcome::Exempt);
    assert_eq!(fixture.outcome(&get("/things", BAD).internal(true)), Outcome::Exempt);
}

#[test]
fn blocked_is_checked_before_limits_and_charges_nothing_rule_2() {
    let fixture = Fixture::with_policy(REST);
    for _ in 0..3 {
        let blocked = fixture.check(&get("/things", BAD));
        assert_eq!((blocked.outcome, blocked.status()), (Outcome::Blocked, 403));
        assert_eq!((blocked.limits.len(), blocked.retry_after()), (0, None));
    }
    assert_eq!(fixture.outcome(&get("/things", GOOD)), Outcome::Allowed);
    assert_eq!(fixture.outcome(&get("/things", GOOD)), Outcome::Limited);
    assert_eq!(fixture.outcome(&get("/things", BAD)), Outcome::Blocked, "also when limited");
}

#[test]
fn exempt_requests_are_never_counted_and_never_limited_rule_2() {
    let fixture = Fixture::with_policy(REST);
    for _ in 0..3 {
        assert_eq!(fixture.outcome(&get("/health", GOOD)), Outcome::Exempt);
    }
    assert_eq!(fixture.count_allowed(3, &get("/things", GOOD)), 1);
    assert_eq!(fixture.outcome(&get("/health", GOOD)), Outcome::Exempt);
}

#[test]
fn an_exemption_matches_the_path_as_it_is_forwarded_rule_2() {
    let fixture = Fixture::with_policy(REST);
    assert_eq!(fixture.outcome(&get("/things/../health?x=1", BAD)), Outcome::Exempt);
    for other in ["/health/", "/health;x=1", "/health//", "/health/;/", "/%68ealth"] {
        assert_eq!(fixture.outcome(&get(other, BAD)), Outcome::Blocked, "{other}");
    }
    assert_eq!(fixture.outcome(&get("/health/../things", BAD)), Outcome::Blocked);
}

#[test]
fn a_mapped_ipv6_address_is_blocked_as_its_ipv4_address_rule_2() {
    let fixture = Fixture::with_policy(REST);
    let mapped: IpAddr = "::ffff:203.0.113.9".parse().unwrap();
    assert_eq!(fixture.outcome(&Request::new("GET", "/things").ip(mapped)), Outcome::Blocked);
}

#[test]
fn enabled_false_skips_limits_but_not_exemptions_and_blocks_rule_2() {
    let fixture = Fixture::with_policy(&format!("enabled: false\n{REST}"));
    assert_eq!(fixture.count_allowed(5, &get("/things", GOOD)), 5);
    assert_eq!(fixture.outcome(&get("/things", BAD)), Outcome::Blocked);
    assert_eq!(fixture.outcome(&get("/health", BAD)), Outcome::Exempt);
    fixture.reload(REST);
    assert_eq!(fixture.count_allowed(5, &get("/things", GOOD)), 1, "nothing was counted meanwhile");
}

#[test]
fn enabled_false_keeps_the_counts_from_before_rule_2() {
    let fixture = Fixture::with_policy(REST);
    assert_eq!(fixture.count_allowed(5, &get("/things", GOOD)), 1);
    fixture.reload(&format!("enabled: false\n{REST}"));
    assert_eq!(fixture.count_allowed(5, &get("/things", GOOD)), 5);
    fixture.reload(REST);
    assert_eq!(fixture.count_allowed(5, &get("/things", GOOD)), 0);
}

const GUARDED: &str = "
exempt:
  - path: /health
block: { ips: [203.0.113.0/24], countries: [KP] }
limits:
  all:  { by: user, total: 1 }
penalties:
  p: { event: limited, by: client, within: 1h, ladder: { 2: { ban: 1h } } }
";

#[test]
fn the_order_is_exempt_blocked_banned_limits_rule_2() {
    let fixture = Fixture::with_policy(GUARDED);
    let request = |path, ip| get(path, ip).user("u");
    fixture.check(&request("/things", GOOD));
    fixture.check(&request("/things", GOOD));
    assert_eq!(fixture.outcome(&request("/things", GOOD)), Outcome::Banned);
    assert_eq!(fixture.outcome(&request("/health", GOOD)), Outcome::Exempt);
    assert_eq!(fixture.outcome(&request("/things", BAD)), Outcome::Blocked);
    assert_eq!(fixture.outcome(&request("/things", GOOD).country("kp")), Outcome::Blocked);
    let banned = fixture.check(&request("/things", GOOD));
    assert_eq!((banned.outcome, banned.limits.len()), (Outcome::Banned, 0), "no limit is asked");
}

#[test]
fn a_listed_country_is_blocked_and_an_unknown_one_passes_rule_2() {
    let fixture = Fixture::with_policy(GUARDED);
    let blocked = fixture.check(&get("/things", GOOD).country("KP"));
    assert_eq!((blocked.outcome, blocked.status()), (Outcome::Blocked, 403));
    assert_eq!(fixture.outcome(&get("/things", GOOD).country("DE")), Outcome::Allowed);
    assert_eq!(fixture.outcome(&get("/things", GOOD)), Outcome::Allowed);
}

#[test]
fn enabled_false_skips_penalties_but_not_bans_rule_2() {
    let fixture = Fixture::with_policy(GUARDED);
    fixture.count_allowed(3, &get("/things", GOOD).user("u"));
    fixture.reload(&format!("enabled: false\n{GUARDED}"));
    assert_eq!(fixture.outcome(&get("/things", GOOD).user("u")), Outcome::Banned);
    let report = tidegate::Report::new("limited", get("/things", GOOD).user("v"));
    for _ in 0..5 {
        assert!(!fixture.limiter.report(&report).unwrap().banned);
    }
    assert_eq!(fixture.count_allowed(5, &get("/things", GOOD).user("v")), 5);
}

#[test]
fn exempt_requests_make_no_events_rule_2() {
    let fixture = Fixture::with_policy(
        "
exempt: [{ path: /health }]
events: { broken: { status: 5xx } }
penalties: { p: { event: broken, by: user, within: 1h, ladder: { 1: { ban: 1h } } } }
",
    );
    let request = |path| Request::new("GET", path).user("u");
    assert!(!fixture.limiter.record_status(&request("/health"), 500).unwrap().banned);
    assert!(fixture.limiter.record_status(&request("/other"), 500).unwrap().banned);
}

#[test]
fn exceed_challenge_challenges_a_client_that_has_no_pass_rule_2() {
    let fixture = Fixture::with_policy(
        "
limits:
  soft: { by: user, total: 1, exceed: challenge }
  hard: { by: user, total: 3 }
challenge: { kind: proof_of_work }
",
    );
    let request = || Request::new("GET", "/things").user("u");
    assert_eq!(fixture.outcome(&request()), Outcome::Allowed);
    let asked = fixture.check(&request());
    assert_eq!(
        (asked.outcome, asked.limit_name(), asked.status()),
        (Outcome::Challenged, Some("soft"), 403)
    );
    let passed = fixture.check(&request().pass(true));
    assert_eq!((passed.outcome, passed.limits[0].charged), (Outcome::Warned, false));
    assert_eq!(fixture.outcome(&request().pass(true)), Outcome::Warned);
    assert_eq!(fixture.outcome(&request().pass(true)), Outcome::Limited, "three are through");
    assert_eq!(fixture.outcome(&request()), Outcome::Limited, "no challenge helps there");
}
