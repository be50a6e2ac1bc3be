//! What people read when something is wrong with a policy or a test file: every error and every
//! warning, as a snapshot. Each shows the document with what is said of it below the line it is
//! said of; several problems per document show that one run finds all of them, in order.
//!
//! After a message was changed on purpose, `INSTA_UPDATE=always cargo test` writes the snapshots
//! anew.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use insta::assert_snapshot;
use tidegate::Policy;
use tidegate::policy::diagnostics::{Diagnostics, Severity};
use tidegate::policy::{LimitBuilder, Options};
use tidegate::simulate::TestFile;

fn options(profile: Option<&str>) -> Options {
    let env = BTreeMap::from([("SET".to_owned(), "5".to_owned())]);
    Options { profile: profile.map(str::to_owned), env }
}

/// All that is said of a policy.
fn diagnostics(text: &str, profile: Option<&str>) -> Diagnostics {
    match Policy::check("policy.yaml", text, &options(profile)) {
        Ok(checked) => checked.warnings,
        Err(found) => found,
    }
}

/// A policy with what is said of it.
fn policy(text: &str) -> String {
    let text = text.trim_start();
    annotated(text, &diagnostics(text, None))
}

/// A policy's further lines with what is said of them.
fn lines(text: &str) -> String {
    policy(&format!("tidegate: 1\nname: n\n{}", text.trim_start()))
}

/// A test file with what is said of it.
fn test_file(text: &str) -> String {
    let text = text.trim_start();
    annotated(text, &TestFile::parse("policy.test.yaml", text).unwrap_err())
}

/// A document, each of its lines followed by what is said of it.
fn annotated(text: &str, found: &Diagnostics) -> String {
    assert!(found.iter().len() > 0, "nothing was said of\n{text}");
    assert!(found.iter().is_sorted_by_key(|one| one.at), "out of order:\n{found}");
    let mut result = String::new();
    for (index, line) in text.lines().enumerate() {
        writeln!(result, "{:>3} | {line}", index + 1).unwrap();
        let here = |at: u32| usize::try_from(at).unwrap() == index + 1;
        for one in found.iter().filter(|one| here(one.at.line)) {
            let indent = " ".repeat(usize::try_from(one.at.column).unwrap() - 1);
            writeln!(result, "    | {indent}^ {}: {}", one.severity.word(), one.message).unwrap();
            if let Some(help) = &one.help {
                writeln!(result, "    | {indent}  help: {help}").unwrap();
            }
        }
    }
    for one in
        found.iter().filter(|one| usize::try_from(one.at.line).unwrap() > text.lines().count())
    {
        writeln!(result, "end | {}: {}", one.severity.word(), one.message).unwrap();
    }
    result
}

/// Only what is said, where a document is too long to show.
fn said(text: &str) -> String {
    diagnostics(text, None).to_string()
}

/// A document for each line of a list, with what is said of it.
fn each(list: &str) -> String {
    list.trim().lines().map(|line| policy(line.trim()) + "\n").collect()
}

mod document {
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
}

mod overlays {
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
}

mod top {
    use super::*;

    #[test]
    fn what_every_policy_needs() {
        assert_snapshot!(each(
            "
            {}
            []
            text
            { tidegate: 2, name: two words }
            { tidegate: , name: }
            { tidegate: [1], name: {} }
            "
        ));
    }

    #[test]
    fn keys_that_do_not_exist() {
        assert_snapshot!(lines(
            "
limit: {}
banana: 1
timezone: Europe/Berlinn
enabled: yes
version: ''
identity: { proxies: [] }
block: { ip: 192.0.2.1 }
defaults: { shadows: true, missing: skip }
response: { header: x, blocked: { code: 403 } }
"
        ));
        assert_snapshot!(lines("timezone: Middle-earth\nenabled: {}\nversion: [1]\n"));
    }

