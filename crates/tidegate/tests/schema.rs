//! The JSON Schema and the compiler agree: what one accepts the other does, and what is broken in a
//! way that needs no knowledge of the rest of the policy is refused by both.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;

use jsonschema::Validator;
use tidegate::Policy;
use tidegate::engine::policy::document::Node;
use tidegate::engine::policy::{Options, json_schema};

/// Valid policies, each with its file.
const CORPUS: [(&str, &str); 11] = [
    ("hostel.yaml", include_str!("policies/hostel.yaml")),
    ("smallest.yaml", include_str!("policies/smallest.yaml")),
    ("every_key.yaml", include_str!("policies/every_key.yaml")),
    ("source_text.yaml", include_str!("policies/source_text.yaml")),
    ("substitutions.yaml", include_str!("policies/substitutions.yaml")),
    ("profiles.yaml", include_str!("policies/profiles.yaml")),
    ("ad-marketplace.yaml", include_str!("../../../examples/policies/ad-marketplace.yaml")),
    ("exchange.yaml", include_str!("../../../examples/policies/exchange.yaml")),
    ("hostel.yaml", include_str!("../../../examples/policies/hostel.yaml")),
    ("learning-platform.yaml", include_str!("../../../examples/policies/learning-platform.yaml")),
    ("user-service.yaml", include_str!("../../../examples/policies/user-service.yaml")),
];

/// What stands before each of the broken pieces.
const HEAD: &str = "tidegate: 1\nname: broken\n";

/// Broken at the top.
const BROKEN_DOCUMENTS: [&str; 8] = [
    "[]",
    "tidegate: 1",
    "name: x",
    "{ tidegate: 2, name: x }",
    "{ tidegate: 1, name: }",
    "{ tidegate: 1, name: two words }",
    "{ tidegate: 1, name: [x] }",
    "{ tidegate: 1, name: x, limitz: {} }",
];

