//! The memory of a limiter is bounded, whatever requests come.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::Amount;
use tidegate::clock::FakeClock;
use tidegate::engine::store::Memory;
use tidegate::{Jitter, Limiter, Policy, Request, Response};

const MAX_KEYS: usize = 10_000;

struct Gate {
    limiter: Limiter<Arc<Memory>>,
    memory: Arc<Memory>,
    clock: FakeClock,
}

impl Gate {
    fn new(limits: &str, max_keys: usize) -> Self {
        let text = format!("tidegate: 1\nname: gate\nlimits:\n{limits}");
        let policy = Policy::parse("gate.yaml", &text).unwrap();
        let (memory, clock) =
            (Arc::new(Memory::with_max_keys(max_keys)), FakeClock::at_unix_seconds(1_767_603_600));
        let builder = Limiter::builder().policy(policy).clock(clock.clone());
        let limiter = builder.store(Arc::clone(&memory)).build().unwrap();
        Self { limiter, memory, clock }
    }

    fn passes(&self, path: &str, user: &str) -> bool {
        self.limiter.check(&Request::new("GET", path).user(user)).unwrap().is_allowed()
    }
}

#[test]
fn a_limiter_is_shared_between_threads_and_cheap_to_clone() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    shared::<Limiter>();
    shared::<Limiter<Arc<Memory>>>();
    shared::<Limiter<tidegate_testkit::scripted::ScriptedStore>>();
}

#[test]
fn a_flood_of_keys_is_bounded_and_evicts_no_key_of_another_limit() {
    let limits = "
  login: { when: { path: /login }, by: user, sliding_window: 2/h }
  loose: { when: { path: /things }, by: user, sliding_window: 100/h }
";
    let gate = Gate::new(limits, MAX_KEYS);
    assert!(gate.passes("/login", "eve") && gate.passes("/login", "eve"));
    assert!(!gate.passes("/login", "eve"));
    for hit in 0..200_000 {
        assert!(gate.passes("/things", &format!("made-up-{hit}")));
        if hit % 10_000 == 0 {
            assert!(gate.memory.keys() <= MAX_KEYS, "{} keys", gate.memory.keys());
            assert!(!gate.passes("/login", "eve"), "after {hit} keys");
        }
    }
    assert!(gate.memory.keys() <= MAX_KEYS);
    assert!(gate.memory.evicted_keys() >= 200_000 - 10_000, "live keys had to go, and are counted");
    assert!(!gate.passes("/login", "eve"));
}

#[test]
fn a_flood_of_refusals_keeps_no_keys_at_all() {
    let limits = "
  few:  { by: global, sliding_window: 1/h }
  many: { by: user, sliding_window: 1/h }
";
    let gate = Gate::new(limits, MAX_KEYS);
    for hit in 0..5_000 {
        gate.passes("/", &format!("made-up-{hit}"));
    }
    assert_eq!(gate.memory.keys(), 2);
}

#[test]
fn states_empty_of_meaning_make_room_for_free() {
    for spec in ["sliding_window: 5/s", "token_bucket: 1/s", "fixed_window: 5/s"] {
        let gate = Gate::new(&format!("  a: {{ by: user, {spec} }}"), MAX_KEYS);
        for hit in 0..40_000_u64 {
            assert!(gate.passes("/", &format!("once-{hit}")));
            gate.clock.advance(Duration::from_micros(250));
        }
        assert_eq!(gate.memory.evicted_keys(), 0, "{spec}");
        assert!(gate.memory.keys() < 9_000, "{spec}: {} keys", gate.memory.keys());
    }
}

#[test]
fn where_all_keys_are_live_the_one_nearest_to_its_end_goes_and_is_counted() {
    let gate = Gate::new("  a: { by: user, sliding_window: 1/min }", 3);
    for user in ["a", "b", "c"] {
        assert!(gate.passes("/", user));
        gate.clock.advance(Duration::from_secs(1));
    }
    assert!(gate.passes("/", "d"));
    assert_eq!((gate.memory.evicted_keys(), gate.memory.keys()), (1, 3));
    assert!(!gate.passes("/", "b") && !gate.passes("/", "c") && !gate.passes("/", "d"));
    assert!(gate.passes("/", "a"), "it went");
    assert_eq!(gate.memory.evicted_keys(), 2);
    assert!(gate.passes("/", "b"), "and then it was b's turn");
}

#[test]
fn a_place_whose_lease_is_over_makes_room_for_free() {
    let gate = Gate::new("  a: { by: user, concurrency: 1, lease: 10s }", 2);
    assert!(gate.passes("/", "a"));
    gate.clock.advance(Duration::from_secs(9));
    assert!(gate.passes("/", "b"));
    gate.clock.advance(Duration::from_secs(1));
    assert!(gate.passes("/", "c"), "in the place of a, whose lease is over");
    assert_eq!(gate.memory.evicted_keys(), 0);
    assert!(!gate.passes("/", "b"));
}