    #[test]
    fn sections_of_the_wrong_kind() {
        assert_snapshot!(lines(
            "
tiers: { free: 1 }
identity: [user]
operations: login
exempt: [login, []]
block: 192.0.2.1
limits: []
defaults: shadow
response:
"
        ));
    }

    #[test]
    fn tiers() {
        assert_snapshot!(lines(
            "
tiers: [free, two words, '']
identity: { default_tier: fre, anonymous_tier: no body }
exempt: { tier: [premium, free] }
limits:
  a: { by: ip, total: { free: 5, preemium: 6 } }
  b: { by: ip, total: { free: 5 } }
  c: { by: user, total: { free: 5 } }
"
        ));
        assert_snapshot!(lines("tiers: []\nidentity: { default_tier: [a], anonymous_tier: }\n"));
        let many: Vec<String> = (0..101).map(|index| format!("t{index}")).collect();
        let many = many.join(", ");
        let found = diagnostics(&format!("{{ tidegate: 1, name: n, tiers: [{many}] }}"), None);
        assert_snapshot!(&found.iter().next().unwrap().message);
    }

    #[test]
    fn names_of_tiers_are_checked_wherever_a_tier_is_named() {
        assert_snapshot!(lines(
            "
identity: { default_tier: free of charge }
exempt: { tier: [in ternal] }
limits:
  a: { by: ip, total: { free of charge: 5, default: 6 } }
"
        ));
    }
}

mod identity {
    use super::*;

    #[test]
    fn addresses_and_headers() {
        assert_snapshot!(lines(
            "
identity:
  trusted_proxies: [localhost, 10.0.0.0/33, '::1/129', 10.0.0.0/x, '::ffff:10.0.0.0/8', [], ~]
  forwarded: x-forwarded-fro
  ipv6_prefix: 129
  user: { header: X User }
  tier: {}
  internal: { header: X-Internal }
"
        ));
        assert_snapshot!(lines(
            "
identity:
  trusted_proxies: []
  forwarded: { header: via }
  ipv6_prefix: /64
  user: X-User
  tier: { header: , cookie: tier }
  internal: { header: X-Internal, secret_env: UNSET }
"
        ));
        assert_snapshot!(lines("identity: { internal: { header: ':', secret_env: SET } }"));
        assert_snapshot!(lines("identity: { internal: { header: A, secret_env: } }"));
        assert_snapshot!(lines("identity: { internal: internal }"));
    }

    #[test]
    fn attributes() {
        assert_snapshot!(lines(
            "
identity:
  attributes:
    two words: given
    ip: given
    header.x: given
    taken: taken
    nothing:
    list: [given]
    none: {}
    two: { header: A, query: a }
    space: { header: A B }
    empty: { query: '' }
    pointer: { body: email }
    nowhere: { body: }
    flags: { header: A, fold: yes, trusted: 1 }
    trusted: { query: a, trusted: true }
    unknown: { heder: A }
"
        ));
        assert_snapshot!(lines("identity: { attributes: [email] }"));
        let many: String = (0..101).map(|index| format!("a{index}: given, ")).collect();
        let many = format!("{{ tidegate: 1, name: n, identity: {{ attributes: {{ {many} }} }} }}");
        assert_snapshot!(said(&many));
    }
}

mod operations {
    use super::*;

    #[test]
    fn patterns() {
        assert_snapshot!(lines(
            "
operations:
  two words: GET /
  default: GET /
  nothing:
  none: []
  lower: get /
  twice: GET|GET /
  relative: GET a
  empty: GET /a//b
  star: GET /a*
  stars: GET /**/**
  braces: 'GET /a{b}'
  capture: 'GET /{a b}'
  captures: 'GET /{a}/{a}'
  query: GET /a?b=c
  parameter: GET /a;b
  space: GET /a b
  dots: GET /a/../b
  slash: GET /a%2Fb
  percent: GET /a%zz
  nul: GET /a%00
  bytes: GET /%ff
  reserved: 'GET /{user}'
  list: [GET /ok, {}, ~]
"
        ));
    }

