//! Rule 3: a cost or value that is no decimal of at most six places is answered 400.

use tidegate::Amount;
use tidegate::{Outcome, Request};

use crate::{Fixture, user};

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
fn a_cost_that_is_no_decimal_of_six_places_is_a_400_and_charges_nothing_rule_3() {
    let fixture = Fixture::with_policy(REST);
    for wrong in NO_DECIMALS {
        let error = fixture.try_check(&pay(wrong)).expect_err(wrong);
        assert_eq!(error.field, "attributes.amount", "{wrong}");
        assert!(!error.detail.is_empty(), "{wrong}");
    }
    assert_eq!([fixture.remaining(0, &pay("1")), fixture.remaining(1, &pay("1"))], [100, 1000]);
}

#[test]
fn a_value_that_is_no_decimal_of_six_places_is_a_400_rule_3() {
    let fixture = Fixture::with_policy(REST);
    for wrong in NO_DECIMALS {
        let error = fixture.try_check(&pay("1").attribute("size", wrong)).expect_err(wrong);
        assert_eq!(error.field, "attributes.size", "{wrong}");
    }
}

#[test]
fn six_places_are_exact_rule_3() {
    let fixture = Fixture::with_policy(REST);
    assert_eq!(fixture.outcome(&pay("99.999999")), Outcome::Allowed);
    assert_eq!(fixture.outcome(&pay("0.000002")), Outcome::Limited);
    assert_eq!(fixture.outcome(&pay("0.000001")), Outcome::Allowed);
    assert_eq!(fixture.outcome(&pay("0.000000")), Outcome::Allowed, "zero peeks");
}

#[test]
fn an_absent_cost_attribute_is_a_400_where_its_limit_applies_rule_3() {
    let fixture = Fixture::with_policy(REST);
    let error = fixture.try_check(&Request::new("POST", "/payments").user("u")).unwrap_err();
    assert_eq!(error.field, "attributes.amount");
    assert!(error.detail.contains("`spend`"), "{error}");
    assert_eq!(fixture.outcome(&Request::new("GET", "/payments").user("u")), Outcome::Allowed);
    let nobody = Request::new("POST", "/payments");
    assert_eq!(
        fixture.outcome(&nobody),
        Outcome::Allowed,
        "without a user the limit does not apply"
    );
}

#[test]
fn a_ceiling_is_not_checked_without_its_value_rule_3() {
    let fixture = Fixture::with_policy(REST);
    assert_eq!(fixture.check(&pay("1")).limits.len(), 2);
    let large = Request::new("POST", "/payments?size=10.000001").user("u").attribute("amount", "1");
    assert_eq!(fixture.check(&large).limit_name(), Some("each"));
}

#[test]
fn a_wrong_cost_that_no_limit_reads_is_ignored_rule_3() {
    let fixture = Fixture::with_policy(REST);
    let look = Request::new("GET", "/payments").user("u").attribute("amount", "-1");
    assert_eq!(fixture.outcome(&look), Outcome::Allowed);
}

#[test]
fn a_requests_own_cost_applies_to_limits_without_a_cost_rule_3() {
    let fixture = Fixture::with_policy(REST);
    let cost = Amount::parse("2.5").unwrap();
    let decision = fixture.check(&pay("7").cost(cost));
    assert_eq!(decision.limits[0].cost, Amount::from_units(7).unwrap());
    assert_eq!(decision.limits[1].cost, cost);
    assert_eq!(fixture.check(&user("u")).limits[0].cost, Amount::ONE);
}