#[test]
fn an_expired_key_is_evicted_before_live_ones() {
    let gate = Gate::new("  a: { by: user, token_bucket: 1/s burst 100 }", 101);
    let users: Vec<String> = (0..100).map(|user| user.to_string()).collect();
    assert!(users.iter().all(|user| gate.passes("/", user)));
    assert!(gate.passes("/", "gone in a second"));
    for user in users.iter().cycle().take(300) {
        assert!(gate.passes("/", user));
    }
    gate.clock.advance(Duration::from_secs(2));
    assert!(gate.passes("/", "new"));
    assert_eq!(gate.memory.evicted_keys(), 0);
    assert_eq!(gate.memory.keys(), 101);
}

#[test]
fn a_reload_that_adds_limits_leaves_room_for_them() {
    let limit = |name: &str| format!("  {name}: {{ by: user, sliding_window: 9/h }}\n");
    let gate = Gate::new(&limit("a"), 1_000);
    for user in 0..1_000 {
        assert!(gate.passes("/", &user.to_string()));
        gate.clock.advance(Duration::from_micros(1));
    }
    let limits: String = ["a", "b", "c", "d"].map(limit).concat();
    let text = format!("tidegate: 1\nname: gate\nlimits:\n{limits}");
    let policy = Policy::parse("gate.yaml", &text).unwrap();
    gate.limiter.replace_policies(vec![Arc::new(policy)]).unwrap();
    assert_eq!((gate.memory.keys(), gate.memory.evicted_keys()), (1_000, 0));
    // The new limits take their shares back from the one that has borrowed them.
    for user in 750..1_000 {
        assert!(gate.passes("/", &user.to_string()));
        assert!(gate.memory.keys() <= 1_000, "{} keys", gate.memory.keys());
    }
    assert_eq!(gate.memory.keys(), 1_000);
    let evicted = gate.memory.evicted_keys();
    assert!((750..1_000).contains(&evicted), "{evicted}");
}

#[test]
fn expired_keys_beyond_a_share_make_room_for_a_new_limit() {
    let old = "  a: { when: { path: /a }, by: user, sliding_window: 9/s }\n";
    let gate = Gate::new(old, 1_000);
    for user in 0..1_000 {
        assert!(gate.passes("/a", &user.to_string()));
    }
    gate.clock.advance(Duration::from_secs(1));
    let new = "  b: { when: { path: /b }, by: user, total: 1 }\n";
    let text = format!("tidegate: 1\nname: gate\nlimits:\n{old}{new}");
    let policy = Policy::parse("gate.yaml", &text).unwrap();
    gate.limiter.replace_policies(vec![Arc::new(policy)]).unwrap();
    for user in 0..500 {
        assert!(gate.passes("/b", &user.to_string()));
        assert!(gate.memory.keys() <= 1_000);
    }
    assert_eq!(gate.memory.evicted_keys(), 0);
    assert!((0..500).all(|user| !gate.passes("/b", &user.to_string())));
}

#[test]
fn limits_in_use_take_what_the_others_of_the_hostel_leave() {
    let text = include_str!("../../../examples/policies/hostel.yaml");
    let policy = Policy::parse("hostel.yaml", text).unwrap();
    let memory = Arc::new(Memory::with_max_keys(MAX_KEYS));
    let builder = Limiter::builder().policy(policy).clock(FakeClock::at_unix_seconds(1));
    let limiter = builder.store(Arc::clone(&memory)).build().unwrap();
    for client in 0..u32::try_from(MAX_KEYS).unwrap() {
        let ip = IpAddr::from((0xc0a8_0000 + client).to_be_bytes());
        assert!(limiter.check(&Request::new("POST", "/contact").ip(ip)).unwrap().is_allowed());
        if memory.keys() + 10 > MAX_KEYS {
            break;
        }
        assert_eq!(memory.evicted_keys(), 0, "with {} keys", memory.keys());
    }
    assert!(memory.keys() + 10 > MAX_KEYS, "{} keys", memory.keys());
}

#[test]
fn a_limit_that_is_gone_takes_its_keys_with_it() {
    let gate = Gate::new("  a: { by: user, total: 1 }\n  b: { by: ip, total: 1 }", MAX_KEYS);
    for user in 0..100 {
        gate.passes("/", &user.to_string());
    }
    assert_eq!(gate.memory.keys(), 100);
    let text = "tidegate: 1\nname: gate\nlimits:\n  b: { by: ip, total: 1 }";
    let policy = Policy::parse("gate.yaml", text).unwrap();
    gate.limiter.replace_policies(vec![Arc::new(policy)]).unwrap();
    assert_eq!(gate.memory.keys(), 0);
}

const EVERYTHING: &str = r#"
tidegate: 1
name: all
timezone: America/St_Johns
identity:
  trusted_proxies: [127.0.0.0/8, "::1/128"]
  user: { header: X-User-Id }
  tier: { header: X-User-Tier }
  default_tier: free
  anonymous_tier: anonymous
  internal: { cidrs: [10.1.0.0/16] }
  attributes:
    email: { body: /email, fold: true }
    page: { query: page }
    amount: given
    room: given
