//! What a store has counted for one key, for operators who look into it.

use crate::algorithm::Pace;

/// What a store has counted for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// One for each pace that it was charged at, and so at least one; what leaves the least comes
    /// first.
    pub paces: Vec<Pace>,
    /// Microseconds until it is as good as never used; `None` where that never comes by itself.
    pub ends_in_us: Option<u64>,
}

impl KeyUsage {
    /// From what is known of each pace, in any order.
    #[must_use]
    pub fn new(mut paces: Vec<Pace>, ends_in_us: Option<u64>) -> Self {
        paces.sort_by_key(|pace| pace.reading.available);
        Self { paces, ends_in_us }
    }
}
