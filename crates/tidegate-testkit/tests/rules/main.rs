//! The numbered rules of the policy language (docs/policy.md, "The rules"), through the public API.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

mod all_or_nothing;
mod changed_limits;
mod costs;
mod factors;
mod ladder_steps_once;
mod ladders;
mod lost_store;
mod order_of_checks;
mod profiles;
mod reported_limit;
mod unreadable;
mod unsupported;

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::FakeClock;
use tidegate::{Decision, Limiter, Outcome, Policy, Request, RequestError};

/// 2026-01-05T09:00:00Z, a Monday.
const MONDAY_NINE: u64 = 1_767_603_600;

/// A limiter on the memory store, with a clock that the test advances.
struct Fixture {
    limiter: Limiter,
    clock: FakeClock,
}

impl Fixture {
    /// Makes a policy of these limits alone.
    fn with_limits(limits: &str) -> Self {
        Self::with_policy(&format!("limits:\n{limits}"))
    }

    /// Completes the policy with its version and name.
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

    /// Sends the request `tries` times and counts the allowed ones.
    fn count_allowed(&self, tries: usize, request: &Request<'_>) -> usize {
        (0..tries).filter(|_| self.check(request).is_allowed()).count()
    }

    /// Returns what is left of the limit at this index.
    fn remaining(&self, index: usize, request: &Request<'_>) -> u64 {
        self.limiter.peek(request).unwrap().limits[index].remaining()
    }

    fn advance(&self, duration: Duration) {
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
