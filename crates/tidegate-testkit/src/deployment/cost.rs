//! The cost of calls for the store, by the measured figures.

use super::Counts;
use super::figures::{
    ALONE_NS, ASKS_MAX, BUSY_MAX, CALL_US, EACH_NS, FURTHER_LIMIT_NS, NODES, SECONDS,
    WARM_UP_SECONDS,
};

/// The cost of a deployment for its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Calls a second.
    pub asks_per_s: u64,
    /// The busy cores on single servers, in tenths: a node's calls travel together.
    pub single_tenths: u64,
    /// The number of single servers at an acceptable load.
    pub servers: u64,
    /// The same on a cluster, where only keys of one slot travel together, and where several slots are
    /// looked at and then charged one by one.
    pub cluster_tenths: u64,
    /// The number of primaries at an acceptable load.
    pub primaries: u64,
}

impl Cost {
    /// The cost of these counts.
    #[must_use]
    pub fn of(counted: &Counts) -> Self {
        let seconds = SECONDS - WARM_UP_SECONDS;
        let (asks, levels) = (counted.asks / seconds, counted.levels / seconds);
        let further = levels - asks;
        let together = (asks * CALL_US / 1_000_000 / u64::from(NODES)).clamp(1, ASKS_MAX);
        // The requests of a call share the fixed time of the call.
        let ask_ns = EACH_NS + (ALONE_NS - EACH_NS) / together;
        let single_ns = asks * ask_ns + further * FURTHER_LIMIT_NS;
        // A request with several limits is a look at each of them and a charge of each.
        let cluster_ns = (levels + counted.together / seconds) * ALONE_NS;
        Self {
            asks_per_s: asks,
            single_tenths: tenths(single_ns),
            servers: servers(single_ns),
            cluster_tenths: tenths(cluster_ns),
            primaries: servers(cluster_ns),
        }
    }
}

fn servers(ns: u64) -> u64 {
    (ns * 100).div_ceil(BUSY_MAX * 1_000_000_000)
}

/// Nanoseconds of CPU in a second, as tenths of a core.
fn tenths(ns: u64) -> u64 {
    ns / 100_000_000
}
