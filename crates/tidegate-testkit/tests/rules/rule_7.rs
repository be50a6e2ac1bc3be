//! Behaviour moves step by step, load trips and ends, ratios need a sample.

use tidegate::clock::Clock as _;
use tidegate::units::Amount;
use tidegate::{Consequences, Effect, MarkKind, Outcome, Report, Request};

use crate::{Desk, seconds, user};

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

fn report(desk: &Desk, event: &str, times: usize) -> Consequences {
    let told = || desk.limiter.report_now(&Report::new(event, user("u"))).unwrap();
    (1..times).for_each(|_| _ = told());
    told()
}

fn worth(desk: &Desk, event: &str, value: &str) -> Consequences {
    let report = Report::new(event, user("u")).value(Amount::parse(value).unwrap());
    desk.limiter.report_now(&report).unwrap()
}

fn factor(desk: &Desk, name: &str) -> u64 {
    desk.limiter.peek(&user(name)).unwrap().factor_ppm()
}

#[test]
fn rule_7_below_at_least_no_step_is_taken() {
    let desk = Desk::with_policy(BEHAVIOUR);
    report(&desk, "order", 4);
    assert_eq!(factor(&desk, "u"), 1_000_000);
    report(&desk, "order", 1);
    assert_eq!(factor(&desk, "u"), 1_100_000);
}

#[test]
fn rule_7_all_good_hold_a_step_up_any_fails_a_step_down() {
    let desk = Desk::with_policy(BEHAVIOUR);
    report(&desk, "order", 5);
    assert_eq!(desk.check(&user("u")).limits[0].spec.to_string(), "11/min");
    assert_eq!(factor(&desk, "v"), 1_000_000, "of nobody else");
    report(&desk, "self_trade", 1);
    desk.wait(seconds(3_600));
    report(&desk, "order", 1);
    assert_eq!(factor(&desk, "u"), 1_000_000, "one fifth is no good any more");
}

#[test]
fn rule_7_a_step_is_taken_once_in_its_span_and_never_beyond_the_range() {
    let desk = Desk::with_policy(BEHAVIOUR);
    report(&desk, "order", 50);
    assert_eq!(factor(&desk, "u"), 1_100_000);
    desk.wait(seconds(3_599));
    report(&desk, "order", 1);
    assert_eq!(factor(&desk, "u"), 1_100_000);
    desk.wait(seconds(1));
    report(&desk, "order", 1);
    assert_eq!(factor(&desk, "u"), 1_200_000);
    desk.wait(seconds(3_600));
    report(&desk, "order", 1);
    assert_eq!(factor(&desk, "u"), 1_200_000);
    report(&desk, "self_trade", 50);
    for down in [1_100_000, 1_000_000, 900_000, 800_000, 800_000] {
        report(&desk, "self_trade", 1);
        assert_eq!(factor(&desk, "u"), down);
        desk.wait(seconds(3_600));
    }
}

#[test]
fn rule_7_load_strictly_above_trips_and_ten_points_lower_ends_it() {
    let desk = Desk::with_policy(LOAD);
    let halved = |load_ppm| {
        desk.limiter.set_load(load_ppm);
        factor(&desk, "u") == 500_000
    };
    assert!(!halved(800_000), "not at 80 %");
    assert!(halved(800_001));
    assert!(halved(800_000) && halved(700_001), "still too near");
    assert!(!halved(700_000), "ten points lower");
    assert!(!halved(800_000), "and it takes strictly above again");
}

#[test]
fn rule_7_a_reload_keeps_a_load_that_has_tripped() {
    let desk = Desk::with_policy(LOAD);
    desk.limiter.set_load(900_000);
    desk.limiter.set_load(750_000);
    desk.reload(LOAD);
    assert_eq!(factor(&desk, "u"), 500_000);
    desk.limiter.set_load(700_000);
    desk.reload(LOAD);
    assert_eq!(factor(&desk, "u"), 1_000_000);
}

#[test]
fn rule_7_a_ratio_is_by_value_strictly_above_and_flags_once() {
    let desk = Desk::with_policy(WASH);
    for _ in 0..2 {
        worth(&desk, "order", "50");
    }
    assert!(worth(&desk, "self_trade", "99").flags.is_empty(), "two orders are too few");
    worth(&desk, "order", "890");
    assert!(worth(&desk, "order", "10").warnings.is_empty(), "99 of 1000");
    assert!(worth(&desk, "self_trade", "1").flags.is_empty(), "exactly a tenth is not above");
    let flagged = worth(&desk, "self_trade", "0.000001");
    assert_eq!(
        (&*flagged.flags, &*flagged.warnings),
        (&["wash-trading".to_owned()][..], &["look".to_owned()][..])
    );
    assert!(matches!(&flagged.effects[..], [Effect::Flagged { source, .. }] if source == "wash"));
    let again = worth(&desk, "self_trade", "5");
    assert!(again.flags.is_empty() && again.effects.is_empty());
    assert_eq!(desk.limiter.marks().list(MarkKind::Flag, None, 9, desk.clock.now()).len(), 1);
}

#[test]
fn rule_7_a_value_is_an_attribute_or_told_and_a_bad_one_is_refused() {
    let desk = Desk::with_policy(WASH);
    let report = |value: &'static str| {
        let request = user("u").attribute("notional", value);
        desk.limiter.report_now(&Report::new("order", request))
    };
    assert!(report("12.5").is_ok());
    assert_eq!(report("-1").unwrap_err().field, "attributes.notional");
}

#[test]
fn rule_7_a_fixed_factor_holds_where_its_condition_does() {
    let desk = Desk::with_policy(
        "
limits: { a: { by: ip, sliding_window: 2/min } }
factors: { makers: { when: { ip: [198.51.100.0/24] }, times: 10 } }
",
    );
    let from = |ip: [u8; 4]| Request::new("GET", "/").ip(ip.into());
    assert_eq!(desk.passing(30, &from([198, 51, 100, 1])), 20);
    assert_eq!(desk.passing(30, &from([192, 0, 2, 1])), 2);
    assert_eq!(desk.outcome(&from([192, 0, 2, 1])), Outcome::Limited);
}
