//! Rules about keys that a later version brings: until then a policy that relies on them is refused.

use tidegate::Policy;

fn refusal(rest: &str) -> String {
    let text = format!("tidegate: 1\nname: later\n{rest}\n");
    Policy::parse("later.yaml", &text).unwrap_err().to_string()
}

#[test]
fn rule_6_ladders_and_their_events_are_refused_until_they_work() {
    let events = refusal("events: { failure: { status: 401 } }");
    assert_eq!(events, "later.yaml:3:1: error: `events` is not supported yet");
    let ladder = refusal(
        "penalties: { p: { event: limited, by: ip, within: 1h, ladder: { 1: { allow: true } } } }",
    );
    assert_eq!(ladder, "later.yaml:3:1: error: `penalties` is not supported yet");
}

#[test]
fn rule_7_factors_and_ratios_are_refused_until_they_work() {
    for key in ["factors", "ratios"] {
        let refused = refusal(&format!("{key}: {{}}"));
        assert_eq!(refused, format!("later.yaml:3:1: error: `{key}` is not supported yet"));
    }
}

#[test]
fn rule_10_notice_is_refused_until_it_works() {
    assert_eq!(refusal("notice: 7d"), "later.yaml:3:1: error: `notice` is not supported yet");
}
