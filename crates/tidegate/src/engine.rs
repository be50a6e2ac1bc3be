//! What the daemon, stores and tools build on. Applications need nothing of it.
//!
//! A surface makes one [`Context`] for each request, asks [`Limiter::wants_body`] and adds the body,
//! decides with [`Limiter::start`] and [`Limiter::finish`], and hands the context to everything that
//! follows: the log, the reservation, the events of the answer. A store implements
//! [`store::Store`]: it takes a [`plan::Plan`] of numbers and answers it, all levels or none.
//!
//! These names follow the inside of the crate and change with it.
//!
//! [`Limiter::wants_body`]: crate::Limiter::wants_body
//! [`Limiter::start`]: crate::Limiter::start
//! [`Limiter::finish`]: crate::Limiter::finish

pub use crate::active_policy::ActivePolicies;
pub use crate::context::{Context, OwnedContext};
pub use crate::countries::{Countries, CountryCode};
pub use crate::explain::{
    Application, Counting, Explanation, LimitExplanation, PenaltyExplanation,
};
pub use crate::fair_share::{Client, FairShare};
pub use crate::key::Key;
pub use crate::key_lookup::{KeyOwner, SubjectKey};
pub use crate::limiter::{
    Claim, ClientKeys, MergeSummary, Pending, Progress, ResetError, StoreDebt, Wait,
};
pub use crate::log_identity::{IdentityFormat, LogIdentity};
pub use crate::protection::events::{Effect, Notice};
pub use crate::rate::{BurstRate, RateError};
pub use crate::response::{HeaderStyle, Sink, render};

/// The limiting algorithms, as pure functions of state, spec, time and cost.
pub mod algorithm {
    pub use crate::algorithm::*;
}

/// A hasher for tables whose keys are keyed hashes already.
pub mod fold {
    pub use crate::fold::*;
}

/// Who sent a request: addresses, networks, claims.
pub mod identity {
    pub use crate::identity::*;
}

/// Bans, flags and factors in force.
pub mod marks {
    pub use crate::protection::marks::*;
}

/// Paths, patterns, and the operation of a request.
pub mod operation {
    pub use crate::operation::*;
}

/// Plans: what a store is asked.
pub mod plan {
    pub use crate::plan::*;
}

/// The policy language: documents, diagnostics, the checked policy.
pub mod policy {
    pub use crate::policy::*;
}

/// Policy tests under simulated time.
pub mod simulate {
    pub use crate::simulate::*;
}

/// Stores, and the memory store.
pub mod store {
    pub use crate::store::*;
}

/// Text that answers are written in.
pub mod text {
    pub use crate::text::*;
}

/// Exact amounts and durations.
pub mod units {
    pub use crate::units::*;
}
