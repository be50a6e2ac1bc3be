//! The `limits:` section.

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
  leased: { by: ip, total: 5, consistency: leased }
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
fn waits_have_a_length_and_a_chance() {
    assert_snapshot!(lines(
        "
defaults: { exceed: wait a while }
limits:
  a: { by: ip, quota: 5/day, exceed: wait }
  b: { by: ip, quota: 5/day, exceed: wait 0s }
  c: { by: ip, quota: 5/day, exceed: wait 2h }
  d: { by: ip, quota: 5/day, exceed: waits }
  e: { by: ip, total: 5, exceed: wait 2s }
  f: { ceiling: 5, value: ip, exceed: wait 2s }
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
    let many: String = (0..17).map(|index| format!("l{index}: {{ by: ip, total: 5 }}, ")).collect();
    assert_snapshot!(said(&format!("{{ tidegate: 1, name: n, limits: {{ {many} }} }}")));
}

#[test]
fn words_of_other_languages_get_advice() {
    assert_snapshot!(lines(
        "
limits:
  email: { by: email, total: 5 }
  header: { by: [X-Api-Key, Authorization], total: 5 }
  joined: { by: ip+email, total: 5 }
  burst: { by: ip, token_bucket: 20/min, burst: 5 }
  no-bucket: { by: ip, sliding_window: 20/min, burst: 5 }
  apart: { by: ip, limit: 5, window: 1min }
  rate: { by: ip, rate: 5/min, burst: 9 }
  unclear: { by: ip, max: 5, window: 60 }
  bucket: { by: ip, token_bucket: { rate: 20/min, burst: 5 } }
  window: { by: ip, sliding_window: { limit: 20, window: 5min } }
  half: { by: ip, sliding_window: { limit: 20 } }
  path: { by: ip, path: /login, total: 5 }
  minutes: { by: ip, concurrency: 5, lease: 15m }
  period: { by: ip, sliding_window: 5/15m }
  wait: { by: ip, quota: 5/day, exceed: wait 15 minutes }
  nobody: { when: { authenticated: false }, by: user, sliding_window: { anonymous: 5/min } }
"
    ));
}

#[test]
fn requests_without_a_user_may_share_a_limit_by_user() {
    let shared = "{ tidegate: 1, name: n, limits: { a: { when: { authenticated: false }, by: user, missing: share, total: 5 } } }";
    assert_eq!(diagnostics(shared, None).to_string(), "");
}
