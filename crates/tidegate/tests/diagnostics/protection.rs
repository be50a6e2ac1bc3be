//! What protects: events, ladders, ratios, factors, challenges, notices.

use super::*;

#[test]
fn events() {
    assert_snapshot!(lines(
        r#"
operations: { login: POST /login }
limits: { login-ip: { when: login, by: ip, total: 5 } }
events:
  limited: {}
  two words: {}
  failure: { when: logn, status: [401, 4x, 600] }
  both: { status: 2xx, outcome: limited }
  loose: { when: login }
  over: { outcome: limit, limit: login-pi }
  never: { outcome: banned, limit: login-ip }
  paid: { value: amount }
  nothing:
  odd: { statuses: 401, when: login }
"#
    ));
}

#[test]
fn penalties() {
    assert_snapshot!(lines(
        r#"
events: { failure: {}, success: {} }
notify: { security: { webhook: "https://example.org/hook" } }
penalties:
  empty: {}
  lost: { event: failur, by: nobody, within: 15m, ladder: {} }
  self: { event: failure, by: ip, within: 15min, forgive: [success, failure], ladder: { 1: {} } }
  steps:
    event: failure
    by: ip
    within: 15min
    ladder:
      0: {}
      some: {}
      20000: {}
      5: { allow: yes, delay: 11min, warn: "zurück", flag: a b, notify: securty }
      05: { allow: true, ban: 1h, challenge: true }
      6: { ban: 15, delays: 2s }
      7: { ban: { by: networks } }
      8: { ban: { for: 1h, by: ip, ipv4_prefix: 16 } }
      9: { ban: { for: 1h, by: network, ipv4_prefix: 33, ipv6_prefix: 0 } }
  parts:
    event: failure
    by: [ip, method]
    within: 15min
    missing: refused
    key: "fail:{ip}"
    ladder: { 1: {} }
  first: { event: failure, by: ip, within: 1h, ladder: { 1: {} }, key: "fail:{ip:raw}:{user}" }
  second: { event: failure, by: ip, within: 1h, ladder: { 1: {} }, key: "rl:{ip}" }
  third: { event: failure, by: ip, within: 1h, ladder: { 1: {} }, key: "rl:{ip}" }
  fourth: { event: failure, by: ip, within: 1h, ladder: { 1: {} }, key: "l:{ip}" }
limits:
  taken: { by: ip, total: 5, key: "l:{ip}" }
"#
    ));
}

#[test]
fn ratios_and_factors() {
    assert_snapshot!(lines(
        r#"
events: { order: {}, cancel: {} }
ratios:
  empty: {}
  same: { of: order, to: order, by: user, within: 1day }
  alone: { of: cancel, to: order, by: user, within: 1day, above: 10% }
  calm: { of: cancel, to: order, by: user, within: 1day, then: { flag: x } }
  grace: { of: cancel, to: order, by: ip, within: 1day, above: 10, then: { allow: true } }
  address: { of: cancel, to: order, by: ip, within: 1day }
  rate: { of: cancel, to: order, by: user, within: 1day, at_least: 0 }
factors:
  empty: {}
  nothing: { times: 0 }
  load: { load_above: 120%, times: 0.5 }
  idle: { load_above: 80% }
  always: { load_above: 10%, times: 0.5 }
  never: { load_above: 100%, times: 0.5 }
  both: { by: user, good: rate < 90%, step: 0.1 every 1h, range: 0.5..2, times: 2 }
  moves: { by: user, good: [rat < 90%, rate 90%, rate < 90, address < 5%], step: 0.1, range: 2..3 }
  part: { good: rate < 90%, range: 0.5-2 }
"#
    ));
}

#[test]
fn challenges_and_notices() {
    assert_snapshot!(lines(
        r#"
challenge: { kind: captcha, difficulty: 40, secret_env: UNSET, script_url: x }
block: { countries: [Korea] }
response: { banned: { statu: 403 }, challenged: { status: 200 } }
limits: { a: { by: ip, total: 5, scaled: twice, exceed: chalenge } }
notify:
  empty: {}
  none: { webhook: "" }
  pager: { webhook: "https://user:hush@example.org/", secret_env: UNSET }
  chat: { webhook: "https://example.org/", identities: maybe, body: { text: "{pnalty} {user} {limit}", until: {until} } }
"#
    ));
    assert_snapshot!(lines(
        "challenge: { kind: proof_of_work, difficulty: 40, site_key: x, pass: 0s }"
    ));
    assert_snapshot!(lines("challenge: { difficulty: 4 }"));
}

#[test]
fn an_address_that_is_refused_is_not_shown() {
    let text = "{tidegate: 1, name: n, notify: {a: {webhook: \"https://u:hush@example.org/\"}}}";
    assert!(!diagnostics(text, None).to_string().contains("hush"));
}

