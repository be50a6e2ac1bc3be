//! Tidegate: multi-level rate limiting, driven by one readable policy.
//!
//! A [`Policy`] says what is limited, for whom, and what happens beyond. A [`Limiter`] decides
//! [`Request`]s by it: every limit that applies is charged, or, if one refuses, none. The
//! [`Decision`] holds everything that an answer needs, and [`Response`] renders it.
//!
//! ```
//! use std::time::Duration;
//!
//! use tidegate::clock::FakeClock;
//! use tidegate::{Limiter, Outcome, Policy, Request};
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
//! let clock = FakeClock::at_unix_seconds(1_767_603_600);
//! let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build()?;
//!
//! let booking = Request::new("POST", "/rooms/r9/bookings").user("u1");
//! assert!(limiter.check(&booking)?.is_allowed());
//! clock.advance(Duration::from_secs(1));
//! assert!(limiter.check(&booking)?.is_allowed());
//!
//! let refused = limiter.check(&booking)?;
//! assert_eq!(refused.outcome, Outcome::Limited);
//! assert_eq!(refused.limit_name(), Some("booking-user"));
//! assert_eq!(refused.retry_after(), Some(Duration::from_secs(59)));
//!
//! clock.advance(Duration::from_secs(59));
//! assert!(limiter.check(&booking)?.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! The same without YAML: see [`Policy::builder`]. Nothing here opens a socket or a file, reads the
//! environment or needs an async runtime; time comes from a [`clock::Clock`].

mod active_policy;
pub mod algorithm;
mod body_need;
pub mod clock;
mod context;
mod countries;
mod decision;
mod explain;
mod fallback;
pub mod fold;
pub mod identity;
mod key;
mod key_lookup;
mod keyed;
mod limiter;
mod log_identity;
pub mod operation;
pub mod plan;
pub mod policy;
mod precheck;
mod protection;
mod rate;
mod request;
mod reservation;
mod response;
mod shards;
pub mod simulate;
pub mod store;
mod sync;
pub mod text;
mod trim_request;
pub mod units;

pub use active_policy::ActivePolicies;
pub use context::Context;
pub use countries::{Countries, CountryCode};
pub use decision::{Decision, LimitReport, Outcome};
pub use explain::{Application, Counting, Explanation, LimitExplanation, PenaltyExplanation};
pub use key::{HashKey, Key};
pub use key_lookup::{KeyedLimit, SubjectKey};
pub use keyed::Keyed;
pub use limiter::{
    Acquisition, BuildError, Claim, ClientKeys, Limiter, LimiterBuilder, MergeSummary, NewMark,
    Pending, Progress, ResetError, StoreDebt, Timer, Wait,
};
pub use log_identity::{IdentityFormat, LogIdentity};
pub use policy::{LimitBuilder, Options, Policy};
pub use protection::events::{Consequences, Effect, Notice, Report};
pub use protection::marks;
pub use protection::marks::{Mark, MarkChange, MarkKind, MarkSink, Marks, Subject};
pub use rate::{BurstRate, Quota, Rate, RateError};
pub use request::{Request, RequestError};
pub use reservation::{Reservation, Settlement};
pub use response::{HeaderStyle, Jitter, Response, Sink, render};

/// The example in the README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
