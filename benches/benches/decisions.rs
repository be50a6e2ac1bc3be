//! A decision against governor's keyed check in the same run: what is to be made fast, and from where.

#![allow(clippy::unwrap_used, reason = "a benchmark may stop at the first surprise")]

use std::num::NonZeroU32;

use governor::{Quota, RateLimiter};
use tidegate::{LimitBuilder, Limiter, Policy, Request};
use tidegate_benches::{Candidate, compare};

const USERS: usize = 100_000;

const POLICY: &str = "
tidegate: 1
name: bookings
tiers: [free, premium]
identity: { default_tier: free }
operations:
  login: POST /auth/login
  booking: POST /rooms/{room}/bookings
  availability: GET /rooms/{room}/availability
limits:
  login-ip: { when: login, by: ip, sliding_window: 5/min }
  booking-user:
    when: booking
    by: user
    token_bucket: { free: 1m/s, premium: 2m/s }
  booking-room: { when: booking, by: room, fixed_window: 1m/s }
  everything: { by: global, token_bucket: 100m/s }
";

fn main() {
    let users: Vec<String> = (0..USERS).map(|user| format!("user-{user:020}")).collect();
    let next = |turn: &mut usize| {
        *turn = (*turn + 7_919) % USERS;
        *turn
    };
    let quota = Quota::per_second(NonZeroU32::new(1_000_000).unwrap());
    let governor = RateLimiter::keyed(quota);
    let bucket = LimitBuilder::token_bucket("per-user", "1m/s").by("user");
    let one = Limiter::new(Policy::builder("one").limit(bucket).build().unwrap());
    let three = Limiter::new(Policy::parse("bookings.yaml", POLICY).unwrap());
    let (mut a, mut b, mut c) = (0, 0, 0);
    compare(
        "allowed, 100,000 users in turn",
        vec![
            Candidate::new("governor, one keyed check", || {
                governor.check_key(&users[next(&mut a)]).is_ok()
            }),
            Candidate::new("tidegate, a decision on one bucket", || {
                one.check(&Request::new("GET", "/").user(&*users[next(&mut b)]))
                    .unwrap()
                    .is_allowed()
            }),
            Candidate::new("tidegate, operation, tier, three limits", || {
                let request =
                    Request::new("POST", "/rooms/r9/bookings").user(&*users[next(&mut c)]);
                three.check(&request).unwrap().is_allowed()
            }),
        ],
    );
}
