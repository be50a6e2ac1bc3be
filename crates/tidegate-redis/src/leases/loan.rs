//! What is asked of the store, and what it says.

use std::sync::Arc;

use tidegate::plan::Level;

/// An ask for tokens, or only a report on earlier ones. It is sent once and never again: a report that
/// arrived twice would free tokens that are still out.
#[derive(Clone, Debug, PartialEq)]
pub struct Loan {
    /// The bucket; its cost means nothing.
    pub level: Level,
    /// What its key is called.
    pub name: Option<Arc<str>>,
    /// How much would be spent within the next while, in millionths.
    pub wish: u64,
    /// No more than one of so many parts of what is there.
    pub parts: u64,
    /// Less than this is of no use.
    pub least: u64,
    /// What became of earlier loans.
    pub reports: Vec<Report>,
    /// When it was made, by the clock of this node: what is granted lasts from then.
    pub sent_us: u64,
}

/// What became of the tokens of one epoch since they were last reported on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When they were granted, as the store counts.
    pub epoch: u64,
    /// How much was spent, in millionths.
    pub spent: u64,
    /// How much is given back, and will not be spent.
    pub returned: u64,
}

/// What the store says to a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The store's time.
    pub now_us: u64,
    /// How much may be spent, in millionths.
    pub granted: u64,
    /// The epoch to report it under.
    pub epoch: u64,
    /// For how long, counted from when it was asked for.
    pub lasts_us: u64,
    /// What is left in the bucket.
    pub available: u64,
    /// What all nodes have borrowed of it, this included.
    pub outstanding: u64,
}
