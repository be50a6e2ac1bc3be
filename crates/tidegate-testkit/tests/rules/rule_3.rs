//! Costs and values that are no decimals of six places are refused with 400.

use tidegate::units::Amount;
use tidegate::{Outcome, Request};

use crate::{Desk, user};

const REST: &str = "
identity: { attributes: { amount: given, size: { query: size } } }
operations: { pay: POST /payments, look: GET /payments }
limits:
  spend: { when: pay, by: user, total: 100, cost: amount }
  each:  { when: pay, by: user, value: size, ceiling: 10 }
  count: { by: user, total: 1000 }
";

fn pay(amount: &str) -> Request<'_> {
    Request::new("POST", "/payments").user("u").attribute("amount", amount)
}

const NO_DECIMALS: [&str; 14] = [
    "-1",
    "-0",
    "+1",
    "0.0000001",
    "1.2345678",
    "1e3",
    "",
    " 1",
    "1 ",
    "1,5",
    ".5",
    "5.",
    "NaN",
    "4000000000.000001",
];

#[test]
fn rule_3_a_cost_that_is_no_decimal_of_six_places_is_a_400_and_charges_nothing() {
    let desk = Desk::with_policy(REST);
    for wrong in NO_DECIMALS {
        let error = desk.try_check(&pay(wrong)).expect_err(wrong);
        assert_eq!(error.field, "attributes.amount", "{wrong}");
        assert!(!error.detail.is_empty(), "{wrong}");
    }
    assert_eq!([desk.remaining(0, &pay("1")), desk.remaining(1, &pay("1"))], [100, 1000]);
}

#[test]
fn rule_3_a_value_that_is_no_decimal_of_six_places_is_a_400() {
    let desk = Desk::with_policy(REST);
    for wrong in NO_DECIMALS {
        let error = desk.try_check(&pay("1").attribute("size", wrong)).expect_err(wrong);
        assert_eq!(error.field, "attributes.size", "{wrong}");
    }
}

#[test]
fn rule_3_six_places_are_exact() {
    let desk = Desk::with_policy(REST);
    assert_eq!(desk.outcome(&pay("99.999999")), Outcome::Allowed);
    assert_eq!(desk.outcome(&pay("0.000002")), Outcome::Limited);
    assert_eq!(desk.outcome(&pay("0.000001")), Outcome::Allowed);
    assert_eq!(desk.outcome(&pay("0.000000")), Outcome::Allowed, "zero peeks");
}

#[test]
fn rule_3_an_absent_cost_attribute_is_a_400_where_its_limit_applies() {
    let desk = Desk::with_policy(REST);
    let error = desk.try_check(&Request::new("POST", "/payments").user("u")).unwrap_err();
    assert_eq!(error.field, "attributes.amount");
    assert!(error.detail.contains("`spend`"), "{error}");
    assert_eq!(desk.outcome(&Request::new("GET", "/payments").user("u")), Outcome::Allowed);
    let nobody = Request::new("POST", "/payments");
    assert_eq!(desk.outcome(&nobody), Outcome::Allowed, "without a user the limit does not apply");
}

#[test]
fn rule_3_an_absent_value_is_no_check() {
    let desk = Desk::with_policy(REST);
    assert_eq!(desk.check(&pay("1")).limits.len(), 2);
    let large = Request::new("POST", "/payments?size=10.000001").user("u").attribute("amount", "1");
    assert_eq!(desk.check(&large).limit_name(), Some("each"));
}

#[test]
fn rule_3_a_wrong_cost_that_no_limit_reads_is_nobodys_business() {
    let desk = Desk::with_policy(REST);
    let look = Request::new("GET", "/payments").user("u").attribute("amount", "-1");
    assert_eq!(desk.outcome(&look), Outcome::Allowed);
}

#[test]
fn rule_3_a_requests_own_cost_goes_where_none_is_named() {
    let desk = Desk::with_policy(REST);
    let cost = Amount::parse("2.5").unwrap();
    let decision = desk.check(&pay("7").cost(cost));
    assert_eq!(decision.limits[0].cost, Amount::from_units(7).unwrap());
    assert_eq!(decision.limits[1].cost, cost);
    assert_eq!(desk.check(&user("u")).limits[0].cost, Amount::ONE);
}
