//! How a store is, for status, metrics and logs.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::breaker::State;
use crate::connection::Reason;

/// How a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// One for each server that is asked; one of all servers that were named, while it is not known
    /// which there are.
    pub shards: Vec<ShardHealth>,
    /// How many charges stand that should have been given back: those of requests whose limits lie in
    /// several slots of a cluster, which lost a race and could not say so.
    pub lost_refunds: u64,
    /// How many nodes were last seen alive, this one included; `None` before any was.
    pub nodes: Option<u32>,
    /// The refusals that this node gives without asking.
    pub known: KnownHealth,
    /// How many nodes hash keys with another secret than this one.
    pub strangers: u32,
}

/// What becomes of refusals that are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownHealth {
    /// Whether this node hears what others change; without that nothing is remembered.
    pub hears: bool,
    /// How many are remembered, those that are over included.
    pub refusals: usize,
    /// How many requests they answered.
    pub answered: u64,
    /// How many messages of changes were heard.
    pub heard: u64,
}

impl Health {
    /// The worst of the shards' states: what a user of some key may meet.
    #[must_use]
    pub fn state(&self) -> State {
        let states = self.shards.iter().map(|shard| shard.state);
        states.max_by_key(|state| state.badness()).unwrap_or(State::Open)
    }

    /// When the state of any shard last changed, in microseconds since the Unix epoch.
    #[must_use]
    pub fn since_us(&self) -> u64 {
        self.shards.iter().map(|shard| shard.since_us).max().unwrap_or_default()
    }

    /// How often one of the shards was lost. A loss between two looks at the state shows only here.
    #[must_use]
    pub fn losses(&self) -> u64 {
        let changes = self.shards.iter().flat_map(|shard| shard.changes);
        changes.filter(|(state, _)| *state == State::Open).map(|(_, times)| times).sum()
    }

    /// What went wrong last, on the first shard that has an error to show.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        let shown = |shard: &ShardHealth| {
            let error = shard.last_error.as_ref()?;
            Some(format!("{}: {error}", shard.address))
        };
        let unreached = (!self.state().asks()).then(|| UNREACHED.to_owned());
        self.shards.iter().find_map(shown).or(unreached)
    }
}

/// The error of a server that was not reached since the start.
pub(crate) const UNREACHED: &str = "it was not reached yet";

/// How one server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardHealth {
    /// Its host and port.
    pub address: String,
    /// What it is thought to be.
    pub state: State,
    /// Since when, in microseconds since the Unix epoch.
    pub since_us: u64,
    /// Why the last call failed, if any did.
    pub last_error: Option<String>,
    /// How many decisions and corrections were asked for, answered or not.
    pub asks: u64,
    /// In how many calls they travelled.
    pub calls: u64,
    /// How often a call was sent again because its connection broke.
    pub again: u64,
    /// How many were not answered, by reason.
    pub errors: [(Reason, u64); Reason::ALL.len()],
    /// How often each state was entered.
    pub changes: [(State, u64); State::ALL.len()],
    /// How many wait to be sent.
    pub queued: usize,
    /// How long the last call took that was answered.
    pub latency_us: u64,
}

impl ShardHealth {
    /// The last error; also of a server that was not reached since the start.
    #[must_use]
    pub fn reported_error(&self) -> Option<String> {
        let unreached = || (!self.state.asks()).then(|| UNREACHED.to_owned());
        self.last_error.clone().or_else(unreached)
    }
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) asks: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) again: AtomicU64,
    pub(crate) latency_us: AtomicU64,
    errors: [AtomicU64; Reason::ALL.len()],
    changes: [AtomicU64; State::ALL.len()],
}

impl Counters {
    pub(crate) fn failed(&self, reason: Reason) {
        self.errors[reason.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn changed(&self, state: State) {
        self.changes[state.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn errors(&self) -> [(Reason, u64); Reason::ALL.len()] {
        Reason::ALL.map(|reason| (reason, self.errors[reason.index()].load(Ordering::Relaxed)))
    }

    pub(crate) fn changes(&self) -> [(State, u64); State::ALL.len()] {
        State::ALL.map(|state| (state, self.changes[state.index()].load(Ordering::Relaxed)))
    }
}
