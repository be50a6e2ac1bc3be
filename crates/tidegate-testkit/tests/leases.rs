//! Reservations: a charge is corrected once, whatever reports come in whatever order.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use tidegate::Amount;
use tidegate::clock::FakeClock;
use tidegate::{Limiter, Policy, Request, Reservation, Settlement};

/// A total of 10 under `counts:`, with 6 charged elsewhere and 2 to the reservation.
struct Bank {
    limiter: Limiter,
    lease: Reservation,
}

fn request() -> Request<'static> {
    Request::new("GET", "/things").user("u")
}

fn units(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

impl Bank {
    fn counting(counts: &str) -> Self {
        let text = format!(
            "tidegate: 1\nname: bank\nlimits:\n  a: {{ by: user, total: 10, counts: {counts} }}"
        );
        let clock = FakeClock::at_unix_seconds(1_767_603_600);
        let policy = Policy::parse("bank.yaml", &text).unwrap();
        let limiter = Limiter::builder().policy(policy).clock(clock).build().unwrap();
        assert!(limiter.check(&request().cost(units(6))).unwrap().is_allowed());
        let decision = limiter.check(&request().cost(units(2)).reserve()).unwrap();
        Self { limiter, lease: decision.reservation.unwrap() }
    }

    /// What is left after all these reports.
    fn left_after(mut self, told: &[Settlement]) -> u64 {
        for settlement in told {
            self.limiter.settle(&mut self.lease, *settlement).unwrap();
        }
        self.limiter.peek(&request()).unwrap().limits[0].remaining()
    }
}

const FAILED: Settlement = Settlement::Status(500);
const WORKED: Settlement = Settlement::Status(204);
const REFUND: Settlement = Settlement::Refund;

fn cost(amount: u64) -> Settlement {
    Settlement::Cost(units(amount))
}

#[test]
fn a_refund_is_given_once() {
    assert_eq!(Bank::counting("all").left_after(&[]), 2);
    assert_eq!(Bank::counting("all").left_after(&[REFUND]), 4);
    assert_eq!(Bank::counting("all").left_after(&[REFUND, REFUND, cost(1), WORKED]), 4);
}

#[test]
fn a_cost_is_told_once() {
    assert_eq!(Bank::counting("all").left_after(&[cost(1)]), 3);
    assert_eq!(Bank::counting("all").left_after(&[cost(1), cost(0)]), 3);
    assert_eq!(Bank::counting("all").left_after(&[cost(3)]), 1);
    assert_eq!(Bank::counting("all").left_after(&[cost(1), REFUND]), 4);
    assert_eq!(Bank::counting("all").left_after(&[cost(0), REFUND]), 4);
}

#[test]
fn a_status_is_told_once() {
    assert_eq!(Bank::counting("successes").left_after(&[FAILED]), 4);
    assert_eq!(Bank::counting("successes").left_after(&[Settlement::Aborted, FAILED]), 4);
    assert_eq!(Bank::counting("successes").left_after(&[WORKED, FAILED]), 2);
    assert_eq!(Bank::counting("failures").left_after(&[WORKED]), 4);
    assert_eq!(Bank::counting("failures").left_after(&[Settlement::Status(404), WORKED]), 2);
}

#[test]
fn a_charge_refunded_by_status_is_not_refunded_again() {
    assert_eq!(Bank::counting("successes").left_after(&[FAILED, REFUND]), 4);
    assert_eq!(Bank::counting("successes").left_after(&[FAILED, cost(1)]), 4);
    assert_eq!(Bank::counting("successes").left_after(&[FAILED, cost(1), REFUND]), 4);
    assert_eq!(Bank::counting("successes").left_after(&[cost(1), FAILED, REFUND]), 4);
}

#[test]
fn a_charge_refunded_by_status_is_not_charged_again() {
    assert_eq!(Bank::counting("successes").left_after(&[FAILED, cost(3)]), 4);
}
