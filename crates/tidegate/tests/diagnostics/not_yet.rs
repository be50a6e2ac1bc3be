//! What a later version brings.

use super::*;

/// What is said must be one error that says so, at each of these.
fn assert_not_yet(found: &Diagnostics, text: &str) {
    let errors: Vec<_> = found.iter().filter(|one| one.severity == Severity::Error).collect();
    let refused = errors.iter().filter(|one| one.message.ends_with("is not supported yet"));
    assert_eq!((refused.count(), errors.len()), (1, 1), "{text}\n{found}");
}

#[test]
fn keys_and_words_of_policies_are_refused() {
    let pieces = [
        "block: { countries: [KP] }",
        "events: {}",
        "penalties: {}",
        "ratios: {}",
        "factors: {}",
        "challenge: {}",
        "notify: {}",
        "alerts: {}",
        "notice: 7d",
        "defaults: { exceed: challenge }",
        "limits: { a: { by: ip, total: 5, exceed: challenge } }",
        "limits: { a: { by: ip, total: 5, scaled: true } }",
        "limits: { a: { by: ip, count: { max: 10, source: main, sql: select 1 } } }",
        "response: { banned: { status: 403 } }",
        "response: { challenged: { status: 403 } }",
    ];
    let mut all = String::new();
    for piece in pieces {
        let text = format!("tidegate: 1\nname: n\n{piece}");
        let found = diagnostics(&text, None);
        assert_not_yet(&found, piece);
        writeln!(all, "{piece}\n    {found}").unwrap();
        let profile = format!("tidegate: 1\nname: n\nprofiles:\n  p: {{ {piece} }}");
        assert_not_yet(&diagnostics(&profile, Some("p")), piece);
    }
    assert_snapshot!(all);
}

#[test]
fn steps_and_expectations_of_tests_are_refused() {
    let steps = [
        "report: {}",
        "load: 80%",
        "source: {}",
        "override: {}",
        "ban: {}",
        "expect: { delay: 2s }",
        "expect: { factor: 2 }",
        "expect: { flags: [a] }",
        "expect: { notified: [a] }",
        "expect: { outcome: banned }",
        "expect: { outcome: challenged }",
        "expect: banned",
        "expect: challenged",
    ];
    let mut all = String::new();
    for step in steps {
        let text = format!("policy: p.yaml\ntests: [{{ name: n, steps: [{{ {step} }}] }}]");
        let found = TestFile::parse("policy.test.yaml", &text).unwrap_err();
        assert_not_yet(&found, step);
        writeln!(all, "{step}\n    {found}").unwrap();
    }
    assert_snapshot!(all);
}
