//! Rule 7: factors of behaviour and of load, and the ratios behind them.

use tidegate::Amount;
use tidegate::clock::Clock as _;
use tidegate::engine::{Effect, marks::MarkKind};
use tidegate::{Consequences, Outcome, Report, Request};

use crate::{Fixture, seconds, user};

const BEHAVIOUR: &str = "
limits: { orders: { by: user, sliding_window: 10/min } }
events: { order: {}, cancel: {}, self_trade: {} }
ratios:
  cancel-rate: { of: cancel, to: order, by: user, within: 1day, at_least: 5 }
  self-trade: { of: self_trade, to: order, by: user, within: 1day, at_least: 5 }
factors:
  behaviour:
    by: user
    good: [cancel-rate < 90%, self-trade < 5%]
    step: 0.1 every 1h
    range: 0.8..1.2
";

const WASH: &str = "
identity: { attributes: { notional: given } }
events: { order: { value: notional }, self_trade: { value: notional } }
ratios:
  wash:
    of: self_trade
    to: order
    by: user
    within: 1day
    at_least: 3
    above: 10%
    then: { flag: wash-trading, warn: look }
";

const LOAD: &str = "
limits: { a: { by: user, total: 10, scaled: true } }
factors: { overload: { load_above: 80%, times: 0.5 } }
";

fn report(fixture: &Fixture, event: &str, times: usize) -> Consequences {
    let told = || fixture.limiter.report(&Report::new(event, user("u"))).unwrap();
    (1..times).for_each(|_| _ = told());
    told()
}

fn worth(fixture: &Fixture, event: &str, value: &str) -> Consequences {
    let report = Report::new(event, user("u")).value(Amount::parse(value).unwrap());
    fixture.limiter.report(&report).unwrap()
}

fn factor(fixture: &Fixture, name: &str) -> u64 {
    fixture.limiter.peek(&user(name)).unwrap().factor_ppm()
}

#[test]
fn below_at_least_no_step_is_taken_rule_7() {
    let fixture = Fixture::with_policy(BEHAVIOUR);
    report(&fixture, "order", 4);
    assert_eq!(factor(&fixture, "u"), 1_000_000);
    report(&fixture, "order", 1);
    assert_eq!(factor(&fixture, "u"), 1_100_000);
}

#[test]
fn a_factor_steps_up_when_all_conditions_hold_and_down_when_one_fails_rule_7() {
    let fixture = Fixture::with_policy(BEHAVIOUR);
    report(&fixture, "order", 5);
    assert_eq!(fixture.check(&user("u")).limits[0].spec.to_string(), "11/min");
    assert_eq!(factor(&fixture, "v"), 1_000_000, "of nobody else");
    report(&fixture, "self_trade", 1);
    fixture.advance(seconds(3_600));
    report(&fixture, "order", 1);
    assert_eq!(factor(&fixture, "u"), 1_000_000, "one fifth is no good any more");
}

#[test]
fn a_step_is_taken_once_in_its_span_and_never_beyond_the_range_rule_7() {
    let fixture = Fixture::with_policy(BEHAVIOUR);
    report(&fixture, "order", 50);
    assert_eq!(factor(&fixture, "u"), 1_100_000);
    fixture.advance(seconds(3_599));
    report(&fixture, "order", 1);
    assert_eq!(factor(&fixture, "u"), 1_100_000);
    fixture.advance(seconds(1));
    report(&fixture, "order", 1);
    assert_eq!(factor(&fixture, "u"), 1_200_000);
    fixture.advance(seconds(3_600));
    report(&fixture, "order", 1);
    assert_eq!(factor(&fixture, "u"), 1_200_000);
    report(&fixture, "self_trade", 50);
    for down in [1_100_000, 1_000_000, 900_000, 800_000, 800_000] {
        report(&fixture, "self_trade", 1);
        assert_eq!(factor(&fixture, "u"), down);
        fixture.advance(seconds(3_600));
    }
}

#[test]
fn a_load_factor_starts_above_its_share_and_ends_ten_points_lower_rule_7() {
    let fixture = Fixture::with_policy(LOAD);
    let halved = |load_ppm| {
        fixture.limiter.set_load(load_ppm);
        factor(&fixture, "u") == 500_000
    };
    assert!(!halved(800_000), "not at 80 %");
    assert!(halved(800_001));
    assert!(halved(800_000) && halved(700_001), "still too near");
    assert!(!halved(700_000), "ten points lower");
    assert!(!halved(800_000), "and it takes strictly above again");
}

#[test]
fn a_reload_keeps_a_load_factor_that_has_started_rule_7() {
    let fixture = Fixture::with_policy(LOAD);
    fixture.limiter.set_load(900_000);
    fixture.limiter.set_load(750_000);
    fixture.reload(LOAD);
    assert_eq!(factor(&fixture, "u"), 500_000);
    fixture.limiter.set_load(700_000);
    fixture.reload(LOAD);
    assert_eq!(factor(&fixture, "u"), 1_000_000);
}

#[test]
fn a_ratio_is_by_value_strictly_above_and_flags_once_rule_7() {
    let fixture = Fixture::with_policy(WASH);
    for _ in 0..2 {
        worth(&fixture, "order", "50");
    }
    assert!(worth(&fixture, "self_trade", "99").flags.is_empty(), "two orders are too few");
    worth(&fixture, "order", "890");
    assert!(worth(&fixture, "order", "10").warnings.is_empty(), "99 of 1000");
    assert!(worth(&fixture, "self_trade", "1").flags.is_empty(), "exactly a tenth is not above");
    let flagged = worth(&fixture, "self_trade", "0.000001");
    assert_eq!(
        (&*flagged.flags, &*flagged.warnings),
        (&["wash-trading".to_owned()][..], &["look".to_owned()][..])
    );
    assert!(matches!(&flagged.effects[..], [Effect::Flagged { source, .. }] if source == "wash"));
    let again = worth(&fixture, "self_trade", "5");
    assert!(again.flags.is_empty() && again.effects.is_empty());
    assert_eq!(fixture.limiter.marks().list(MarkKind::Flag, None, 9, fixture.clock.now()).len(), 1);
}

#[test]
fn a_value_is_an_attribute_or_reported_and_a_bad_one_is_refused_rule_7() {
    let fixture = Fixture::with_policy(WASH);
    let report = |value: &'static str| {
        let request = user("u").attribute("notional", value);
        fixture.limiter.report(&Report::new("order", request))
    };
    assert!(report("12.5").is_ok());
    assert_eq!(report("-1").unwrap_err().field, "attributes.notional");
}

#[test]
fn a_fixed_factor_holds_where_its_condition_does_rule_7() {
    let fixture = Fixture::with_policy(
        "
limits: { a: { by: ip, sliding_window: 2/min } }
factors: { makers: { when: { ip: [198.51.100.0/24] }, times: 10 } }
",
    );
    let from = |ip: [u8; 4]| Request::new("GET", "/").ip(ip.into());
    assert_eq!(fixture.count_allowed(30, &from([198, 51, 100, 1])), 20);
    assert_eq!(fixture.count_allowed(30, &from([192, 0, 2, 1])), 2);
    assert_eq!(fixture.outcome(&from([192, 0, 2, 1])), Outcome::Limited);
}
