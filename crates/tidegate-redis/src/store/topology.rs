//! Which servers there are, and which of them has a slot.
//!
//! A single server, or the one that sentinels name, has everything. A cluster tells who has what, and
//! is asked again whenever something points to its having changed, and now and then.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use tidegate::store::Amendment;
use tokio::sync::Notify;

use super::common::Common;
use super::member::Member;
use super::secret::Secret;
use super::shard::{Shard, Status, locked};
use crate::breaker::State;
use crate::config::{Config, Place, Server};
use crate::connection::{Connection, Dialer, Failure, Reason, Target};
use crate::health::{Counters, ShardHealth};
use crate::keys;
use crate::slot::{self, SLOTS};

/// The place of no server.
const NOBODY: u16 = u16::MAX;

/// All servers of a store.
pub(crate) struct Topology {
    pub(crate) common: Arc<Common>,
    pub(crate) dialer: Dialer,
    /// Where the server is, if there is only one.
    only: Option<Target>,
    /// Whom to ask for the others at first; nobody where there are no others.
    pub(super) seeds: Vec<Server>,
    /// The servers as the configuration names them, and since when they are looked for.
    address: String,
    since_us: u64,
    /// The slot that all keys lie in, where there is only one.
    pub(super) only_slot: Option<u16>,
    /// The slot of what belongs to the deployment as a whole.
    pub(super) own_slot: u16,
    map: ArcSwap<Map>,
    /// Held by whoever changes the map.
    changing: Mutex<()>,
    /// Something points to the map's being out of date.
    pub(super) stale: Notify,
    /// Why it could not be read.
    trouble: Mutex<Option<String>>,
    /// Asks for which there was no server.
    counters: Counters,
    /// The deployment's secret, once it was asked for.
    pub(super) secret: Secret,
    /// Charges that could not be given back.
    pub(super) lost_refunds: AtomicU64,
    /// Who is told of what was given back.
    pub(super) refunded: OnceLock<Refunded>,
}

/// Who is told of what was given back.
pub(super) type Refunded = Box<dyn Fn(&[Amendment]) + Send + Sync>;

/// Who has what.
#[derive(Clone)]
pub(crate) struct Map {
    members: Vec<Arc<Member>>,
    /// Who has each slot, by the place among the members; nothing where the first has all.
    owners: Vec<u16>,
    /// All servers that can be asked about the others, replicas included.
    pub(super) known: Vec<Server>,
}

/// A range of slots, as a cluster tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: Server,
    pub(super) replicas: Vec<Server>,
}

impl Range {
    fn servers(&self) -> impl Iterator<Item = &Server> {
        [&self.master].into_iter().chain(&self.replicas)
    }
}

impl Topology {
    /// Starts to connect to the server there is. Those of a cluster are still to be
    /// [found](Self::keep_up).
    pub(super) fn start(config: &Config, common: Arc<Common>) -> Self {
        let dialer = Dialer::new(config);
        let only = Target::only(&config.place, &dialer);
        let member = only.clone().map(|target| {
            let connection = Connection::start(&dialer, target);
            let shard = Shard::new(config.address(), connection, Arc::clone(&common));
            shard.is_home_of(Some(0));
            Member::start(shard, None)
        });
        let members = member.into_iter().collect();
        let seeds = match &config.place {
            Place::Cluster { seeds } => seeds.clone(),
            Place::Single(_) | Place::Sentinel { .. } => Vec::new(),
        };
        let (is_cluster, since_us) = (!seeds.is_empty(), common.clock.steady_us());
        let own_slot = if is_cluster { slot::of(&keys::secret(&common.own)) } else { 0 };
        Self {
            common,
            dialer,
            only,
            seeds,
            address: config.address(),
            since_us,
            only_slot: (!is_cluster || config.tag.is_some()).then_some(own_slot),
            own_slot,
            map: ArcSwap::from_pointee(Map { members, owners: Vec::new(), known: Vec::new() }),
            changing: Mutex::default(),
            stale: Notify::new(),
            trouble: Mutex::default(),
            counters: Counters::default(),
            secret: Secret::new(),
            lost_refunds: AtomicU64::new(0),
            refunded: OnceLock::new(),
        }
    }

    /// Whether keys lie in slots.
    pub(super) fn is_cluster(&self) -> bool {
        !self.seeds.is_empty()
    }

    /// The servers that have anything, as far as they are known.
    pub(crate) fn members(&self) -> Vec<Arc<Member>> {
        self.map.load().members.clone()
    }

    /// Who has a slot.
    pub(crate) fn member(&self, slot: u16) -> Result<Arc<Member>, Failure> {
        let map = self.map.load();
        let owner = match map.owners.get(usize::from(slot)) {
            None => map.members.first(),
            Some(owner) => map.members.get(usize::from(*owner)),
        };
        owner.cloned().ok_or_else(|| self.nobody(slot, &map))
    }

    /// Who has the state of this name.
    pub(crate) fn member_of(&self, name: &str) -> Result<Arc<Member>, Failure> {
        let slot =
            self.only_slot.unwrap_or_else(|| slot::of(&keys::named(&self.common.front, name)));
        self.member(slot)
    }

    /// Who has what belongs to the deployment as a whole.
    pub(crate) fn own_member(&self) -> Result<Arc<Member>, Failure> {
        self.member(self.own_slot)
    }

    /// What the names of all that belongs to the deployment as a whole begin with.
    pub(crate) fn own(&self) -> &str {
        &self.common.own
    }