operations:
  login: POST /auth/login
  book: POST /rooms/{room}/bookings
exempt:
  - path: [/health]
  - internal: true
block: { ips: [203.0.113.0/24] }
limits:
  a: { by: ip, token_bucket: 2/s burst 5 }
  b: { when: book, by: [user, room], sliding_window: { free: 2/min, premium: 9/min } }
  c: { when: login, by: email, sliding_counter: 5/min }
  d: { by: [client, path, method, header.X-Thing], fixed_window: 3/s, exceed: warn }
  e: { by: tier, quota: 1000/month }
  f: { by: user, concurrency: 2 }
  g: { when: { attributes: { page: "7" } }, by: global, total: 50, cost: amount }
  h: { when: login, value: amount, ceiling: 100, by: ip }
  i: { by: country, quota: 5/week, shadow: true, counts: failures }
"#;

/// The requests that a client may send.
const WORDS: &str = "GET POST /auth/login /rooms/a/bookings /rooms/%2F/bookings /health \
    /x/../auth//login?page=7 login book free premium amount email room X-Forwarded-For x-user-id \
    127.0.0.1,203.0.113.9 -1 0.0000001 1e9 1 4000000001 \0 /%00 /%ff // .. 💥  ";

fn words() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(WORDS.split(' ').collect::<Vec<_>>()).prop_map(str::to_owned),
        ".*"
    ]
}

fn requests() -> impl Strategy<Value = Request<'static>> {
    let pairs = || prop::collection::vec((words(), words()), 0..4);
    let maybe = || prop::option::of(words());
    let addresses = || {
        prop::option::of(prop_oneof![
            any::<IpAddr>(),
            Just(IpAddr::from([127, 0, 0, 1])),
            Just(IpAddr::from([10, 1, 2, 3])),
        ])
    };
    let body = prop::option::of(prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        words().prop_map(|word| format!("{{\"email\":\"{word}\"}}").into_bytes()),
    ]);
    let texts = (words(), words(), maybe(), maybe(), maybe(), maybe());
    let rest = (addresses(), addresses(), any::<bool>(), pairs(), pairs(), body);
    (texts, rest, 0..=u64::MAX, any::<bool>()).prop_map(|(texts, rest, cost, reserve)| {
        let (method, path, user, tier, country, operation) = texts;
        let (peer, ip, internal, attributes, headers, body) = rest;
        let mut request = Request::new(method, path).internal(internal);
        request = peer.into_iter().fold(request, Request::peer);
        request = ip.into_iter().fold(request, Request::ip);
        request = user.into_iter().fold(request, Request::user);
        request = tier.into_iter().fold(request, Request::tier);
        request = country.into_iter().fold(request, Request::country);
        request =
            operation.into_iter().take(usize::from(cost % 2 == 0)).fold(request, Request::named);
        request = attributes.into_iter().fold(request, |r, (name, value)| r.attribute(name, value));
        request = headers.into_iter().fold(request, |r, (name, value)| r.header(name, value));
        request = body.into_iter().fold(request, Request::body);
        request = Amount::from_micros(cost % 9_000_000).into_iter().fold(request, Request::cost);
        if reserve { request.reserve() } else { request }
    })
}

proptest! {
    #[test]
    fn no_request_brings_a_limiter_down(
        requests in prop::collection::vec((requests(), 0..2_000_000_u64), 1..8),
    ) {
        let clock = FakeClock::at_unix_seconds(1_767_603_600);
        let policy = Policy::parse("all.yaml", EVERYTHING).unwrap();
        let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
        for (request, later_us) in requests {
            let Ok(peeked) = limiter.peek(&request) else { continue };
            let decision = limiter.check(&request).unwrap();
            prop_assert_eq!(peeked.outcome, decision.outcome, "nobody came between");
            let refused = decision.limits.iter().any(|report| {
                report.enforcement == tidegate::engine::plan::Enforcement::Reject && !report.is_allowed()
            });
            prop_assert!(!refused || decision.limits.iter().all(|report| !report.charged));
            let _ = Response::of(&decision, Jitter::None);
            clock.advance(Duration::from_micros(later_us));
        }
    }
}

#[test]
fn a_limit_fills_its_whole_share_before_a_live_key_has_to_go() {
    const SHARE: usize = 20_000;
    let gate = Gate::new("  a: { by: user, total: 1 }\n", SHARE);
    for user in 0..SHARE {
        assert!(gate.passes("/", &user.to_string()));
    }
    let counted = || (gate.memory.keys(), gate.memory.evicted_keys());
    assert_eq!(counted(), (SHARE, 0), "there was room for all");
    assert!(gate.passes("/", "one more"));
    assert_eq!(counted(), (SHARE, 1));
}
