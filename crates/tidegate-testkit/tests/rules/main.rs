//! The numbered rules of the policy language, through the public API.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

mod later;
mod rule_1;
mod rule_2;
mod rule_3;
mod rule_4;
mod rule_5;
mod rule_6;
mod rule_6_once;
mod rule_7;
mod rule_8;
mod rule_9;

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::FakeClock;
use tidegate::{Decision, Limiter, Outcome, Policy, Request, RequestError};

/// 2026-01-05T09:00:00Z, a Monday.
const MONDAY_NINE: u64 = 1_767_603_600;

/// A limiter in memory, on a clock that the test moves.
struct Desk {
    limiter: Limiter,
    clock: FakeClock,
}

impl Desk {
    /// With these limits and nothing else.
    fn with_limits(limits: &str) -> Self {
        Self::with_policy(&format!("limits:\n{limits}"))
    }

    /// With a policy that still lacks its head.
    fn with_policy(rest: &str) -> Self {
        let clock = FakeClock::at_unix_seconds(MONDAY_NINE);
        let limiter = Limiter::builder().policy(policy(rest)).clock(clock.clone()).build().unwrap();
        Self { limiter, clock }
    }

    fn reload(&self, rest: &str) {
        self.limiter.replace_policies(vec![Arc::new(policy(rest))]).unwrap();
    }

    fn try_check(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.limiter.check(request)
    }

    fn check(&self, request: &Request<'_>) -> Decision {
        self.try_check(request).unwrap()
    }

    fn outcome(&self, request: &Request<'_>) -> Outcome {
        self.check(request).outcome
    }

    /// How many of so many pass.
    fn passing(&self, tries: usize, request: &Request<'_>) -> usize {
        (0..tries).filter(|_| self.check(request).is_allowed()).count()
    }

    /// What is left of the limit at this place.
    fn remaining(&self, index: usize, request: &Request<'_>) -> u64 {
        self.limiter.peek(request).unwrap().limits[index].remaining()
    }

    fn wait(&self, duration: Duration) {
        self.clock.advance(duration);
    }
}

fn policy(rest: &str) -> Policy {
    let text = format!("tidegate: 1\nname: desk\n{rest}");
    Policy::parse("desk.yaml", &text).unwrap_or_else(|found| panic!("{found}"))
}

fn user(name: &str) -> Request<'_> {
    Request::new("GET", "/things").user(name)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
