//! Variables and profiles.

use super::*;

#[test]
fn variables() {
    assert_snapshot!(policy(
        "
tidegate: 1
name: ${UNSET}
version: ${NOT A NAME}-${1ST:-x}-${}
timezone: Europe/${SET
enabled: ${SET}
limits:
  a: { by: ip, total: '${SET}${UNSET}/min' }
"
    ));
}

#[test]
fn profiles() {
    let text = "
tidegate: 1
name: n
profiles:
  development: 5
  production: { limits: { a: { by: ip, totl: 5 } }, profiles: {} }
  staging:
"
    .trim_start();
    for profile in ["development", "production", "staging", "prod", "developmnt"] {
        let found = diagnostics(text, Some(profile));
        assert_snapshot!(format!("profile_{profile}"), annotated(text, &found));
    }
}

#[test]
fn profiles_that_are_none() {
    assert_snapshot!(lines("profiles: [development]"));
    assert_snapshot!(diagnostics("{ tidegate: 1, name: n }", Some("development")).to_string());
}

#[test]
fn several_profiles_are_laid_over_in_order() {
    let text = "
tidegate: 1
name: n
limits: { a: { by: ip, total: 1 }, b: { by: ip, total: 5 } }
profiles:
  drop: { limits: { a: null } }
  change: { limits: { a: { total: 0 } } }
";
    let found = |profiles| diagnostics(text, Some(profiles)).to_string();
    assert!(found("change").contains("error"));
    assert!(found("change,drop").is_empty(), "{}", found("change,drop"));
    assert!(found("drop, change").contains("error"));
    assert!(found("drop,drop").contains("deletes `a`, which there is not"));
    assert!(found("drop,").contains("found no profile ``"));
    let comma = text.replace("drop:", "'a,b':");
    assert!(diagnostics(&comma, None).to_string().contains("expected a name without comma"));
}
