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
