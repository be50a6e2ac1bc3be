//! Replication of marks: all nodes know the same bans, flags and factors without asking.
//!
//! The server keeps the last change of each mark, with a number. A node pulls the changes with larger
//! numbers than it has: at once when a message says that there are some, and every second anyway. It
//! pulls everything where it cannot be sure: at the start, after an error, and where the server has lost
//! something. Marks that such a full pull lacks, the node pushes again. So nodes agree although messages
//! get lost and nodes come and go.
//!
//! Nothing here knows what a mark says. Times travel as how long a mark still lasts, so that no node's
//! clock matters.

mod outbox;
mod protocol;
mod replicator;

use std::time::Duration;

pub(crate) use outbox::Outbox;
pub(crate) use replicator::{MarkPublisher, Replicator};

/// The longest time that the server keeps a removal. A mark without an end is pushed again before its
/// key expires.
const REMOVAL_TTL_MAX: Duration = Duration::from_secs(400 * 86_400);

/// A change of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkChange {
    /// The mark.
    pub id: u128,
    /// What happens to it.
    pub operation: MarkOperation,
    /// What nodes are told of it.
    pub value: Vec<u8>,
    /// How long it lasts; `None` for ever. A removal is kept for as long as the mark would have lasted,
    /// and no longer than this, so that nodes that were away learn of it.
    pub lasts: Option<Duration>,
}

/// What happens to a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkOperation {
    /// It is set, whatever was there.
    Set,
    /// It is set, unless one is there that lasts at least as long.
    SetIfLonger,
    /// It is removed.
    Remove,
}

/// A change of a mark that some node made, possibly this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedMark {
    /// The mark.
    pub id: u128,
    /// The value of the change.
    pub value: Vec<u8>,
    /// How long it still lasts; `None` for ever.
    pub lasts: Option<Duration>,
}

/// A node's copy of the marks, and the load that nodes exchange with them.
pub trait MarkReplica: Send + Sync + 'static {
    /// Applies changes.
    fn apply(&self, changes: Vec<ReplicatedMark>);

    /// All marks of this node.
    fn marks(&self) -> Box<dyn Iterator<Item = MarkChange> + Send + '_>;

    /// The load of this node in millionths, if it has one to share.
    fn own_load_ppm(&self) -> Option<u64>;

    /// Applies the largest load of all nodes.
    fn apply_load(&self, ppm: u64);
}

#[cfg(test)]
mod tests;
