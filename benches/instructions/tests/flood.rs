//! Twenty million made-up keys, as an attacker would send them: too many for a build that is not
//! optimised, so that it stands here, where the library is built so anyway.
//!
//! `cargo test --profile counted -p tidegate-instructions -- --ignored`

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::time::Duration;

use tidegate::clock::FakeClock;
use tidegate::engine::store::Memory;
use tidegate::{Limiter, Policy, Request};

const MADE_UP: u64 = 20_000_000;
const KEYS_MAX: usize = 1_000_000;
/// What a key may take, and what everything else may.
const BYTES_A_KEY: u64 = 48;
const BYTES_BESIDE: u64 = 1 << 20;
/// Each made-up key owes something for 36 s, in which 3.6 million others come.
const APART_US: u64 = 10;
const POLICY: &str = "{ tidegate: 1, name: api, limits: { a: { by: user, token_bucket: 100/h } } }";

#[test]
#[ignore = "takes a minute where it is not optimised"]
fn a_flood_stays_within_its_memory_and_a_limited_key_stays_limited() {
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let policy = Policy::parse("api.yaml", POLICY).unwrap_or_else(|errors| panic!("{errors}"));
    let mut limiter = None;
    let mut allowed = 0;
    let took = allocation_counter::measure(|| {
        let store = Memory::with_max_keys(KEYS_MAX);
        let builder = Limiter::builder().policy(policy).store(store).clock(clock.clone());
        let limiter = limiter.insert(builder.build().unwrap());
        let allows = |user: String| {
            u64::from(limiter.check(&Request::new("GET", "/").user(user)).unwrap().is_allowed())
        };
        allowed += (0..101).map(|_| allows("attacked".to_owned())).sum::<u64>();
        for number in 0..MADE_UP {
            clock.advance(Duration::from_micros(APART_US));
            assert_eq!(allows(format!("made-up-{number}")), 1);
            if number % 1_000 == 0 {
                allowed += allows("attacked".to_owned());
                assert!(limiter.store().keys() <= KEYS_MAX);
            }
        }
    });
    // One every 36 s, as if nobody else had been there.
    assert_eq!(allowed, 100 + MADE_UP * APART_US / 36_000_000);
    let most = BYTES_A_KEY * KEYS_MAX as u64 + BYTES_BESIDE;
    assert!(took.bytes_max <= most, "{} of {most} bytes", took.bytes_max);
    let evicted = limiter.map_or(0, |limiter| limiter.store().evicted_keys());
    assert!(evicted > 0, "keys that still owed something had to go");
}
