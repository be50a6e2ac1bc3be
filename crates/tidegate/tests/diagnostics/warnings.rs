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

#[test]
fn placeholders_of_other_routers() {
    assert_snapshot!(warned(
        "
operations:
  express: GET /rooms/:id
  flask: ['GET /rooms/<id>', 'GET /users/<int:user_id>/posts']
  literal: ['GET /v1/rooms:search', GET /%3Aid]
exempt: { path: /files/:name }
limits:
  a: { by: ip, total: 5 }
"
    ));
}

#[test]
fn limits_that_never_apply() {
    assert_snapshot!(warned(
        "
identity: { default_tier: free, anonymous_tier: guest }
operations:
  health: GET /health
  login: POST /login
  room: GET|PUT /rooms/{room}
exempt:
  - path: [/health, /ready]
  - { tier: free, internal: true }
  - { authenticated: true, tier: guest }
events:
  failure: { when: { operation: login, method: GET }, status: 401 }
limits:
  health: { when: health, by: ip, total: 5 }
  inside: { when: { tier: free, internal: true, operation: login }, by: ip, total: 5 }
  path: { when: { path: /ready }, by: ip, total: 5 }
  guests: { when: { tier: guest, authenticated: true }, by: ip, total: 5 }
  guest-users: { when: { tier: guest }, by: user, total: 5 }
  elsewhere: { when: { operation: room, path: /users/** }, by: ip, total: 5 }
  method: { when: { operation: login, method: [GET, DELETE] }, by: ip, total: 5 }
  nothing: { when: { operation: [login, room], not: { operation: [room, login, health] } }, by: ip, total: 5 }
  unpaid: { when: { tier: free, not: { tier: [free, gold] } }, by: ip, total: 5 }
factors:
  gold: { when: { tier: gold, not: { tier: gold } }, times: 2 }
penalties:
  guessing: { event: failure, by: ip, within: 1h, ladder: { 9: { ban: 1h } } }
"
    ));
}

#[test]
fn limits_that_never_bind() {
    assert_snapshot!(warned(
        "
operations: { login: POST /login }
limits:
  minute: { by: ip, sliding_window: 10/min }
  hour: { by: ip, sliding_window: 600/h }
  login-hour: { when: login, by: [ip, path], fixed_window: 700/h }
  day: { by: ip, quota: 20k/day }
  counter: { by: ip, sliding_counter: 1200/h }
  twice: { by: ip, sliding_window: 10/min }
"
    ));
}

#[test]
fn limits_that_anyone_escapes() {
    assert_snapshot!(warned(
        "
identity: { attributes: { key: { header: X-Api-Key }, session: { cookie: sid } } }
operations: { login: POST /login, search: GET /search }
limits:
  key: { when: login, by: key, sliding_window: 5/min }
  agent: { by: [ip, header.User-Agent], sliding_window: 5/min }
  session: { when: login, by: session, sliding_window: 5/min }
  search: { when: search, by: header.X-Api-Key, sliding_window: 5/min }
  search-address: { when: search, by: ip, sliding_window: 100/min }
"
    ));
}

#[test]
fn words_of_specs_are_no_tiers() {
    assert_snapshot!(warned(
        "limits: { a: { by: ip, sliding_window: { rate: 5/min, default: 9/min } } }"
    ));
}

#[test]
fn a_policy_without_limits() {
    assert_snapshot!(warned("block: { ips: [192.0.2.0/24] }"));
    assert_snapshot!(warned("limits: {}"));
}

/// What looks alike, and may apply and bind.
#[test]
fn no_warning_without_a_proof() {
    let quiet = "tidegate: 1
name: n
identity:
  trusted_proxies: 127.0.0.0/8
  user: { header: X-User }
  default_tier: free
  attributes: { key: { header: X-Key, trusted: true } }
operations:
  health: GET /health
  files: GET /health/**
  named: {}
  login: [POST /login, GET /login]
  upload: POST /upload
exempt:
  - { path: /health, internal: true }
  - { path: /health, ip: 10.0.0.0/8 }
  - { path: /files }
limits:
  health: { when: health, by: ip, total: 5 }
  files: { when: [files, named], by: ip, total: 5 }
  named: { when: { operation: named, path: /other }, by: ip, total: 5 }
  case: { when: { operation: login, path: /LOGIN, method: GET }, by: ip, total: 5 }
  trusted: { by: key, sliding_window: 5/min }
  burst: { when: upload, by: client, token_bucket: 1/s burst 200 }
  claimed: { when: health, by: header.x-user, sliding_window: 5/min, exceed: wait 1s }
  minute: { when: upload, by: client, sliding_window: { free: 10/min, gold: 100/min, anonymous: 1/min } }
  hour: { when: upload, by: client, sliding_window: { free: 599/h, gold: 6000/h, anonymous: 60/h } }
  trial-minute: { when: health, by: client, sliding_window: 10/min, shadow: true }
  trial-hour: { when: health, by: client, sliding_window: 600/h }
  failing-minute: { when: login, by: client, sliding_window: 10/min, counts: failures }
  failing-hour: { when: login, by: client, sliding_window: 600/h }
";
    assert_eq!(diagnostics(quiet, None).to_string(), "");
}

#[test]
fn factors_and_grace_may_lift_the_tighter_limit() {
    let with = |more: &str| {
        let limits = "a: { by: ip, sliding_window: 10/min }, b: { by: ip, sliding_window: 600/h }";
        let text = format!("{{ tidegate: 1, name: n, limits: {{ {limits} }}{more} }}");
        diagnostics(&text, None).iter().len()
    };
    assert_eq!(with(""), 1);
    assert_eq!(with(", factors: { f: { when: { ip: 192.0.2.1 }, times: 3 } }"), 0);
    let ladder = "{ 1: { allow: true }, 2: {} }";
    assert_eq!(
        with(&format!(
            ", penalties: {{ p: {{ event: limited, by: ip, within: 1h, ladder: {ladder} }} }}"
        )),
        0
    );
}
