//! Order: exempt, blocked, limits; `enabled: false` skips limits only.

use std::net::IpAddr;

use tidegate::{Outcome, Request};

use crate::Desk;

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
fn rule_2_order_exempt_goes_before_blocked() {
    let desk = Desk::with_policy(REST);
    assert_eq!(desk.outcome(&get("/health", BAD)), Outcome::Exempt);
    assert_eq!(desk.outcome(&get("/things", BAD).internal(true)), Outcome::Exempt);
}

#[test]
fn rule_2_order_blocked_goes_before_limits_and_is_not_charged() {
    let desk = Desk::with_policy(REST);
    for _ in 0..3 {
        let blocked = desk.check(&get("/things", BAD));
        assert_eq!((blocked.outcome, blocked.status()), (Outcome::Blocked, 403));
        assert_eq!((blocked.limits.len(), blocked.retry_after()), (0, None));
    }
    assert_eq!(desk.outcome(&get("/things", GOOD)), Outcome::Allowed);
    assert_eq!(desk.outcome(&get("/things", GOOD)), Outcome::Limited);
    assert_eq!(desk.outcome(&get("/things", BAD)), Outcome::Blocked, "also when limited");
}

#[test]
fn rule_2_order_exempt_requests_are_never_counted_and_never_limited() {
    let desk = Desk::with_policy(REST);
    for _ in 0..3 {
        assert_eq!(desk.outcome(&get("/health", GOOD)), Outcome::Exempt);
    }
    assert_eq!(desk.passing(3, &get("/things", GOOD)), 1);
    assert_eq!(desk.outcome(&get("/health", GOOD)), Outcome::Exempt);
}

#[test]
fn rule_2_an_exempt_path_is_the_normalised_one() {
    let desk = Desk::with_policy(REST);
    assert_eq!(desk.outcome(&get("/things/../health/?x=1", BAD)), Outcome::Exempt);
    assert_eq!(desk.outcome(&get("/health/../things", BAD)), Outcome::Blocked);
}

#[test]
fn rule_2_a_mapped_address_is_blocked_like_the_one_it_maps() {
    let desk = Desk::with_policy(REST);
    let mapped: IpAddr = "::ffff:203.0.113.9".parse().unwrap();
    assert_eq!(desk.outcome(&Request::new("GET", "/things").ip(mapped)), Outcome::Blocked);
}

#[test]
fn rule_2_enabled_false_turns_limits_off_and_leaves_exempt_and_blocks() {
    let desk = Desk::with_policy(&format!("enabled: false\n{REST}"));
    assert_eq!(desk.passing(5, &get("/things", GOOD)), 5);
    assert_eq!(desk.outcome(&get("/things", BAD)), Outcome::Blocked);
    assert_eq!(desk.outcome(&get("/health", BAD)), Outcome::Exempt);
    desk.reload(REST);
    assert_eq!(desk.passing(5, &get("/things", GOOD)), 1, "nothing was counted meanwhile");
}

#[test]
fn rule_2_enabled_false_keeps_what_was_counted_before() {
    let desk = Desk::with_policy(REST);
    assert_eq!(desk.passing(5, &get("/things", GOOD)), 1);
    desk.reload(&format!("enabled: false\n{REST}"));
    assert_eq!(desk.passing(5, &get("/things", GOOD)), 5);
    desk.reload(REST);
    assert_eq!(desk.passing(5, &get("/things", GOOD)), 0);
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
fn rule_2_order_exempt_blocked_banned_limits() {
    let desk = Desk::with_policy(GUARDED);
    let request = |path, ip| get(path, ip).user("u");
    desk.check(&request("/things", GOOD));
    desk.check(&request("/things", GOOD));
    assert_eq!(desk.outcome(&request("/things", GOOD)), Outcome::Banned);
    assert_eq!(desk.outcome(&request("/health", GOOD)), Outcome::Exempt);
    assert_eq!(desk.outcome(&request("/things", BAD)), Outcome::Blocked);
    assert_eq!(desk.outcome(&request("/things", GOOD).country("kp")), Outcome::Blocked);
    let banned = desk.check(&request("/things", GOOD));
    assert_eq!((banned.outcome, banned.limits.len()), (Outcome::Banned, 0), "no limit is asked");
}

#[test]
fn rule_2_a_country_is_blocked_and_an_unknown_one_passes() {
    let desk = Desk::with_policy(GUARDED);
    let blocked = desk.check(&get("/things", GOOD).country("KP"));
    assert_eq!((blocked.outcome, blocked.status()), (Outcome::Blocked, 403));
    assert_eq!(desk.outcome(&get("/things", GOOD).country("DE")), Outcome::Allowed);
    assert_eq!(desk.outcome(&get("/things", GOOD)), Outcome::Allowed);
}

#[test]
fn rule_2_enabled_false_skips_penalties_and_leaves_bans() {
    let desk = Desk::with_policy(GUARDED);
    desk.passing(3, &get("/things", GOOD).user("u"));
    desk.reload(&format!("enabled: false\n{GUARDED}"));
    assert_eq!(desk.outcome(&get("/things", GOOD).user("u")), Outcome::Banned);
    let report = tidegate::Report::new("limited", get("/things", GOOD).user("v"));
    for _ in 0..5 {
        assert!(!desk.limiter.report_now(&report).unwrap().banned);
    }
    assert_eq!(desk.passing(5, &get("/things", GOOD).user("v")), 5);
}

#[test]
fn rule_2_exempt_requests_make_no_events() {
    let desk = Desk::with_policy(
        "
exempt: [{ path: /health }]
events: { broken: { status: 5xx } }
penalties: { p: { event: broken, by: user, within: 1h, ladder: { 1: { ban: 1h } } } }
",
    );
    let request = |path| Request::new("GET", path).user("u");
    assert!(!desk.limiter.answered_now(&request("/health"), 500).unwrap().banned);
    assert!(desk.limiter.answered_now(&request("/other"), 500).unwrap().banned);
}

#[test]
fn rule_2_exceed_challenge_asks_those_who_are_over_and_a_pass_lets_them_through() {
    let desk = Desk::with_policy(
        "
limits:
  soft: { by: user, total: 1, exceed: challenge }
  hard: { by: user, total: 3 }
challenge: { kind: proof_of_work }
",
    );
    let request = || Request::new("GET", "/things").user("u");
    assert_eq!(desk.outcome(&request()), Outcome::Allowed);
    let asked = desk.check(&request());
    assert_eq!(
        (asked.outcome, asked.limit_name(), asked.status()),
        (Outcome::Challenged, Some("soft"), 403)
    );
    let passed = desk.check(&request().pass(true));
    assert_eq!((passed.outcome, passed.limits[0].charged), (Outcome::Warned, false));
    assert_eq!(desk.outcome(&request().pass(true)), Outcome::Warned);
    assert_eq!(desk.outcome(&request().pass(true)), Outcome::Limited, "three are through");
    assert_eq!(desk.outcome(&request()), Outcome::Limited, "no challenge helps there");
}
