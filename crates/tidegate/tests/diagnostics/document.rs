//! Documents that are no tree: syntax, nesting, keys, sizes.

use super::*;

#[test]
fn what_is_not_one_plain_document() {
    assert_snapshot!(said(""));
    assert_snapshot!(each(
        "
            a: [
            a: *nobody
            a: !!str 5
            a: !custom {}
            { a: &x { b: 1 }, c: { <<: *x } }
            ? [a]
            ? { a: b }
            { a: &x [1], *x : 2 }
            a: &x [*x]
            "
    ));
    assert_snapshot!(policy("a: 1\n---\nb: 2\n"));
}

#[test]
fn every_duplicate_key_and_what_else_is_wrong() {
    assert_snapshot!(policy(
        "
tidegate: 1
name: n
name: m
limits:
  a: { by: ip, by: user, total: 5 }
  a: { by: ip, total: many }
"
    ));
}

#[test]
fn documents_are_bounded() {
    let anchors: String = (0..1_001).map(|index| format!("&a{index} x, ")).collect();
    let bounded = [
        "x".repeat((1 << 20) + 1),
        "[".repeat(70),
        format!("[{}]", "x,".repeat(100_001)),
        format!("[{anchors}]"),
    ];
    assert_snapshot!(bounded.map(|text| said(&text)).join("\n"));
}

#[test]
fn a_flood_of_errors_is_cut_off() {
    let keys: String = (0..500).map(|index| format!("key{index}: 1\n")).collect();
    assert_eq!(diagnostics(&keys, None).iter().len(), 100);
}

#[test]
fn what_trips_most_people_gets_advice() {
    let told = [
        policy("tidegate: 1\nname:acme\nlimits: {}"),
        policy("tidegate: 1\nname: n\nresponse:\n  message: Slow down: wait"),
        policy("policy: p.yaml\ntests: []"),
        lines("exempt: [/health]"),
        lines("limits: { a: { by: ip, quota: unlimitd }, b: { by: ip, fixed_window: 10K/hour } }"),
    ];
    assert_snapshot!(told.join("\n"));
}

#[test]
fn texts_that_yaml_cuts_get_advice() {
    let told = [
        lines(
            "limits: { a: { by: ip, total: 5, message: Too many, please wait, really, status: 429 } }",
        ),
        lines("limits: { a: { by: ip, total: 5, message: Slow down: wait, status: 429 } }"),
        lines("response:\n  message: Slow down: wait a moment"),
    ];
    assert_snapshot!(told.join("\n"));
}

#[test]
fn wrong_indentation_gets_advice() {
    let told = [
        lines("limits:\n  a:\n    by: ip\n   total: 5"),
        lines("limits:\n  a:\n    by: ip\n      total: 5"),
        lines("limits:\n  a:\n  by: ip\n  total: 5"),
        lines("limits:\na:\n  by: ip\n  total: 5\nb:\n  by: ip\n  total: 5"),
        lines("limits:\n  a: { by: ip, total: 5 }\n\tb: { by: ip, total: 5 }"),
    ];
    assert_snapshot!(told.join("\n"));
}
