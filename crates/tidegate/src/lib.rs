//! Multi-level rate limiting, driven by one readable policy.
//!
//! A [`Policy`] says what is limited, for whom, and what happens beyond. A [`Limiter`] decides
//! [`Request`]s by it: every limit that applies is charged, or, if one refuses, none. The [`Decision`]
//! holds everything that an answer needs, and [`Response`] renders it. Nothing here opens a socket or a
//! file, reads the environment or needs an async runtime.
//!
//! # Check a request
//!
//! ```
//! use tidegate::{Limiter, Policy, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::parse("hostel.yaml", "
//! tidegate: 1
//! name: hostel
//! identity: { default_tier: free }
//! operations:
//!   booking: POST /rooms/{room}/bookings
//! limits:
//!   booking-user:
//!     when: booking
//!     by: user
//!     sliding_window: { free: 2/min, premium: 10/min }
//!   booking-room: { when: booking, by: room, quota: 100/day }
//! ")?;
//! let limiter = Limiter::new(policy);
//!
//! let booking = Request::new("POST", "/rooms/r9/bookings").user("u1");
//! assert!(limiter.check(&booking)?.is_allowed());
//! assert!(limiter.check(&booking)?.is_allowed());
//! let refused = limiter.check(&booking)?;
//! assert_eq!(refused.limit_name(), Some("booking-user"));
//! assert!(refused.retry_after().is_some());
//! # Ok(())
//! # }
//! ```
//!
//! [`Limiter::peek`] decides without charging, and [`Limiter::check_batch`] decides many at once.
//!
//! # Without YAML
//!
//! Limits can be typed. A [`Rate`] cannot be built wrong; its text form is checked when it is read.
//!
//! ```
//! use std::num::NonZeroU32;
//! use tidegate::{Keyed, LimitBuilder, Limiter, Policy, Rate, Verdict};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const FIVE: NonZeroU32 = NonZeroU32::new(5).unwrap();
//! let typed = LimitBuilder::sliding_window("per-address", Rate::per_minute(FIVE)).by("ip");
//! let text = LimitBuilder::token_bucket("all", "100/s burst 200").by("global");
//! let limiter = Limiter::new(Policy::builder("api").limit(typed).limit(text).build()?);
//! # let _ = limiter;
//!
//! // One limit on one kind of key, without a policy, at the speed of a hash table.
//! let logins = Keyed::sliding_window("5/min")?;
//! assert_eq!(logins.check("ada"), Verdict::Allowed);
//! # Ok(())
//! # }
//! ```
//!
//! # Time in tests
//!
//! ```
//! use std::time::Duration;
//! use tidegate::clock::FakeClock;
//! use tidegate::{LimitBuilder, Limiter, Policy, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = FakeClock::at_unix_seconds(1_767_603_600);
//! let policy = Policy::builder("api").limit(LimitBuilder::fixed_window("a", "1/min").by("user"));
//! let limiter = Limiter::builder().policy(policy.build()?).clock(clock.clone()).build()?;
//! let request = Request::new("GET", "/").user("u1");
//! assert!(limiter.check(&request)?.is_allowed());
//! assert!(!limiter.check(&request)?.is_allowed());
//! clock.advance(Duration::from_secs(60));
//! assert!(limiter.check(&request)?.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! # Wait for a turn
//!
//! [`Limiter::acquire`] waits, first come, first served, for at most as long as it is told. A caller
//! with a runtime brings its [`Timer`]; this one moves a fake clock.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::clock::FakeClock;
//! use tidegate::{LimitBuilder, Limiter, Policy, Request, Timer};
//!
//! struct Jump(FakeClock);
//!
//! impl Timer for Jump {
//!     async fn sleep(&self, duration: Duration) {
//!         self.0.advance(duration);
//!     }
//! }
//!
//! # fn block_on<T>(future: impl Future<Output = T>) -> T {
//! #     let mut future = std::pin::pin!(future);
//! #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! #     loop {
//! #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
//! #             return value;
//! #         }
//! #     }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = FakeClock::at_unix_seconds(1_767_603_600);
//! let policy = Policy::builder("jobs").limit(LimitBuilder::token_bucket("a", "1/s burst 1").by("global"));
//! let limiter = Limiter::builder().policy(policy.build()?).clock(clock.clone()).build()?;
//! let (request, timer) = (Request::operation("default"), Jump(clock));
//! assert!(limiter.check(&request)?.is_allowed());
//! let acquired = block_on(limiter.acquire(&request, Some(Duration::from_secs(3)), &timer))?;
//! assert!(acquired.decision.is_allowed());
//! assert_eq!(acquired.waited, Duration::from_secs(1));
//! # Ok(())
//! # }
//! ```
//!
//! # Reserve, then settle
//!
//! A cost that is known afterwards is reserved as an estimate. The [`Reservation`] settles the true cost,
//! gives a place of a `concurrency` limit back, or refunds everything.
//!
//! ```
//! use tidegate::{Amount, LimitBuilder, Limiter, Policy, Request, Settlement};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tokens = LimitBuilder::token_bucket("tokens", "1000/min").by("user");
//! let limiter = Limiter::new(Policy::builder("llm").limit(tokens).build()?);
//! let estimate = Request::operation("default").user("u1").cost(Amount::parse("800")?).reserve();
//! let mut reservation = limiter.check(&estimate)?.reservation.ok_or("nothing was charged")?;
//! limiter.settle(&mut reservation, Settlement::Cost(Amount::parse("120")?))?;
//! assert!(limiter.check(&estimate)?.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! # Several policies
//!
//! ```
//! use tidegate::{LimitBuilder, Limiter, Policy, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = |name: &str| {
//!     Policy::builder(name).limit(LimitBuilder::total("calls", 1).by("user")).build()
//! };
//! let limiter = Limiter::builder().policy(policy("inbound")?).policy(policy("outbound")?).build()?;
//! let request = Request::operation("default").user("u1");
//! assert!(limiter.check(&request)?.is_allowed());
//! assert!(limiter.check(&request.clone().policy("outbound"))?.is_allowed());
//! assert!(!limiter.check(&request)?.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! # Many nodes, one Redis
//!
//! `Limiter::builder().store(store)` takes any store. The crate `tidegate-redis` has one for Redis, Valkey
//! and Redis Cluster; its first page has an example. Calls that may have to wait for such a store end in
//! `_async`: [`check_async`](Limiter::check_async), [`settle_async`](Limiter::settle_async),
//! [`report_async`](Limiter::report_async). A store in memory has the same calls without the ending.
//!
//! What a daemon needs beside this stands in [`engine`].

mod active_policy;
mod algorithm;
mod body_need;
pub mod clock;
mod context;
mod countries;
mod decision;
pub mod engine;
mod explain;
mod fair_share;
mod fallback;
mod fold;
mod identity;
mod key;
mod key_lookup;
mod keyed;
mod limiter;
mod log_identity;
mod operation;
mod plan;
mod policy;
mod precheck;
mod protection;
mod rate;
mod request;
mod reservation;
mod response;
mod shards;
mod simulate;
mod store;
mod sync;
mod text;
mod trim_request;
mod units;

pub use algorithm::Verdict;
pub use decision::{Decision, LimitReport, Outcome};
pub use identity::Unreadable;
pub use key::HashKey;
pub use keyed::Keyed;
pub use limiter::{Acquisition, BuildError, Limiter, LimiterBuilder, NewMark, Timer};
pub use policy::{LimitBuilder, Policy};
pub use protection::events::{Consequences, Report};
pub use protection::marks::{Mark, Subject};
pub use rate::{Quota, Rate};
pub use request::{Request, RequestError};
pub use reservation::{Reservation, Settlement};
pub use response::{Jitter, Response};
pub use store::StoreError;
pub use units::Amount;

/// The example in the README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
