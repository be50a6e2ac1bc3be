//! A policy with a reserved key is refused.

use tidegate::Policy;

fn refusal(rest: &str) -> String {
    let text = format!("tidegate: 1\nname: later\n{rest}\n");
    Policy::parse("later.yaml", &text).unwrap_err().to_string()
}

#[test]
fn notice_is_refused_as_not_supported_yet() {
    assert_eq!(refusal("notice: 7d"), "later.yaml:3:1: error: `notice` is not supported yet");
}
