//! Rules about keys that a later version brings: until then a policy that relies on them is refused.

use tidegate::Policy;

fn refusal(rest: &str) -> String {
    let text = format!("tidegate: 1\nname: later\n{rest}\n");
    Policy::parse("later.yaml", &text).unwrap_err().to_string()
}

#[test]
fn rule_10_notice_is_refused_until_it_works() {
    assert_eq!(refusal("notice: 7d"), "later.yaml:3:1: error: `notice` is not supported yet");
}
