//! What all servers of one deployment share: its key names, clock, caches and counts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tidegate::clock::SystemClock;
use tokio::sync::watch;

use super::idempotency::{IdempotencyKey, IdempotencyPool};
use crate::config::{Config, Endpoints};
use crate::negative_cache::NegativeCache;
use crate::script::{self, Time};
use crate::{keys, lock, slot};

/// What all servers of a deployment share.
pub(crate) struct Deployment {
    /// What the names of all keys begin with.
    pub(crate) key_prefix: Arc<str>,
    /// What the names of the deployment's own keys begin with, those of no limit.
    pub(crate) own_prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) clock: SystemClock,
    pub(crate) cache: Arc<NegativeCache>,
    pub(super) idempotency: IdempotencyPool,
    /// True if keys lie in several slots.
    pub(crate) is_sharded: bool,
    /// Notified whenever a server's state or the list of servers changes.
    pub(crate) news: watch::Sender<()>,
    /// A digest of the secret that this node hashes keys with, once that is certain.
    pub(crate) digest: OnceLock<String>,
    /// How many nodes have another digest.
    pub(crate) foreign_nodes: AtomicU32,
    pub(crate) configured_nodes: u32,
    /// How many nodes the last heartbeat saw; zero before the first.
    pub(crate) seen_nodes: AtomicU32,
    /// The clock of script calls, which tests set.
    pub(super) time: Mutex<Time>,
}

impl Deployment {
    pub(super) fn new(config: &Config) -> Self {
        let key_prefix = config.key_prefix();
        let is_cluster = matches!(config.endpoints, Endpoints::Cluster { .. });
        let is_sharded = is_cluster && config.tag.is_none();
        Self {
            own_prefix: keys::own_prefix(&key_prefix, is_sharded),
            key_prefix,
            timeout: config.timeout,
            clock: SystemClock::new(),
            cache: Arc::default(),
            idempotency: IdempotencyPool::new(),
            is_sharded,
            news: watch::Sender::new(()),
            digest: OnceLock::new(),
            foreign_nodes: AtomicU32::new(0),
            configured_nodes: config.nodes,
            seen_nodes: AtomicU32::new(0),
            time: Mutex::new(Time::Server),
        }
    }

    /// How many nodes the last heartbeat saw; `None` before the first.
    pub(super) fn live_nodes(&self) -> Option<u32> {
        Some(self.seen_nodes.load(Ordering::Relaxed)).filter(|nodes| *nodes > 0)
    }

    /// The first argument of every script call.
    pub(super) fn header(&self, idempotency: Option<&IdempotencyKey<'_>>) -> Vec<u8> {
        script::header(*lock(&self.time), idempotency.map(|key| key.number))
    }

    /// The Redis key of an idempotency key, in the same slot as all other keys of the call.
    pub(super) fn idempotency_key(&self, key: &IdempotencyKey<'_>, slot: u16) -> Vec<u8> {
        let name = key.name();
        if self.is_sharded {
            return keys::idempotency(&self.key_prefix, &format!("{{{}}}:{name}", slot::tag(slot)));
        }
        keys::idempotency(&self.key_prefix, &name)
    }
}
