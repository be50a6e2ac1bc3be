//! The servers of a deployment, and which of them has a slot.
//!
//! A single server, or the one that sentinels name, has all slots. A cluster tells which server has
//! which; `slot_refresh` asks it.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::deployment::Deployment;
use super::shard::{Shard, ShardStatus};
use super::shard_handle::ShardHandle;
use crate::breaker::BreakerState;
use crate::config::{Config, Endpoints, Server};
use crate::connection::{Connection, Dialer, Failure, Reason, Target};
use crate::health::{Counters, ShardHealth};
use crate::slot::{self, SLOTS};
use crate::{keys, lock};

/// The index of no server.
const NO_OWNER: u16 = u16::MAX;
const UNREACHED: &str = "the cluster was not reached yet";

/// All servers of a deployment.
pub(crate) struct Topology {
    pub(crate) deployment: Arc<Deployment>,
    pub(crate) dialer: Dialer,
    /// Where the server is, if there is only one.
    only_target: Option<Target>,
    /// The configured servers of a cluster; empty without a cluster.
    pub(super) seeds: Vec<Server>,
    /// The servers as the configuration names them, and since when they are searched for.
    pub(super) address: String,
    since_us: u64,
    /// The slot that all keys lie in, where there is only one.
    pub(super) only_slot: Option<u16>,
    /// The slot of the deployment's own keys.
    pub(super) own_slot: u16,
    map: ArcSwap<SlotMap>,
    /// Held while the map is replaced.
    replacing: Mutex<()>,
    /// Notified when the map may be out of date.
    pub(super) stale: Notify,
    /// Why the map could not be refreshed.
    refresh_error: Mutex<Option<String>>,
    /// Counts commands for which there was no server.
    counters: Counters,
    /// The deployment's secret, once this node asked for it.
    pub(crate) secret: OnceLock<[u8; 16]>,
    /// Charges that could not be given back.
    pub(super) lost_refunds: AtomicU64,
}

/// Which server has which slot.
#[derive(Clone)]
struct SlotMap {
    shards: Vec<Arc<ShardHandle>>,
    /// The owner of each slot, as an index of `shards`; empty where the first has all slots.
    owners: Vec<u16>,
    /// All servers that know the map, replicas included.
    servers: Vec<Server>,
}

/// A range of slots, as a cluster reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Server,
    pub(super) replicas: Vec<Server>,
}

