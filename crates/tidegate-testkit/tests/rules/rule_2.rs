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
