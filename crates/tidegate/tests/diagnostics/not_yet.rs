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
        "alerts: {}",
        "notice: 7d",
        "limits: { a: { by: ip, count: { max: 10, source: main, sql: select 1 } } }",
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
fn steps_of_tests_are_refused() {
    let steps = ["source: {}", "override: {}"];
    let mut all = String::new();
    for step in steps {
        let text = format!("policy: p.yaml\ntests: [{{ name: n, steps: [{{ {step} }}] }}]");
        let found = TestFile::parse("policy.test.yaml", &text).unwrap_err();
        assert_not_yet(&found, step);
        writeln!(all, "{step}\n    {found}").unwrap();
    }
    assert_snapshot!(all);
}
