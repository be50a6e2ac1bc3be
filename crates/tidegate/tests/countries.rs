//! Countries that the caller does not say are those of the client's address.

#![allow(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::engine::{Countries, CountryCode};
use tidegate::{Limiter, Outcome, Policy, Request};

/// Everything in 192.0.2.0/24 is in Germany; how often it was asked.
#[derive(Debug, Default)]
struct Germany(AtomicUsize);

impl Countries for Germany {
    fn country(&self, ip: IpAddr) -> Option<CountryCode> {
        self.0.fetch_add(1, Ordering::Relaxed);
        CountryCode::new("de").filter(|_| ip.to_string().starts_with("192.0.2."))
    }
}

fn limiter(rest: &str) -> Limiter {
    let text =
        format!("tidegate: 1\nname: c\nidentity: {{ trusted_proxies: [10.0.0.0/8] }}\n{rest}\n");
    Limiter::builder().policy(Policy::parse("c.yaml", &text).unwrap()).build().unwrap()
}

const BLOCKED: &str = "block: { countries: [DE] }
limits: { a: { when: { country: [DE, AT] }, by: country, total: 9 } }";

#[test]
fn the_address_behind_trusted_proxies_counts_and_what_is_said_goes_first() {
    let (limiter, germany) = (limiter(BLOCKED), Germany::default());
    let outcome = |request: Request<'_>| limiter.check(&request.locate(&germany)).unwrap().outcome;
    let from = |ip: [u8; 4]| Request::new("GET", "/").peer(ip.into());
    assert_eq!(outcome(from([192, 0, 2, 1])), Outcome::Blocked);
    assert_eq!(
        outcome(from([10, 0, 0, 1]).header("x-forwarded-for", "192.0.2.1")),
        Outcome::Blocked
    );
    assert_eq!(
        outcome(from([198, 51, 100, 1]).header("x-forwarded-for", "192.0.2.1")),
        Outcome::Allowed,
        "a stranger says where it is"
    );
    assert_eq!(outcome(from([192, 0, 2, 1]).country("AT")), Outcome::Allowed);
    assert_eq!(outcome(Request::new("GET", "/")), Outcome::Allowed, "no address, no country");
}

#[test]
fn a_decision_asks_once_and_only_where_a_country_matters() {
    let germany = Germany::default();
    let request = || Request::new("GET", "/").ip([198, 51, 100, 1].into());
    limiter(BLOCKED).check(&request().locate(&germany)).unwrap();
    assert_eq!(germany.0.load(Ordering::Relaxed), 1);
    let plain = limiter("limits: { a: { by: ip, total: 9 } }");
    plain.check(&request().locate(&germany)).unwrap();
    assert_eq!(germany.0.load(Ordering::Relaxed), 1);
}
