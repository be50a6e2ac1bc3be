//! The state of the store, for status, metrics and logs.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::breaker::BreakerState;
use crate::connection::Reason;
use crate::store::ShardStatus;

/// The error of a server that was not reached since the start.
pub(crate) const UNREACHED: &str = "it was not reached yet";

/// The state of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// One for each server; one for all configured servers while a cluster has not answered yet.
    pub shards: Vec<ShardHealth>,
    /// How many charges stand that should have been given back: those of cross-slot requests that lost
    /// a race and could not refund.
    pub lost_refunds: u64,
    /// How many nodes the last heartbeat saw, this one included; `None` before the first.
    pub nodes: Option<u32>,
    /// The refusals that this node gives without asking.
    pub negative_cache: NegativeCacheHealth,
    /// How many nodes hash keys with another secret than this one.
    pub foreign_nodes: u32,
}

/// The state of the negative cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegativeCacheHealth {
    /// True while this node receives the invalidations of others; it caches nothing otherwise.
    pub subscribed: bool,
    /// How many refusals are cached, expired ones included.
    pub refusals: usize,
    /// How many requests the cache answered.
    pub hits: u64,
    /// How many messages were received.
    pub messages: u64,
}

impl Health {
    /// The worst of the shards' states.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        let states = self.shards.iter().map(|shard| shard.state);
        states.max_by_key(|state| state.severity()).unwrap_or(BreakerState::Open)
    }

    /// When the state of any shard last changed, in microseconds since the Unix epoch.
    #[must_use]
    pub fn since_us(&self) -> u64 {
        self.shards.iter().map(|shard| shard.since_us).max().unwrap_or_default()
    }

    /// How often a shard was lost. A loss between two readings of the state shows only here.
    #[must_use]
    pub fn losses(&self) -> u64 {
        let changes = self.shards.iter().flat_map(|shard| shard.changes);
        changes.filter(|(state, _)| *state == BreakerState::Open).map(|(_, times)| times).sum()
    }

    /// The last error of the first shard that has one.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        let shown = |shard: &ShardHealth| {
            let error = shard.last_error.as_ref()?;
            Some(format!("{}: {error}", shard.address))
        };
        let unreached = (!self.state().allows_calls()).then(|| UNREACHED.to_owned());
        self.shards.iter().find_map(shown).or(unreached)
    }
}

/// The state of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardHealth {
    /// Its host and port.
    pub address: String,
    /// The state of its breaker.
    pub state: BreakerState,
    /// Since when, in microseconds since the Unix epoch.
    pub since_us: u64,
    /// Why the last call failed, if any did.
    pub last_error: Option<String>,
    /// How many commands were to be sent, answered or not.
    pub commands: u64,
    /// In how many calls they travelled.
    pub calls: u64,
    /// How often a call was sent again because its connection broke.
    pub resends: u64,
    /// How many commands were not answered, by reason.
    pub errors: [(Reason, u64); Reason::ALL.len()],
    /// How often each state was entered.
    pub changes: [(BreakerState, u64); BreakerState::ALL.len()],
    /// How many commands wait to be sent.
    pub queued: usize,
    /// How long the last answered call took.
    pub latency_us: u64,
}

impl ShardHealth {
    /// The last error; also that of a server which was not reached since the start.
    #[must_use]
    pub fn reported_error(&self) -> Option<String> {
        let unreached = || (!self.state.allows_calls()).then(|| UNREACHED.to_owned());
        self.last_error.clone().or_else(unreached)
    }
}

/// The counters of one server.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commands: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) resends: AtomicU64,
    pub(crate) latency_us: AtomicU64,
    errors: [AtomicU64; Reason::ALL.len()],
    changes: [AtomicU64; BreakerState::ALL.len()],
}

impl Counters {
    pub(crate) fn count_failure(&self, reason: Reason) {
        self.errors[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_change(&self, state: BreakerState) {
        self.changes[state as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn health(
        &self,
        address: String,
        status: &ShardStatus,
        last_error: Option<String>,
        queued: usize,
    ) -> ShardHealth {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShardHealth {
            address,
            state: status.state,
            since_us: status.since_us,
            last_error,
            commands: load(&self.commands),
            calls: load(&self.calls),
            resends: load(&self.resends),
            errors: Reason::ALL.map(|reason| (reason, load(&self.errors[reason as usize]))),
            changes: BreakerState::ALL.map(|state| (state, load(&self.changes[state as usize]))),
            queued,
            latency_us: load(&self.latency_us),
        }
    }
}