    #[test]
    fn maps() {
        assert_snapshot!(lines(
            "
operations:
  unknown: { matches: GET / }
  header: { header: { X-A: a } }
  headers: { match: GET /, header: { 'X A': a, X-B: , X-C: [c] } }
  list: { match: GET /, header: [X-A] }
  empty: { match: [] }
"
        ));
        let segments = "/a".repeat(33);
        let methods: Vec<String> = (0..33).map(|index| format!("M{index}")).collect();
        let long = format!(
            "{{ tidegate: 1, name: n, operations: {{ a: {segments}, b: {} / }} }}",
            methods.join("|")
        );
        assert_snapshot!(said(&long));
        let many: String = (0..10_001).map(|index| format!("o{index}: {{}}, ")).collect();
        assert_snapshot!(said(&format!("{{ tidegate: 1, name: n, operations: {{ {many} }} }}")));
    }
}

mod conditions {
    use super::*;

    #[test]
    fn operations_and_attributes() {
        assert_snapshot!(lines(
            "
identity: { attributes: { level: given } }
operations: { login: POST /login, room: 'GET /rooms/{room}' }
limits:
  a: { when: logn, by: ip, total: 5 }
  b: { when: [login, banana, ~], by: ip, total: 5 }
  c: { when: [], by: ip, total: 5 }
  d: { when: { operations: login }, by: ip, total: 5 }
  e: { when: { operation: logn, attributes: { levl: 1, level: [] } }, by: ip, total: 5 }
  f: { when: login, by: room, total: 5 }
  g: { when: { operation: room, attributes: { room: 1 } }, by: [room, rom], total: 5 }
"
        ));
    }

    #[test]
    fn everything_else() {
        assert_snapshot!(lines(
            "
exempt:
  - { tier: [], method: [get, 'GET|POST', ''], path: [health, /a?b], ip: localhost }
  - { country: [], authenticated: maybe, internal: 1, attributes: [a], not: [a] }
  - { not: { methods: GET } }
  - login
"
        ));
    }
}

mod limits {
    use super::*;

    #[test]
    fn algorithms_and_subjects() {
        assert_snapshot!(lines(
            "
limits:
  two words: { by: ip, total: 5 }
  nothing:
  empty: {}
  two: { by: ip, total: 5, quota: 5/day }
  key: { by: ip, sliding_windw: 5/min }
  by: { by: [], total: 5 }
  part: { by: [usr, 'header.', header.a b, ~], total: 5 }
"
        ));
        let many: String = (0..1_001).map(|index| format!("l{index}: {{}}, ")).collect();
        assert_snapshot!(said(&format!("{{ tidegate: 1, name: n, limits: {{ {many} }} }}")));
    }

    #[test]
    fn specs() {
        assert_snapshot!(lines(
            "
limits:
  rate: { by: ip, token_bucket: 20 }
  burst: { by: ip, token_bucket: 20/min burst }
  bursts: { by: ip, token_bucket: 20/min burst many }
  times: { by: ip, token_bucket: 20/min burst 0x }
  week: { by: ip, token_bucket: 20/week }
  spaces: { by: ip, token_bucket: 20 / min }
  window: { by: ip, sliding_window: 5/min burst 2 }
  exact: { by: ip, sliding_window: 100k/min }
  unit: { by: ip, sliding_window: 5/minute }
  zero: { by: ip, sliding_counter: 0/min }
  period: { by: ip, sliding_counter: 5/0s }
  long: { by: ip, sliding_counter: 5/1001day }
  month: { by: ip, fixed_window: 5/month }
  number: { by: ip, fixed_window: 5 }
  days: { by: ip, quota: 5/2day }
  hours: { by: ip, quota: 5/h }
  half: { by: ip, quota: 0.5/day }
  plain: { by: ip, quota: 5 }
  places: { by: ip, concurrency: 100_000 }
  per: { by: ip, concurrency: 10/s }
  negative: { by: ip, total: -1 }
  large: { by: ip, total: 5000m }
  many: { ceiling: many, value: ip }
  nothing: { by: ip, total: }
  list: { by: ip, total: [5] }
  tiers: { by: ip, total: { free: 5/min, default: } }
"
        ));
    }

