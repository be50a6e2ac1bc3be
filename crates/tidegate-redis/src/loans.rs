//! Token loans: tokens of shared buckets that this node has borrowed and spends without asking the
//! store (`consistency: leased`).
//!
//! [`LoanTable`] holds the borrowed tokens, bucket by bucket. It knows no network and no clock: its user
//! passes the node's steady time, sends its [`LoanRequest`]s, each once and never again, and passes the
//! [`LoanReply`] back. `borrower` does that on the shared store; the simulation of tidegate-testkit does
//! it on a simulated network.
//!
//! A node spends at most what it was granted, and only until the grant expires, counted from when the
//! loan was requested. So the level and the loans of a bucket together never exceed its burst, and many
//! nodes admit no more than one bucket would. Only the store refuses; a node without tokens asks.

mod borrower;
mod bucket;
mod demand;
mod grant;
mod local_decision;
mod table;

use std::sync::Arc;

use tidegate::engine::plan::Level;

pub(crate) use borrower::{keep_borrowing, return_all, send_first};
pub use local_decision::PartialDecision;
pub use table::LoanTable;

/// A request for tokens, or only a report on earlier ones. It is sent once and never again: a report
/// that arrived twice would free tokens that are still on loan.
#[derive(Clone, Debug, PartialEq)]
pub struct LoanRequest {
    /// The bucket; its cost means nothing.
    pub level: Level,
    /// The name of its key.
    pub name: Option<Arc<str>>,
    /// What this node expects to spend soon, in millionths.
    pub wish: u64,
    /// The store lends at most one of this many parts of what is available.
    pub parts: u64,
    /// A smaller grant is of no use.
    pub least: u64,
    /// What became of earlier loans.
    pub reports: Vec<LoanReport>,
    /// When the request was made, by this node's clock: a grant lasts from then.
    pub sent_us: u64,
}

/// What became of the tokens of one epoch since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoanReport {
    /// When they were granted, as the store counts.
    pub epoch: u64,
    /// How much was spent, in millionths.
    pub spent: u64,
    /// How much is given back, and will not be spent.
    pub returned: u64,
}

/// The store's reply to a loan request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoanReply {
    /// The store's time.
    pub now_us: u64,
    /// How much may be spent, in millionths.
    pub granted: u64,
    /// The epoch to report it under.
    pub epoch: u64,
    /// How long the grant lasts, counted from the request.
    pub lasts_us: u64,
    /// What is left in the bucket.
    pub available: u64,
    /// What all nodes have borrowed of it, this loan included.
    pub outstanding: u64,
}

/// The state of this node's loans, for status and metrics. Amounts are in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoanHealth {
    /// From how many buckets this node holds tokens.
    pub held: usize,
    /// How much it holds, to be spent.
    pub outstanding: u64,
    /// How many requests were charged to loans, without asking the store.
    pub spent: u64,
    /// How many requests had to ask the store because this node had too few tokens.
    pub exact: u64,
    /// How many loans were granted.
    pub granted: u64,
    /// How many were requested and not granted, or not answered.
    pub refused: u64,
    /// How much was given back.
    pub returned: u64,
    /// How much expired before it was spent.
    pub expired: u64,
}

#[cfg(test)]
mod tests;