/// Broken sections.
const BROKEN_SECTIONS: [&str; 144] = [
    "paths: true",
    "paths: { ignore_case: yes }",
    "paths: { ignorecase: true }",
    "paths: { method_override: [DELETE] }",
    "response: { body: { r: '{retryAfter}' } }",
    "response: { add: { Retry-After: '5' } }",
    "tiers: [a, a]",
    "identity: { attributes: { 2fa: given } }",
    "identity: { attributes: { network: given } }",
    "exempt: [{}]",
    "exempt: [{ country: Germany }]",
    "limits: { a: { when: {}, by: ip, total: 5 } }",
    "limits: { a: { by: [ip, ip], total: 5 } }",
    "limits: { a: { when: { not: {} }, by: ip, total: 5 } }",
    "version: ''",
    "timezone: 5",
    "enabled: yes",
    "enabled: 1",
    "tiers: []",
    "tiers: [a b]",
    "tiers: { free: true }",
    "identity: ~",
    "identity: { proxies: 10.0.0.0/8 }",
    "identity: { trusted_proxies: localhost }",
    "identity: { trusted_proxies: [] }",
    "identity: { forwarded: x-forwarded-by }",
    "identity: { ipv6_prefix: 0 }",
    "identity: { ipv6_prefix: '129' }",
    "identity: { user: X-User }",
    "identity: { user: {} }",
    "identity: { user: { header: 'X User' } }",
    "identity: { user: { jwt: sub, header: X-User } }",
    "identity: { tier: { jwt: } }",
    "identity: { default_tier: ~ }",
    "identity: { anonymous_tier: a b }",
    "identity: { internal: {} }",
    "identity: { internal: { header: X-Internal } }",
    "identity: { internal: { cidrs: 10.0.0.0/8, header: X-A, secret_env: HOME } }",
    "identity: { attributes: { email: taken } }",
    "identity: { attributes: { email: {} } }",
    "identity: { attributes: { email: { header: A, query: b } } }",
    "identity: { attributes: { email: { body: email } } }",
    "identity: { attributes: { email: { query: e, trusted: true } } }",
    "identity: { attributes: { email: { jwt: email, query: email } } }",
    "identity: { attributes: { email: { jwt: [email] } } }",
    "identity: { attributes: { email: { jwt: email, trusted: true } } }",
    "identity: { attributes: { email: { cookie: a b } } }",
    "identity: { attributes: { email: { cookie: a, header: B } } }",
    "identity: { attributes: { email: { body: /e, type: xml } } }",
    "identity: { attributes: { email: { query: e, type: json } } }",
    "identity: { attributes: { email: { header: A, count: true } } }",
    "identity: { attributes: { email: { body: /e, as: text } } }",
    "identity: { attributes: { email: { body: /e, as: number, fold: true } } }",
    "identity: { attributes: { email: { body: /e, count: true, as: number } } }",
    "identity: { attributes: { email: { body: /e, count: true, type: form } } }",
    "identity: { attributes: { email: { body: /e/f, type: form } } }",
    "identity: { attributes: { ip: given } }",
    "identity: { attributes: { header.x: given } }",
    "operations: [login]",
    "operations: { default: GET / }",
    "operations: { login: }",
    "operations: { login: [] }",
    "operations: { login: get /login }",
    "operations: { login: GET login }",
    "operations: { login: GET /a//b }",
    "operations: { login: GET /a* }",
    "operations: { login: 'GET /{a b}' }",
    "operations: { login: GET /a?b }",
    "operations: { login: { header: { X-A: a } } }",
    "operations: { login: { match: /a, header: { 'X A': a } } }",
    "operations: { '${LOGIN:-login}': GET /login }",
    "exempt: login",
    "exempt: [{ path: health }]",
    "exempt: { method: get }",
    "exempt: { method: [] }",
    "exempt: { authenticated: maybe }",
    "exempt: { attributes: { level: [] } }",
    "exempt: { not: { everything: true } }",
    "block: { countries: [Korea] }",
    "alerts: {}",
    "events: [a]",
    "events: { limited: {} }",
    "events: { a b: {} }",
    "events: { a: ~ }",
    "events: { a: { status: 600 } }",
    "events: { a: { status: 4x } }",
    "events: { a: { status: [] } }",
    "events: { a: { outcome: allowed } }",
    "events: { a: { outcome: limited, status: 401 } }",
    "events: { a: { limit: b } }",
    "events: { a: { when: default } }",
    "penalties: { a: {} }",
    "penalties: { a: { event: limited, by: ip, within: 1h } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: {} } }",
    "penalties: { a: { event: limited, by: ip, within: 0s, ladder: { 1: {} } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 0: {} } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { many: {} } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { bann: 1h } } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { ban: 1 } } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { ban: {} } } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { ban: { for: 1h, by: country } } } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { ban: { for: 1h, ipv4_prefix: 24 } } } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { ban: { for: 1h, by: network, ipv4_prefix: 33 } } } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { warn: \"a\\nb\" } } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { flag: a b } } } }",
    "penalties: { a: { event: limited, by: ip, within: 1h, ladder: { 1: { challenge: please } } } }",
    "penalties: { a: { event: [limited, limited], by: ip, within: 1h, ladder: { 1: {} } } }",
    "ratios: { a: { of: limited, to: banned, by: ip } }",
    "ratios: { a: { of: [limited], to: banned, by: ip, within: 1h } }",
    "ratios: { a: { of: limited, to: banned, by: ip, within: 1h, above: 10% } }",
    "ratios: { a: { of: limited, to: banned, by: ip, within: 1h, above: 10, then: {} } }",
    "ratios: { a: { of: limited, to: banned, by: ip, within: 1h, above: 10%, then: { allow: true } } }",
    "ratios: { a: { of: limited, to: banned, by: ip, within: 1h, at_least: 0 } }",
    "factors: { a: {} }",
    "factors: { a: { times: 0 } }",
    "factors: { a: { times: 1001 } }",
    "factors: { a: { times: '0.1234567' } }",
    "factors: { a: { times: 2x } }",
    "factors: { a: { load_above: 80% } }",
    "factors: { a: { load_above: 80, times: 2 } }",
    "factors: { a: { by: user, times: 2 } }",
    "factors: { a: { by: user, good: [share], step: 0.1 every 1h, range: 0.5..2 } }",
    "factors: { a: { by: user, good: [share < 5%], step: 0.1, range: 0.5..2 } }",
    "factors: { a: { by: user, good: [share < 5%], step: 0.1 every 1h, range: 2 } }",
    "challenge: {}",
    "challenge: { kind: riddle }",
    "challenge: { kind: proof_of_work, difficulty: 29 }",
    "challenge: { kind: captcha, difficulty: 18 }",
    "challenge: { kind: proof_of_work, pass: 0s }",
    "notify: { a: {} }",
    "notify: { a: { webhook: ftp://example.org } }",
    "notify: { a: { webhook: 'https:///x' } }",
    "block: { ips: [10.0.0.0/8/8] }",
    "defaults: { exceed: challeng }",
    "defaults: { message: no }",
    "response: { headers: all }",
    "response: { body: { limit: } }",
    "response: { body: '{limits}' }",
    "response: { jitter: 10 }",
    "response: { jitter: 100.1% }",
    "response: { add: { X-A: \"a\\nb\" } }",
    "response: { blocked: { status: 200 } }",
    "response: { banned: { status: 200 } }",
    "response: { challenged: { message: no } }",
];

