//! Clocks that are set, forwards or back, open no limit.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::time::Duration;

use tidegate::clock::FakeClock;
use tidegate::{Limiter, Policy, Request};

/// 2026-01-05T09:00:00Z, a Monday.
const NOW_US: u64 = 1_767_603_600_000_000;
const DAY_US: u64 = 86_400_000_000;

struct Fixture {
    limiter: Limiter,
    clock: FakeClock,
}

impl Fixture {
    fn new(spec: &str) -> Self {
        let text = format!("tidegate: 1\nname: fixture\nlimits:\n  a: {{ by: user, {spec} }}");
        let policy = Policy::parse("fixture.yaml", &text).unwrap();
        let clock = FakeClock::at_unix(Duration::from_micros(NOW_US));
        let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
        Self { limiter, clock }
    }

    fn passes(&self) -> bool {
        self.limiter.check(&Request::new("GET", "/").user("u")).unwrap().is_allowed()
    }
}

#[test]
fn a_wall_clock_that_is_set_back_opens_no_earlier_window() {
    for spec in ["quota: 2/day", "quota: 2/week", "quota: 2/month", "fixed_window: 2/h"] {
        for back_us in [1, 3_600_000_000, DAY_US, 3 * DAY_US, 40 * DAY_US] {
            let fixture = Fixture::new(spec);
            assert!(fixture.passes() && fixture.passes());
            fixture.clock.step_wall_clock(Duration::from_micros(NOW_US - back_us));
            assert!(!fixture.passes(), "{spec}, set back by {back_us} µs");
        }
    }
}

#[test]
fn a_wall_clock_that_is_set_right_again_has_given_at_most_one_window_more() {
    for spec in ["quota: 2/day", "fixed_window: 2/h"] {
        let fixture = Fixture::new(spec);
        assert!(fixture.passes() && fixture.passes());
        let mut passed = 0;
        for _ in 0..10 {
            fixture.clock.step_wall_clock(Duration::from_micros(NOW_US + DAY_US));
            passed += usize::from(fixture.passes()) + usize::from(fixture.passes());
            fixture.clock.step_wall_clock(Duration::from_micros(NOW_US));
            passed += usize::from(fixture.passes()) + usize::from(fixture.passes());
        }
        assert_eq!(passed, 2, "{spec}");
    }
}

#[test]
fn a_client_that_waits_as_told_gets_in_although_the_clock_was_set_back() {
    for spec in ["quota: 2/day", "fixed_window: 2/h"] {
        let fixture = Fixture::new(spec);
        assert!(fixture.passes() && fixture.passes());
        fixture.clock.step_wall_clock(Duration::from_micros(NOW_US - 1_800_000_000));
        let refused = fixture.limiter.check(&Request::new("GET", "/").user("u")).unwrap();
        fixture.clock.advance(refused.retry_after().unwrap());
        assert!(fixture.passes(), "{spec}");
    }
}

#[test]
fn a_wall_clock_moves_no_limit_that_runs_on_steady_time() {
    let specs = [
        "token_bucket: 2/h burst 2",
        "sliding_window: 2/h",
        "sliding_counter: 2/h",
        "concurrency: 2",
    ];
    for spec in specs {
        for wall_us in [0, NOW_US - DAY_US, NOW_US + DAY_US, u64::MAX / 2] {
            let fixture = Fixture::new(spec);
            assert!(fixture.passes() && fixture.passes());
            fixture.clock.step_wall_clock(Duration::from_micros(wall_us));
            let refused = fixture.limiter.check(&Request::new("GET", "/").user("u")).unwrap();
            assert!(!refused.is_allowed(), "{spec} at {wall_us}");
            assert!(refused.retry_after() < Some(Duration::from_secs(2 * 3_600)), "{spec}");
        }
    }
}
