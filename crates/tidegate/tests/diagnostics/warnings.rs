//! What is legal, but surely not meant.

use super::*;

/// A policy that is valid, with the warnings.
fn warned(text: &str) -> String {
    let text = format!("tidegate: 1\nname: n\n{}", text.trim_start());
    let found = diagnostics(&text, None);
    assert!(found.iter().all(|one| one.severity == Severity::Warning), "{found}");
    annotated(&text, &found)
}

#[test]
fn what_is_surely_not_meant() {
    assert_snapshot!(warned(
        "
tiers: [free, premium]
identity: { default_tier: free }
operations:
  all: GET /rooms/**
  room: GET /rooms/{room}
  login: POST /login
limits:
  user: { when: room, by: user, total: 5 }
  login: { when: login, by: user, total: 5 }
  burst: { when: all, by: ip, token_bucket: 1/s burst 100 }
  quota: { by: ip, when: all, quota: 50/day }
  leased: { by: global, token_bucket: 1/s burst 3, consistency: leased }
"
    ));
}

#[test]
fn the_help_ends_the_warning() {
    let quiet = "tidegate: 1
name: n
operations: { room: 'GET /rooms/{room}', all: GET /rooms/**, login: POST /login }
limits:
  user: { when: { operation: room, authenticated: true }, by: user, total: 5 }
  client: { when: all, by: client, total: 5 }
  login: { when: login, by: ip, total: 5 }
";
    assert_eq!(diagnostics(quiet, None).to_string(), "");
}

#[test]
fn errors_and_warnings_come_together_in_the_order_of_the_file() {
    assert_snapshot!(lines(
        "
operations: { all: GET /**, room: GET /room }
limits:
  a: { by: user, totl: 5 }
"
    ));
}