/// Broken limits, each the map of one.
const BROKEN_LIMITS: [&str; 56] = [
    "~",
    "{}",
    "{ by: ip }",
    "{ quota: 5/day }",
    "{ by: [], quota: 5/day }",
    "{ by: header., quota: 5/day }",
    "{ by: { ip: true }, quota: 5/day }",
    "{ by: ip, quota: 5/day, total: 5 }",
    "{ by: ip, quotas: 5/day }",
    "{ by: ip, count: { max: 5 } }",
    "{ by: ip, quota: 5/day, scaled: twice }",
    "{ by: ip, token_bucket: 20 }",
    "{ by: ip, token_bucket: 20/min burst }",
    "{ by: ip, token_bucket: 20/min  burst 5 }",
    "{ by: ip, token_bucket: 0/min }",
    "{ by: ip, token_bucket: 20/fortnight }",
    "{ by: ip, sliding_window: 5/min burst 2 }",
    "{ by: ip, sliding_window: 5/0s }",
    "{ by: ip, sliding_window: [5/min] }",
    "{ by: ip, sliding_window: {} }",
    "{ by: ip, sliding_window: { default: 5 } }",
    "{ by: ip, sliding_counter: 5/2d }",
    "{ by: ip, fixed_window: 5/week }",
    "{ by: ip, quota: 5/h }",
    "{ by: ip, quota: 5/2day }",
    "{ by: ip, concurrency: 0 }",
    "{ by: ip, concurrency: 65537 }",
    "{ by: ip, concurrency: 1.5 }",
    "{ by: ip, total: -1 }",
    "{ by: ip, total: 1__0 }",
    "{ by: ip, total: 5000000000 }",
    "{ ceiling: many, value: ip }",
    "{ ceiling: 5 }",
    "{ ceiling: 5, value: ip, cost: 2 }",
    "{ by: ip, total: 5, value: ip }",
    "{ by: ip, total: 5, lease: 5s }",
    "{ by: ip, concurrency: 5, lease: 0s }",
    "{ by: ip, concurrency: 5, lease: 5 }",
    "{ by: ip, concurrency: 5, counts: failures }",
    "{ by: ip, total: 5, tier_by: ip }",
    "{ by: ip, total: 5, cost: -1 }",
    "{ by: ip, total: 5, cost: '0.1234567' }",
    "{ by: ip, total: 5, missing: maybe }",
    "{ by: ip, total: 5, exceed: wait 2s }",
    "{ ceiling: 5, value: ip, exceed: wait 2s }",
    "{ by: ip, quota: 5/day, exceed: wait }",
    "{ by: ip, quota: 5/day, exceed: wait 0s }",
    "{ by: ip, quota: 5/day, exceed: wait 2h }",
    "{ by: ip, quota: 5/day, exceed: wait  2s }",
    "{ by: ip, quota: 5/day, exceed: wait 2 }",
    "{ by: ip, total: 5, consistency: leased }",
    "{ by: ip, total: 5, on_store_failure: panic }",
    "{ by: ip, total: 5, shadow: ~ }",
    "{ by: ip, total: 5, status: 200 }",
    "{ by: ip, total: 5, body: [~] }",
    "{ when: [], by: ip, total: 5 }",
];