#[test]
fn what_never_happens_or_is_never_used() {
    assert_snapshot!(lines(
        r#"
operations: { login: POST /login }
limits:
  trial: { by: ip, total: 5, shadow: true }
  mild: { by: ip, total: 5, exceed: warn }
events:
  over: { outcome: limited, limit: [trial, mild] }
  asked: { outcome: challenged }
  blocked-out: { outcome: blocked }
  failure: { when: login, status: 401 }
penalties:
  never: { event: [over, challenge_failed], by: ip, within: 1h, ladder: { 5: { ban: 1h } } }
  grace: { event: failure, by: ip, within: 1h, ladder: { 1: { allow: true } } }
  users: { event: failure, by: user, within: 1h, ladder: { 5: { ban: 1h } } }
  all: { event: failure, by: [global, tier], within: 1h, ladder: { 5: { ban: 1h }, 9: { ban: { for: 1h, by: ip } } } }
ratios:
  share: { of: failure, to: banned, by: country, within: 1h, above: 10%, then: { ban: 1h } }
factors: { half: { times: 0.5 } }
challenge: { kind: proof_of_work }
notify: { pager: { webhook: "https://example.org/" } }
"#
    ));
}

#[test]
fn penalties_that_a_body_escapes() {
    assert_snapshot!(lines(
        r#"
identity: { attributes: { email: { body: /email }, card: given } }
operations: { login: POST /login }
events:
  failure: { when: login, status: 401 }
  anywhere: { status: 401 }
  told: {}
penalties:
  unsaid: { event: failure, by: email, within: 1h, ladder: { 2: { delay: 1s } } }
  skips: { event: failure, by: [ip, email], within: 1h, ladder: { 2: { delay: 1s } }, missing: skip }
  shares: { event: failure, by: email, within: 1h, ladder: { 2: { ban: 1h } }, missing: share }
  everywhere: { event: anywhere, by: email, within: 1h, ladder: { 2: { ban: 1h } }, missing: refuse }
  sound: { event: failure, by: email, within: 1h, ladder: { 2: { ban: 1h } }, missing: refuse }
  slow: { event: failure, by: email, within: 1h, ladder: { 2: { delay: 1s } }, missing: share }
  watched: { event: failure, by: email, within: 1h, ladder: { 2: { flag: review } } }
  reported: { event: told, by: email, within: 1h, ladder: { 2: { ban: 1h } } }
  given: { event: failure, by: card, within: 1h, ladder: { 2: { ban: 1h } } }
"#
    ));
}

#[test]
fn numbers_that_do_not_go_together() {
    assert_snapshot!(lines(
        r#"
operations: { login: POST /login, order: POST /orders }
limits:
  logins: { when: login, by: ip, sliding_window: 5/min }
  orders: { when: order, by: client, token_bucket: 1/min burst 4 }
  asks: { by: ip, total: 1000, exceed: challenge }
events:
  failure: { when: login, status: [401, 4xx] }
  ordered: { when: order, status: 2xx }
  cancelled: {}
penalties:
  high: { event: failure, by: [ip, method], within: 5min, ladder: { 25: { delay: 1s }, 26: { delay: 2s } } }
  behind: { event: [failure, limited], by: ip, within: 1h, ladder: { 5: { ban: 1h }, 20: { flag: review } } }
  short: { event: cancelled, by: ip, within: 1h, ladder: { 3: { ban: 1min }, 10: { ban: 10min }, 20: { delay: 1s } } }
ratios:
  few: { of: cancelled, to: ordered, by: client, within: 1h, at_least: 65, above: 10%, then: { flag: review } }
challenge:
  kind: captcha
  verify_url: http://captcha.example.org/siteverify
  script_url: http://captcha.example.org/api.js
  secret_env: SET
"#
    ));
}

#[test]
fn numbers_that_go_together_are_no_trouble() {
    let text = r#"tidegate: 1
name: n
operations: { login: POST /login, order: POST /orders }
limits:
  logins: { when: login, by: ip, sliding_window: 5/min, exceed: challenge }
  all: { by: ip, fixed_window: 5/min }
  orders: { when: order, by: client, token_bucket: 1/min burst 5, counts: successes }
events:
  failure: { when: login, status: 401 }
  ordered: { when: order, status: 2xx }
  cancelled: {}
penalties:
  enough: { event: failure, by: ip, within: 5min, ladder: { 30: { delay: 1s } } }
  others: { event: failure, by: method, within: 1min, ladder: { 500: { delay: 1s } } }
  counted: { event: [failure, banned], by: ip, within: 1h, ladder: { 5: { ban: 1h }, 20: { flag: review } } }
  wide: { event: failure, by: header.x, within: 1h, ladder: { 5: { ban: { for: 1h, by: network } }, 20: { flag: review } } }
  rising: { event: cancelled, by: ip, within: 1h, ladder: { 3: { ban: 1min }, 10: { ban: 1h } } }
ratios:
  enough: { of: cancelled, to: ordered, by: client, within: 1h, at_least: 1000, above: 10%, then: { flag: review } }
challenge:
  kind: captcha
  verify_url: http://127.0.0.1:9000/siteverify
  script_url: http://[::1]/api.js
  secret_env: SET
"#;
    assert_eq!(diagnostics(text, None).to_string(), "");
}
