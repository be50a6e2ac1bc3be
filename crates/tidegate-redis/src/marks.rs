//! Marks: what all nodes know of subjects without asking, such as bans.
//!
//! The server keeps each mark's last change, with its number. A node asks for what has a larger number
//! than it knows, at once where it hears that there is something and every second anyway, and for
//! everything where it cannot be sure: at the start, after trouble, and where the server has lost
//! something. What such a whole load lacks, the node says anew. So it takes neither a message nor a
//! node that is there all the time for all of them to know the same.
//!
//! What a mark says is not known here. Times travel as how long a mark still lasts, so that no node's
//! clock matters.

mod keeper;
mod queue;
mod script;

use std::time::Duration;

pub(crate) use keeper::{Keeper, Teller};
pub(crate) use queue::Queue;

/// The longest that anything is kept: what lasts for ever is said anew before.
pub(crate) const LASTS_MAX: Duration = Duration::from_secs(400 * 86_400);

/// A mark, or that it is none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkChange {
    /// Which mark.
    pub id: u128,
    /// What is done to it.
    pub how: How,
    /// What nodes are told of it.
    pub value: Vec<u8>,
    /// How long it holds; `None`: for ever. What is removed is remembered for as long as it would have
    /// held, and no longer than this, so that nodes that are away meanwhile hear of it.
    pub lasts: Option<Duration>,
}

/// What is done to a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is set, whatever was there.
    Set,
    /// It is set, unless one is there that lasts at least as long.
    SetIfLonger,
    /// It is removed.
    Remove,
}

/// What another node, or this one, has done to a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeardMark {
    /// Which mark.
    pub id: u128,
    /// What it was told with.
    pub value: Vec<u8>,
    /// How long it still holds; `None`: for ever.
    pub lasts: Option<Duration>,
}

/// A node that knows marks, and the load that nodes tell each other.
pub trait Replica: Send + Sync + 'static {
    /// These have changed.
    fn heard(&self, changes: Vec<HeardMark>);

    /// Everything that this node knows.
    fn known(&self) -> Box<dyn Iterator<Item = MarkChange> + Send + '_>;

    /// The load of this node in millionths, if it has one to tell.
    fn own_load_ppm(&self) -> Option<u64>;

    /// The largest load of all nodes.
    fn heard_load(&self, ppm: u64);
}

#[cfg(test)]
mod tests;