    #[test]
    fn keys_that_need_another() {
        assert_snapshot!(lines(
            "
identity: { attributes: { level: given } }
limits:
  none: { ceiling: 5 }
  value: { by: ip, total: 5, value: level }
  cost: { ceiling: 5, value: levl, cost: 2 }
  lease: { by: ip, total: 5, lease: 5s }
  counts: { by: ip, concurrency: 5, counts: failures }
  key: { ceiling: 5, value: level, key: a, counts: all }
  tier-by: { by: ip, total: 5, tier_by: level }
  default: { by: ip, total: { 1: 5 }, tier_by: level }
  unknown: { by: ip, total: { default: 5 }, tier_by: levl }
  nothing: { by: ip, total: { default: 5 }, tier_by: }
"
        ));
    }

    #[test]
    fn words_and_numbers() {
        assert_snapshot!(lines(
            "
limits:
  a:
    by: ip
    concurrency: 5
    lease: 0s
    cost: -1
    missing: ignore
    exceed: rejected
    shadow: 'on'
    on_store_failure: open
    consistency: eventual
    message:
    status: 200
    body: { limit: {limit}, other: '{limits}', list: [~] }
    describe: []
    publish: maybe
  b: { by: ip, total: 5, counts: errors, cost: 0.1234567 }
  c: { by: ip, concurrency: 5, lease: 5 seconds, cost: price }
  d: { by: ip, concurrency: 5, lease: , cost: [] }
"
        ));
    }

    #[test]
    fn tier_maps_cover_every_tier_that_can_reach_the_limit() {
        assert_snapshot!(lines(
            "
tiers: [free, premium]
identity: { default_tier: free }
limits:
  a: { by: ip, total: { free: 5 } }
  b: { by: user, total: { free: 5 } }
  c: { by: user, when: { tier: free }, total: { premium: 5 } }
"
        ));
    }

    #[test]
    fn key_templates() {
        assert_snapshot!(lines(
            "
limits:
  open: { by: user, total: 5, key: 'rl:{user' }
  part: { by: user, total: 5, key: 'rl:{user}:{ip}' }
  none: { by: [user, ip], total: 5, key: 'rl:{user}' }
  what: { by: user, total: 5, key: 'rl:{usr}' }
  empty: { by: user, total: 5, key: '' }
  first: { by: user, total: 5, key: 'rl:{user}' }
  second: { by: user, total: 5, key: 'rl:{user}' }
"
        ));
    }

    #[test]
    fn so_many_limits_can_meet_in_one_request() {
        let many: String =
            (0..17).map(|index| format!("l{index}: {{ by: ip, total: 5 }}, ")).collect();
        assert_snapshot!(said(&format!("{{ tidegate: 1, name: n, limits: {{ {many} }} }}")));
    }
}

mod response {
    use super::*;

    #[test]
    fn everything() {
        assert_snapshot!(lines(
            "
response:
  headers: none
  message: ''
  body: { limit: {limit}, wait: '{retryafter}', list: ['{Text}', '{text}'] }
  content_type: \"text/plain\\r\\n\"
  add: { 'X A': a, X-B: , X-C: \"c\\0\" }
  jitter: 10
  blocked: { status: 99, body: }
"
        ));
        assert_snapshot!(lines(
            "response: { jitter: 101%, add: [X-A], blocked: 403, headers: [x] }"
        ));
        assert_snapshot!(lines(
            "defaults: { exceed: deny, shadow: 1, consistency: [], on_store_failure: }"
        ));
    }
}

mod warnings {
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
}

mod test_files {
    use super::*;

