//! The algorithms, as pure integer functions over (state, spec, now, cost).
//!
//! Each file has the same functions, so that a reader who knows one knows all:
//!
//! - `evaluate`: would this cost fit now, and if not, when? Changes nothing.
//! - `charge`: takes the cost, unconditionally; the store calls it once all levels fit.
//! - `refund`, `surcharge`: corrects a charge made earlier (`charged_at_us`), void once that charge
//!   has no effect any more; a surcharge may go into debt of at most one further limit.
//! - `debit`: as `charge`, but into debt of at most one further limit.
//! - `reading`: what could be spent now, and when nothing will be owed any more.
//! - `meaningless_at_us`: the instant from which the state equals a new one.
//! - `shift`: the same state on a clock with another origin; only where a state runs on steady time.
//!
//! Times are microseconds; a time that runs backwards is taken as the latest one seen. States hold
//! what is owed, not what is left, so that a changed spec keeps it (rule 5); where its pace changes
//! too, a [`Ledger`] has a state for each.

pub(crate) mod as_micros;
mod behind;
pub mod calendar;
pub mod ceiling;
pub mod concurrency;
mod describe;
mod dispatch;
pub mod fixed_window;
mod ledger;
pub mod quota;
#[cfg(test)]
mod reference;
pub mod sliding_counter;
pub mod sliding_window;
pub mod token_bucket;
pub mod total;
mod window;

pub(crate) use behind::behind_us;
pub use describe::Window;
pub use dispatch::{
    charge, debit, evaluate, meaningless_at_us, reading, refund, release, renew, surcharge,
};
pub(crate) use dispatch::{fullness, take};
pub(crate) use ledger::same_pace;
pub use ledger::{Ledger, Pace};

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::micros;
use crate::units::Amount;

/// Whether a cost fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fits now.
    Allowed,
    /// It does not.
    Denied {
        /// How long until the same cost would fit if no other request came; `None` if waiting does not help.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// How long until the same cost would fit; `None` if it does now, or never will.
    #[must_use]
    pub const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Denied { retry_after } => retry_after,
            Self::Allowed => None,
        }
    }

    /// The same in microseconds.
    pub(crate) fn retry_after_us(self) -> Option<u64> {
        self.retry_after().map(micros)
    }

    /// A denial until the same cost would fit, in microseconds.
    pub(crate) const fn denied_for_us(us: u64) -> Self {
        Self::Denied { retry_after: Some(Duration::from_micros(us)) }
    }
}

/// What a limit shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How much could be spent now.
    pub available: Amount,
    /// Microseconds until nothing is owed any more (bucket full, newest entry gone, window over);
    /// `None` where that never happens by itself.
    pub reset_us: Option<u64>,
}

/// An algorithm together with its numbers, as they hold for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spec {
    /// Refilled evenly at a rate.
    TokenBucket(token_bucket::Spec),
    /// Never more than the limit in any window.
    SlidingWindow(sliding_window::Spec),
    /// A sliding window estimated from two counters.
    SlidingCounter(sliding_counter::Spec),
    /// Windows aligned to the epoch.
    FixedWindow(fixed_window::Spec),
    /// Calendar windows.
    Quota(quota::Spec),
    /// A number of places held at once.
    Concurrency(concurrency::Spec),
    /// Never resets by itself.
    Total(total::Spec),
    /// Compares a value; stores nothing.
    Ceiling(ceiling::Spec),
}

/// What a store keeps for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// What is owed to a bucket.
    TokenBucket(token_bucket::State),
    /// The log of a sliding window.
    SlidingWindow(sliding_window::State),
    /// The two counters.
    SlidingCounter(sliding_counter::State),
    /// What the present window has used.
    FixedWindow(fixed_window::State),
    /// What the present calendar window has used.
    Quota(quota::State),
    /// Who holds a place, and until when.
    Concurrency(concurrency::State),
    /// What has been used in all.
    Total(total::State),
}

impl Spec {
    /// The state of a key that was never charged; `None` if nothing is stored.
    #[must_use]
    pub fn new_state(&self) -> Option<State> {
        match self {
            Self::TokenBucket(_) => Some(State::TokenBucket(token_bucket::State::default())),
            Self::SlidingWindow(_) => Some(State::SlidingWindow(sliding_window::State::default())),
            Self::SlidingCounter(_) => {
                Some(State::SlidingCounter(sliding_counter::State::default()))
            }
            Self::FixedWindow(_) => Some(State::FixedWindow(fixed_window::State::default())),
            Self::Quota(_) => Some(State::Quota(quota::State::default())),
            Self::Concurrency(_) => Some(State::Concurrency(concurrency::State::default())),
            Self::Total(_) => Some(State::Total(total::State::default())),
            Self::Ceiling(_) => None,
        }
    }

    /// The most that could ever be spent at once.
    #[must_use]
    pub const fn capacity(&self) -> Amount {
        match self {
            Self::TokenBucket(spec) => spec.burst,
            Self::SlidingWindow(spec) => spec.limit,
            Self::SlidingCounter(spec) => spec.limit,
            Self::FixedWindow(spec) => spec.limit,
            Self::Quota(spec) => spec.limit,
            Self::Concurrency(spec) => spec.places,
            Self::Total(spec) => spec.limit,
            Self::Ceiling(spec) => spec.limit,
        }
    }

    /// Whether its windows are those that people see on a clock or calendar; all others run on
    /// steady time.
    #[must_use]
    pub const fn uses_wall_clock(&self) -> bool {
        matches!(self, Self::FixedWindow(_) | Self::Quota(_))
    }
}

/// Whether the cost fits beside what is already used.
fn fits(limit: Amount, used_micros: u64, cost: Amount) -> bool {
    used_micros.saturating_add(cost.micros()) <= limit.micros()
}

/// What is left of the limit; nothing in debt.
fn rest(limit: Amount, used_micros: u64) -> Amount {
    limit.saturating_sub(Amount::from_micros(used_micros).unwrap_or(Amount::MAX))
}

/// The most that may be owed: the limit and one further limit of debt.
pub(crate) const fn debt_max(limit: Amount) -> u64 {
    limit.micros().saturating_mul(2)
}

/// How much of a surcharge still counts beside what is owed already.
fn surchargeable(limit: Amount, owed_micros: u64, extra: Amount) -> u64 {
    extra.micros().min(debt_max(limit).saturating_sub(owed_micros))
}

/// How much of a debit still counts beside what is owed already.
fn debitable(limit: Amount, owed_micros: u64, amount: Amount) -> Amount {
    Amount::from_micros(surchargeable(limit, owed_micros, amount)).unwrap_or(Amount::MAX)
}

/// A denial that ends at an instant, counted from the caller's own `now_us`: also a caller whose
/// clock lags behind the state then comes back at the right moment.
const fn denied_until(instant_us: u64, now_us: u64) -> Verdict {
    Verdict::denied_for_us(instant_us.saturating_sub(now_us))
}

/// A denial that no waiting ends.
const DENIED_FOR_GOOD: Verdict = Verdict::Denied { retry_after: None };

/// An intermediate result as far as it fits.
fn saturate(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
