//! Checkers: whether a log of decisions keeps the promises.
//!
//! Each checker takes the log of one limit, with any number of keys, and judges every key by itself.
//! It knows nothing of how a store counts: it works from the admissions and their times, in exact
//! integers.
//!
//! - [`bounds`]: never more than promised.
//! - [`liveness`]: never less either, and a promised instant is kept.
//! - [`trouble`]: never more than promised for nodes that are cut off, failovers and clocks that
//!   are set back.

pub mod bounds;
pub mod liveness;
pub mod trouble;

use std::collections::BTreeMap;
use std::fmt;

use tidegate::Amount;

/// One decision of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key of the limit.
    pub key: String,
    /// The time of the decision, by the store's clock.
    pub time_us: u64,
    /// The cost of the request.
    pub cost: Amount,
    /// Whether it was admitted, and so charged.
    pub admitted: bool,
    /// The wait that a denied request was told; `None` where no waiting helps.
    pub retry_after_us: Option<u64>,
}

impl Entry {
    /// An admitted request.
    #[must_use]
    pub fn admitted(key: impl Into<String>, time_us: u64, cost: Amount) -> Self {
        Self { key: key.into(), time_us, cost, admitted: true, retry_after_us: None }
    }

    /// A denied request.
    #[must_use]
    pub fn denied(
        key: impl Into<String>,
        time_us: u64,
        cost: Amount,
        retry_after_us: Option<u64>,
    ) -> Self {
        Self { key: key.into(), time_us, cost, admitted: false, retry_after_us }
    }
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key of the limit.
    pub key: String,
    /// The decision that broke it.
    pub time_us: u64,
    /// The promise, and the observed value.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key `{}` at {} µs: {}", self.key, self.time_us, self.detail)
    }
}

impl std::error::Error for Violation {}

fn violation(entry: &Entry, detail: String) -> Violation {
    Violation { key: entry.key.clone(), time_us: entry.time_us, detail }
}

/// The entries of each key by time; entries of one instant in the log's order.
fn by_key(log: &[Entry]) -> impl Iterator<Item = Vec<&Entry>> {
    let mut keys: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for entry in log {
        keys.entry(&entry.key).or_default().push(entry);
    }
    keys.into_values().map(|mut entries| {
        entries.sort_by_key(|entry| entry.time_us);
        entries
    })
}

fn admissions(log: &[Entry]) -> impl Iterator<Item = Vec<&Entry>> {
    by_key(log).map(|mut entries| {
        entries.retain(|entry| entry.admitted);
        entries
    })
}

fn micros(amount: Amount) -> u128 {
    u128::from(amount.micros())
}