    #[test]
    fn what_every_test_file_needs() {
        assert_snapshot!(test_file("{}"));
        assert_snapshot!(test_file("[]"));
        assert_snapshot!(test_file("{ polcy: p.yaml, env: [], test: [] }"));
        assert_snapshot!(test_file(
            "
policy:
profile: []
env: { A: [a], B: , C: c }
start: yesterday
tests: {}
policies: p.yaml
"
        ));
        assert_snapshot!(test_file("{ policy: p.yaml, start: 1969-01-01T00:00:00Z, tests: [] }"));
    }

    #[test]
    fn tests_and_steps() {
        assert_snapshot!(test_file(
            "
policy: p.yaml
tests:
  - five
  - { name: '', steps: [{}] }
  - { steps: [{}] }
  - { name: none }
  - { name: empty, steps: [] }
  - { name: unknown, step: [] }
  - { name: twice, steps: [{ at: 0s }] }
  - { name: twice, steps: [{ at: 0s }] }
  - name: steps
    steps:
      - next
      - { at: soon, times: 0, spread: 0s }
      - { at: 10s, times: 3, spread: 5s }
      - { at: 15s }
      - { at: , times: many, spread: 5 }
      - { request: {}, store: down }
      - { store: sideways }
      - { store: down, status: 200, as: a, expect: allowed }
      - { status: 99, as: }
      - { settle: {} }
      - { settle: { cost: -1 } }
      - { settle: { cost: 1, status: 200 } }
      - { settle: { status: lost, lease: [] } }
      - { settle: 5 }
      - { release: a }
      - { release: { leases: a } }
      - { waits: 5s }
"
        ));
    }

    #[test]
    fn requests_and_expectations() {
        assert_snapshot!(test_file(
            "
policy: p.yaml
tests:
  - name: requests
    request: { methd: GET }
    steps:
      - request: { method: , path: [], ip: 192.0.2, peer: '{n}', internal: yes, cost: -1 }
      - request: { attributes: [a], headers: { A: { b: c }, B: [[]] }, reserve: 1 }
      - request: 5
  - name: expectations
    steps:
      - { expect: alowed }
      - { expect: [] }
      - { expect: { outcome: denied, limit: [], status: 42, retry_after: 5, remaining: some } }
      - { expect: { reset: later, headers: [], operation: , tier: {}, degraded: 1, outcom: x } }
      - { expect: { retry_after: 0.0000001s, remaining: -1, warnings: [{}] } }
      - { expect: { headers: { A: [a], B: , C: c } } }
"
        ));
    }
}

mod not_yet {
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
            "identity: { user: { jwt: sub } }",
            "identity: { tier: { jwt: plan } }",
            "identity: { attributes: { a: { jwt: a } } }",
            "block: { countries: [KP] }",
            "events: {}",
            "penalties: {}",
            "ratios: {}",
            "factors: {}",
            "challenge: {}",
            "notify: {}",
            "alerts: {}",
            "notice: 7d",
            "defaults: { exceed: wait 2s }",
            "defaults: { exceed: challenge }",
            "defaults: { consistency: leased }",
            "limits: { a: { by: ip, total: 5, exceed: wait 2s } }",
            "limits: { a: { by: ip, total: 5, exceed: wait } }",
            "limits: { a: { by: ip, total: 5, exceed: challenge } }",
            "limits: { a: { by: ip, total: 5, consistency: leased } }",
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
            "acquire: {}",
            "report: {}",
            "load: 80%",
            "source: {}",
            "override: {}",
            "ban: {}",
            "expect: { delay: 2s }",
            "expect: { waited: 2s }",
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
}

#[test]
fn builders_name_what_is_said_twice() {
    let twice = LimitBuilder::total("a", 5).by("ip");
    let built = Policy::builder("n").limit(twice.clone()).limit(twice).build();
    assert_snapshot!(built.unwrap_err().to_string());
}