/// Broken profiles, each the map of one.
const BROKEN_PROFILES: [&str; 8] = [
    "~",
    "5",
    "{ profiles: {} }",
    "{ limitz: {} }",
    "{ limits: { a: { sliding_window: 5 } } }",
    "{ limits: { a: { sliding_windw: null, by: ip, total: 5, x: 1 } } }",
    "{ exempt: [{ path: null }] }",
    "{ response: { headers: all } }",
];

fn validator() -> Validator {
    let schema = serde_json::from_str(json_schema()).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

fn options(profile: Option<&str>) -> Options {
    let env = BTreeMap::from([("INTERNAL_SECRET".to_owned(), "secret".to_owned())]);
    Options { profile: profile.map(str::to_owned), env }
}

/// What the schema finds wrong with a document.
fn schema_errors(validator: &Validator, text: &str) -> Vec<String> {
    let json = Node::parse("policy.yaml", text).unwrap().to_json();
    let json = serde_json::from_str(&json).unwrap();
    let error =
        |error: jsonschema::ValidationError<'_>| format!("{}: {error}", error.instance_path());
    validator.iter_errors(&json).map(error).collect()
}

fn compiles(text: &str, profile: Option<&str>) -> bool {
    Policy::check("policy.yaml", text, &options(profile)).is_ok()
}

fn assert_refused_by_both(broken: &[String], profile: Option<&str>) {
    let validator = validator();
    let accepts = |text: &&String| schema_errors(&validator, text).is_empty();
    let by_schema: Vec<&String> = broken.iter().filter(accepts).collect();
    let by_compiler: Vec<&String> = broken.iter().filter(|text| compiles(text, profile)).collect();
    assert!(by_schema.is_empty(), "the schema accepts {by_schema:#?}");
    assert!(by_compiler.is_empty(), "the compiler accepts {by_compiler:#?}");
}

#[test]
fn the_schema_is_itself_a_valid_schema() {
    let schema = serde_json::from_str(json_schema()).unwrap();
    jsonschema::draft202012::meta::validate(&schema).unwrap();
}

#[test]
fn every_valid_policy_compiles_under_each_profile_and_fits_the_schema() {
    let validator = validator();
    for (file, text) in CORPUS {
        let names = Policy::profile_names(text);
        let profiles = names.iter().map(|name| Some(name.as_str()));
        for profile in profiles.chain([None]) {
            let checked = Policy::check(file, text, &options(profile));
            assert!(checked.is_ok(), "{profile:?}: {}", checked.unwrap_err());
        }
        let errors = schema_errors(&validator, text);
        assert!(errors.is_empty(), "{file}: {errors:#?}");
    }
}

#[test]
fn broken_documents_are_refused_by_both() {
    assert_refused_by_both(&BROKEN_DOCUMENTS.map(str::to_owned), None);
}

#[test]
fn broken_sections_are_refused_by_both() {
    assert_refused_by_both(&BROKEN_SECTIONS.map(|section| format!("{HEAD}{section}")), None);
}

#[test]
fn broken_limits_are_refused_by_both() {
    let limits = BROKEN_LIMITS.map(|limit| format!("{HEAD}limits:\n  a: {limit}"));
    assert_refused_by_both(&limits, None);
}

#[test]
fn broken_profiles_are_refused_by_both() {
    let profiles = BROKEN_PROFILES.map(|profile| format!("{HEAD}profiles:\n  p: {profile}"));
    assert_refused_by_both(&profiles, Some("p"));
    assert_refused_by_both(&[format!("{HEAD}profiles: [p]")], None);
}