    /// Any server that hears what others are told.
    pub(crate) async fn anybody(&self) -> Result<Server, Failure> {
        if let Some(only) = &self.only {
            return only.find().await;
        }
        let (known, seeds) = (self.known(), &self.seeds);
        let servers = if known.is_empty() { seeds } else { &known };
        let any = fastrand::choice(servers).cloned();
        any.ok_or_else(|| Failure::new(Reason::Connection, true, "there is nobody to ask"))
    }

    /// All servers that can be asked about the others.
    pub(super) fn known(&self) -> Vec<Server> {
        self.map.load().known.clone()
    }

    /// A server of the cluster, known or not.
    pub(super) fn meet(&self, server: &Server) -> Arc<Member> {
        let _changing = locked(&self.changing);
        let map = self.map.load();
        if let Some(member) = map.members.iter().find(|member| member.is(server)) {
            return Arc::clone(member);
        }
        let mut map = Map::clone(&map);
        let member = self.new_member(server);
        map.members.push(Arc::clone(&member));
        self.map.store(Arc::new(map));
        member
    }

    /// A slot is said to be there now. What else has changed is asked for.
    pub(super) fn moved(&self, slot: u16, to: &Server) -> Arc<Member> {
        let member = self.meet(to);
        let _changing = locked(&self.changing);
        let mut map = Map::clone(&self.map.load());
        let place = map.members.iter().position(|known| Arc::ptr_eq(known, &member));
        let owner = map.owners.get_mut(usize::from(slot));
        if let (Some(place), Some(owner)) = (place, owner) {
            *owner = u16::try_from(place).unwrap_or(NOBODY);
            self.map.store(Arc::new(map));
        }
        self.stale.notify_one();
        member
    }

    /// Goes by what the cluster says from now on. Servers that have nothing are let go.
    pub(super) fn install(&self, ranges: &[Range]) {
        let _changing = locked(&self.changing);
        let before = self.map.load();
        let mut members: Vec<Arc<Member>> = Vec::new();
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        for range in ranges {
            let place = members.iter().position(|member| member.is(&range.master));
            let place = place.unwrap_or_else(|| {
                let known = before.members.iter().find(|member| member.is(&range.master));
                members.push(known.cloned().unwrap_or_else(|| self.new_member(&range.master)));
                members.len() - 1
            });
            let slots = usize::from(range.first)..=usize::from(range.last);
            if let Some(slots) = owners.get_mut(slots) {
                slots.fill(u16::try_from(place).unwrap_or(NOBODY));
            }
        }
        for (place, member) in members.iter().enumerate() {
            member.shard.is_home_of(self.home_of(place, &owners));
        }
        let mut known: Vec<Server> = Vec::new();
        for server in ranges.iter().flat_map(Range::servers) {
            if !known.contains(server) {
                known.push(server.clone());
            }
        }
        self.map.store(Arc::new(Map { members, owners, known }));
        *locked(&self.trouble) = None;
        self.common.news.send_replace(());
    }

    /// A slot of the member at this place in which there may be keys.
    fn home_of(&self, place: usize, owners: &[u16]) -> Option<u16> {
        let owns = |slot: &u16| {
            owners.get(usize::from(*slot)).is_some_and(|owner| usize::from(*owner) == place)
        };
        match self.only_slot {
            Some(slot) => Some(slot).filter(owns),
            None => (0..SLOTS).find(owns),
        }
    }

    /// The cluster could not be asked who has what.
    pub(super) fn cannot_tell(&self, failure: &Failure) {
        *locked(&self.trouble) = Some(failure.error.detail.clone());
        self.common.news.send_replace(());
    }

    /// How all servers are.
    pub(super) fn health(&self) -> Vec<ShardHealth> {
        let members = self.members();
        if members.is_empty() {
            return vec![self.unknown()];
        }
        members.iter().map(|member| member.health()).collect()
    }

    /// The worst of the servers' states.
    pub(super) fn status(&self) -> Status {
        let members = self.members();
        let statuses = members.iter().map(|member| member.shard.status().borrow().clone());
        let worst = statuses.max_by_key(|status| (status.state.badness(), status.since_us));
        worst.unwrap_or(Status { state: State::Open, since_us: self.since_us })
    }

    fn new_member(&self, server: &Server) -> Arc<Member> {
        let connection = Connection::start(&self.dialer, Target::Server(server.clone()));
        let shard = Shard::new(server.to_string(), connection, Arc::clone(&self.common));
        Member::start(shard, Some(server.clone()))
    }

    /// What there is to say of a cluster that nobody has told of yet.
    fn unknown(&self) -> ShardHealth {
        let none = "the cluster was not reached yet".to_owned();
        ShardHealth {
            address: self.address.clone(),
            state: State::Open,
            since_us: self.since_us,
            last_error: Some(locked(&self.trouble).clone().unwrap_or(none)),
            asks: 0,
            calls: 0,
            again: 0,
            errors: self.counters.errors(),
            changes: self.counters.changes(),
            queued: 0,
            latency_us: 0,
        }
    }

    fn nobody(&self, slot: u16, map: &Map) -> Failure {
        let trouble = locked(&self.trouble).clone();
        let detail = match trouble {
            Some(trouble) => format!("nobody says who has which slot: {trouble}"),
            None if map.members.is_empty() => "the cluster was not reached yet".to_owned(),
            None => format!("no server has the slot {slot}"),
        };
        self.counters.failed(Reason::Open);
        self.stale.notify_one();
        Failure::new(Reason::Open, true, detail)
    }
}