impl Topology {
    /// Starts to connect to a single server. The servers of a cluster are discovered by
    /// [`keep_slots_current`](Self::keep_slots_current).
    pub(super) fn start(config: &Config) -> Self {
        let deployment = Arc::new(Deployment::new(config));
        let dialer = Dialer::new(config);
        let only_target = Target::single(&config.endpoints, &dialer);
        let shard = only_target.clone().map(|target| {
            let connection = Connection::start(&dialer, target);
            let shard = Shard::new(config.address(), connection, Arc::clone(&deployment));
            shard.set_probe_slot(Some(0));
            ShardHandle::start(shard, None)
        });
        let seeds = match &config.endpoints {
            Endpoints::Cluster { seeds } => seeds.clone(),
            Endpoints::Single(_) | Endpoints::Sentinel { .. } => Vec::new(),
        };
        let is_cluster = !seeds.is_empty();
        let own_slot = if is_cluster { slot::of(&keys::secret(&deployment.own_prefix)) } else { 0 };
        let shards = shard.into_iter().collect();
        Self {
            since_us: deployment.clock.steady_us(),
            deployment,
            dialer,
            only_target,
            seeds,
            address: config.address(),
            only_slot: (!is_cluster || config.tag.is_some()).then_some(own_slot),
            own_slot,
            map: ArcSwap::from_pointee(SlotMap { shards, owners: Vec::new(), servers: Vec::new() }),
            replacing: Mutex::default(),
            stale: Notify::new(),
            refresh_error: Mutex::default(),
            counters: Counters::default(),
            secret: OnceLock::new(),
            lost_refunds: AtomicU64::new(0),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        !self.seeds.is_empty()
    }

    /// The servers that have slots, as far as they are known.
    pub(crate) fn shards(&self) -> Vec<Arc<ShardHandle>> {
        self.map.load().shards.clone()
    }

    pub(super) fn shard_of_slot(&self, slot: u16) -> Result<Arc<ShardHandle>, Failure> {
        let map = self.map.load();
        let owner = match map.owners.get(usize::from(slot)) {
            None => map.shards.first(),
            Some(owner) => map.shards.get(usize::from(*owner)),
        };
        owner.cloned().ok_or_else(|| self.no_owner(slot, &map))
    }

    /// The server that has the state of this name.
    pub(crate) fn shard_of_name(&self, name: &str) -> Result<Arc<ShardHandle>, Failure> {
        let slot_of = || slot::of(&keys::named(&self.deployment.key_prefix, name));
        self.shard_of_slot(self.only_slot.unwrap_or_else(slot_of))
    }

    /// The server that has the deployment's own keys.
    pub(crate) fn own_shard(&self) -> Result<Arc<ShardHandle>, Failure> {
        self.shard_of_slot(self.own_slot)
    }

    /// Any server that receives published messages.
    pub(crate) async fn any_server(&self) -> Result<Server, Failure> {
        if let Some(target) = &self.only_target {
            return target.find().await;
        }
        let known = self.servers();
        let servers = if known.is_empty() { &self.seeds } else { &known };
        fastrand::choice(servers).cloned().ok_or_else(Failure::no_server)
    }

    /// All servers that know the map.
    pub(super) fn servers(&self) -> Vec<Server> {
        self.map.load().servers.clone()
    }

    /// The handle of a server, which is added if it is new.
    pub(super) fn shard_at(&self, server: &Server) -> Arc<ShardHandle> {
        let _replacing = lock(&self.replacing);
        let map = self.map.load();
        if let Some(handle) = map.shards.iter().find(|handle| handle.is_at(server)) {
            return Arc::clone(handle);
        }
        let mut map = SlotMap::clone(&map);
        let handle = self.new_shard(server);
        map.shards.push(Arc::clone(&handle));
        self.map.store(Arc::new(map));
        handle
    }

    /// Assigns a slot to a server, as a redirection says. The whole map is refreshed soon.
    pub(super) fn assign_slot(&self, slot: u16, server: &Server) -> Arc<ShardHandle> {
        let handle = self.shard_at(server);
        let _replacing = lock(&self.replacing);
        let mut map = SlotMap::clone(&self.map.load());
        let index = map.shards.iter().position(|known| Arc::ptr_eq(known, &handle));
        let owner = map.owners.get_mut(usize::from(slot));
        if let (Some(index), Some(owner)) = (index, owner) {
            *owner = u16::try_from(index).unwrap_or(NO_OWNER);
            self.map.store(Arc::new(map));
        }
        self.stale.notify_one();
        handle
    }

    /// Installs the map that the cluster reports. Servers without slots are dropped.
    pub(super) fn install(&self, ranges: &[SlotRange]) {
        let _replacing = lock(&self.replacing);
        let before = self.map.load();
        let mut shards: Vec<Arc<ShardHandle>> = Vec::new();
        let mut owners = vec![NO_OWNER; usize::from(SLOTS)];
        let mut servers: Vec<Server> = Vec::new();
        for range in ranges {
            let index = shards.iter().position(|handle| handle.is_at(&range.primary));
            let index = index.unwrap_or_else(|| {
                let known = before.shards.iter().find(|handle| handle.is_at(&range.primary));
                shards.push(known.cloned().unwrap_or_else(|| self.new_shard(&range.primary)));
                shards.len() - 1
            });
            let slots = usize::from(range.first)..=usize::from(range.last);
            if let Some(slots) = owners.get_mut(slots) {
                slots.fill(u16::try_from(index).unwrap_or(NO_OWNER));
            }
            for server in [&range.primary].into_iter().chain(&range.replicas) {
                if !servers.contains(server) {
                    servers.push(server.clone());
                }
            }
        }
        for (index, handle) in shards.iter().enumerate() {
            handle.shard.set_probe_slot(self.probe_slot(index, &owners));
        }
        self.map.store(Arc::new(SlotMap { shards, owners, servers }));
        *lock(&self.refresh_error) = None;
        self.deployment.news.send_replace(());
    }

    /// A slot of this server that a probe can write into.
    fn probe_slot(&self, index: usize, owners: &[u16]) -> Option<u16> {
        let is_owned = |slot: &u16| {
            owners.get(usize::from(*slot)).is_some_and(|owner| usize::from(*owner) == index)
        };
        match self.only_slot {
            Some(slot) => Some(slot).filter(is_owned),
            None => (0..SLOTS).find(is_owned),
        }
    }

    /// The cluster could not be asked for its map.
    pub(super) fn note_refresh_failure(&self, failure: &Failure) {
        *lock(&self.refresh_error) = Some(failure.error.detail.clone());
        self.deployment.news.send_replace(());
    }

    pub(super) fn health(&self) -> Vec<ShardHealth> {
        let shards = self.shards();
        if !shards.is_empty() {
            return shards.iter().map(|handle| handle.health()).collect();
        }
        // No server of the cluster has answered yet.
        let error = lock(&self.refresh_error).clone().unwrap_or_else(|| UNREACHED.to_owned());
        let status = ShardStatus { state: BreakerState::Open, since_us: self.since_us };
        vec![self.counters.health(self.address.clone(), &status, Some(error), 0)]
    }

    /// The worst of the servers' states.
    pub(super) fn status(&self) -> ShardStatus {
        let shards = self.shards();
        let statuses = shards.iter().map(|handle| handle.shard.status().borrow().clone());
        let worst = statuses.max_by_key(|status| (status.state.severity(), status.since_us));
        worst.unwrap_or(ShardStatus { state: BreakerState::Open, since_us: self.since_us })
    }

    fn new_shard(&self, server: &Server) -> Arc<ShardHandle> {
        let connection = Connection::start(&self.dialer, Target::Server(server.clone()));
        let shard = Shard::new(server.to_string(), connection, Arc::clone(&self.deployment));
        ShardHandle::start(shard, Some(server.clone()))
    }

    fn no_owner(&self, slot: u16, map: &SlotMap) -> Failure {
        let detail = match lock(&self.refresh_error).clone() {
            Some(error) => format!("nobody says who has which slot: {error}"),
            None if map.shards.is_empty() => UNREACHED.to_owned(),
            None => format!("no server has the slot {slot}"),
        };
        self.counters.count_failure(Reason::Open);
        self.stale.notify_one();
        Failure::new(Reason::Open, true, detail)
    }
}
