//! The store that nodes share.

mod cluster;
mod common;
mod lanes;
mod member;
mod parts;
mod routing;
mod secret;
mod sending;
mod several;
mod shard;
mod topology;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate::clock::{Now, SystemClock};
use tidegate::plan::Plan;
use tidegate::store::{Amended, Amendment, Answer, Store, StoreError, Tables};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use shard::Status;

use crate::codec::{Ask, Told};
use crate::config::Config;
use crate::connection::Failure;
use crate::health::Health;
use crate::known::{self, Announcer, Changed, Known, Listener, keep_announcing};
use crate::leases::{LeaseHealth, Leases};
use crate::marks::{Keeper, MarkChange, Queue, Replica, Teller};
use crate::script::Time;
use crate::{heartbeat, keys};
use common::Common;
pub(crate) use member::Member;
use parts::parts;
pub use parts::refunds;
use routing::Slots;
pub(crate) use secret::written;
pub(crate) use shard::Shard;
pub(crate) use topology::Topology;

/// Corrections that were not made, as far as anybody knows.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Uncorrected {
    /// What happened.
    pub error: StoreError,
    /// Whether they were sent, so that they may have been made: a refund must not be sent again then.
    pub sent: bool,
    /// Which they are.
    pub rest: Vec<Amendment>,
}

/// A store on Redis or Valkey. Clones share it; the last one to go ends it.
///
/// Nothing waits longer than the timeout of its [`Config`]. While the server is lost everything
/// fails at once, and it is found again in the background.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    topology: Arc<Topology>,
    timeout: Duration,
    nodes: watch::Receiver<u32>,
    status: watch::Receiver<Status>,
    known: Arc<Known>,
    leases: Arc<Leases>,
    announcer: Arc<Announcer>,
    marks: Arc<Queue>,
    clock: SystemClock,
    address: String,
    /// What goes on in the background, and ends with this.
    _tasks: JoinSet<()>,
    sharing: OnceLock<JoinSet<()>>,
}

impl RedisStore {
    /// Starts to connect, on the runtime that this is called on. It never fails: without a server it
    /// starts open, and recovers when there is one.
    #[must_use]
    pub fn connect(config: &Config) -> Self {
        let topology = Arc::new(Topology::start(config, Arc::new(Common::new(config))));
        let (count, nodes) = watch::channel(config.nodes);
        let (publish, status) = watch::channel(topology.status());
        let mut tasks = JoinSet::new();
        if topology.is_cluster() {
            tasks.spawn(Arc::clone(&topology).keep_up());
        }
        tasks.spawn(heartbeat::keep_beating(Arc::clone(&topology), count));
        tasks.spawn(keep_telling(Arc::clone(&topology), publish));
        let (known, (announcer, announcing)) = (Arc::<Known>::default(), Announcer::new());
        let announcer = Arc::new(announcer);
        let told = (Arc::clone(&known), Arc::clone(&announcer));
        // Set once, here.
        _ = topology.refunded.set(Box::new(move |amendments| {
            for changed in known::changes(amendments) {
                told.0.forget(&changed);
                told.1.announce(changed);
            }
        }));
        let channel = keys::changes(&config.front());
        tasks.spawn(keep_announcing(announcing, Arc::clone(&topology), channel.clone()));
        let marks = Arc::<Queue>::default();
        let listener = Listener {
            topology: Arc::clone(&topology),
            channel,
            known: Arc::clone(&known),
            marks_channel: keys::marks_changed(&config.front()),
            marks: Arc::clone(&marks),
        };
        tasks.spawn(listener.keep_listening());
        let inner = Inner {
            topology,
            timeout: config.timeout,
            nodes,
            status,
            known,
            leases: Arc::new(Leases::new(config.nodes)),
            announcer,
            marks,
            clock: SystemClock::new(),
            address: config.address(),
            _tasks: tasks,
            sharing: OnceLock::new(),
        };
        let inner = Arc::new(inner);
        let (keeper, weak) = (Arc::clone(&inner.leases), Arc::downgrade(&inner));
        tokio::spawn(keeper.keep(move || weak.upgrade().map(|inner| Self { inner })));
        Self { inner }
    }

    /// Waits until all servers can be asked; `false` if they cannot be by then.
    pub async fn ready(&self, within: Duration) -> bool {
        let mut status = self.status();
        let asks = status.wait_for(|status| status.state.asks());
        tokio::time::timeout(within, asks).await.is_ok_and(|status| status.is_ok())
    }

    /// Whether asks are carried out in the order in which they are made: all keys lie in one slot.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        self.inner.topology.only_slot.is_some()
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> Health {
        let Inner { topology, nodes, known, .. } = &*self.inner;
        let nodes = nodes.has_changed().is_ok_and(|heard| heard).then(|| *nodes.borrow());
        let lost_refunds = topology.lost_refunds.load(Ordering::Relaxed);
        let strangers = topology.common.strangers.load(Ordering::Relaxed);
        Health { shards: topology.health(), lost_refunds, nodes, known: known.health(), strangers }
    }

    /// What this node has borrowed of leased limits.
    #[must_use]
    pub fn leases(&self) -> LeaseHealth {
        self.inner.leases.health()
    }

    /// Gives back what this node has borrowed of leased limits, borrows nothing any more, and tells of
    /// marks that the store does not know yet: for a node that is about to end.
    pub async fn close(&self) {
        if self.inner.sharing.get().is_some() {
            self.teller().finish().await;
        }
        self.inner.leases.close(self).await;
    }

    /// Tells of every change of the worst of its servers' states, as far as somebody looks in between.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.inner.status.clone()
    }

    /// How many nodes are alive: as the configuration says, until the store tells.
    #[must_use]
    pub fn nodes(&self) -> watch::Receiver<u32> {
        self.inner.nodes.clone()
    }

    /// The deployment's secret, which the first node makes and all keep: once known, it is also put
    /// back where a server loses it.
    ///
    /// # Errors
    /// It cannot be had in time, or something else stands in its place.
    pub async fn secret(&self, within: Duration) -> Result<[u8; 16], StoreError> {
        self.inner.topology.secret(Instant::now() + within).await
    }

    /// Says what this node hashes keys with, so that nodes that use something else are noticed: a
    /// digest that gives nothing away. It is said once.
    pub fn hashes_with(&self, digest: &str) {
        _ = self.inner.topology.common.digest.set(digest.to_owned());
    }

    /// Tells all nodes what was changed otherwise than by [amending](Store::amend), so that none
    /// refuses any longer what is admitted again. Nobody waits for it.
    pub fn changed(&self, changed: Changed) {
        self.inner.known.forget(&changed);
        self.inner.announcer.announce(changed);
    }

    /// Keeps the marks of this node and those of all others the same from now on; once in the life of
    /// a store. Tells when this node knows all that the others do.
    pub fn share_marks(&self, replica: Arc<dyn Replica>) -> watch::Receiver<bool> {
        let (whole, told) = watch::channel(false);
        let keeper = Keeper::new(self.teller(), replica, whole);
        let mut tasks = JoinSet::new();
        tasks.spawn(keeper.keep());
        // Who comes second is dropped, and with it ends its task.
        _ = self.inner.sharing.set(tasks);
        told
    }

    /// Tells all nodes of a mark that has changed here, soon, and if the store is lost, once it is back.
    pub fn mark_changed(&self, change: MarkChange) {
        self.inner.marks.push(change);
    }

    /// Lets all further asks go by this clock instead of the server's; for tests.
    #[doc(hidden)]
    pub fn go_by(&self, time: Time) {
        self.inner.known.switch_off();
        self.inner.topology.common.go_by(time);
    }

    /// Makes corrections, as [amending](Store::amend) does, and tells of those that were not made
    /// whether they may have been all the same.
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn correct(&self, amendments: &[Amendment]) -> Result<Amended, Uncorrected> {
        let leases = &self.inner.leases;
        let here: Vec<bool> = amendments.iter().map(|one| leases.could_amend(one)).collect();
        let rest = amendments.iter().zip(&here).filter(|(_, here)| !**here);
        let rest: Vec<Amendment> = rest.map(|(amendment, _)| amendment.clone()).collect();
        if rest.is_empty() {
            return Ok(amendments.iter().map(|one| leases.amend(one)).collect());
        }
        let told = self.ask(|| Ask::Amend(rest.clone())).await;
        // Whether it was answered or not: it may have been carried out.
        known::changes(amendments).for_each(|changed| self.changed(changed));
        match told {
            Ok(Told::Amended(amended)) => {
                let mut told = amended.into_iter();
                // Not before: who hears of an error makes all of them again.
                let made = amendments.iter().zip(here).map(|(one, here)| {
                    if here { leases.amend(one) } else { told.next().unwrap_or(false) }
                });
                Ok(made.collect())
            }
            Ok(_) => Err(uncorrected(Failure::unreadable("an answer to something else"), rest)),
            Err(failure) => Err(uncorrected(failure, rest)),
        }
    }

    /// Asks for all of a plan.
    async fn decide_exactly(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let Inner { known, clock, .. } = &*self.inner;
        let asking = known.asking(clock.steady_us());
        match self.ask(|| Ask::Decide(plan.clone())).await {
            Ok(Told::Decided(answer)) => {
                known.note(plan, &answer, asking, clock.steady_us());
                Ok(answer)
            }
            Ok(_) => Err(Failure::unreadable("an answer to something else").error),
            Err(failure) => Err(failure.error),
        }
    }

    /// Asks for what leases do not cover of a plan.
    async fn decide_leased(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let Inner { known, leases, clock, .. } = &*self.inner;
        let mut begun = leases.begin(plan);
        if let Some(answer) = begun.done {
            return Ok(answer);
        }
        for loan in std::mem::take(&mut begun.first) {
            leases.tell(self, loan);
        }
        if let Some(rest) = &begun.rest
            && let Some(answer) = known.recall(rest, || clock.steady_us())
        {
            return leases.finish(plan, &begun, Ok(answer));
        }
        let answered = self.decide_exactly(begun.rest.as_ref().unwrap_or(plan)).await;
        leases.finish(plan, &begun, answered)
    }

    fn teller(&self) -> Teller {
        let Inner { topology, marks, .. } = &*self.inner;
        let channel = keys::marks_changed(&topology.common.front);
        Teller { topology: Arc::clone(topology), channel, queue: Arc::clone(marks) }
    }

    /// The servers.
    pub(crate) fn topology(&self) -> &Topology {
        &self.inner.topology
    }

    /// Asks whoever has the keys, in as many calls as that takes.
    pub(crate) async fn ask(&self, ask: impl FnOnce() -> Ask) -> Result<Told, Failure> {
        let Inner { topology, timeout, .. } = &*self.inner;
        let (ask, deadline) = (Arc::new(ask()), Instant::now() + *timeout);
        match topology.slots_of(&ask) {
            Slots::One(slot) => topology.ask_one(slot, ask, deadline).await,
            Slots::Several(slots) => {
                Box::pin(topology.ask_several(&ask, &parts(&slots), deadline)).await
            }
        }
    }
}

/// Tells of the worst of the servers' states whenever any changes.
async fn keep_telling(topology: Arc<Topology>, publish: watch::Sender<Status>) {
    let mut news = topology.common.news.subscribe();
    loop {
        let status = topology.status();
        publish.send_if_modified(|told| {
            *told != status && {
                *told = status;
                true
            }
        });
        // The sender lives as long as this does.
        if news.changed().await.is_err() {
            return;
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({})", self.inner.address)
    }
}

impl RedisStore {
    /// Decides a plan from the tokens that this node has borrowed; `None` where the server must be asked.
    #[must_use]
    pub fn decide_at_once(&self, plan: &Plan) -> Option<Answer> {
        self.inner.leases.at_once(plan)
    }
}

impl Store for RedisStore {
    fn names_keys(&self) -> bool {
        true
    }

    fn try_decide(
        &self,
        plan: &Plan,
        _: Option<&Tables>,
        answer: &mut Answer,
    ) -> Option<Result<(), StoreError>> {
        *answer = self.decide_at_once(plan)?;
        Some(Ok(()))
    }

    async fn decide(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let Inner { known, clock, .. } = &*self.inner;
        if let Some(answer) = known.recall(plan, || clock.steady_us()) {
            return Ok(answer);
        }
        if plan.levels.iter().any(|level| level.leased) {
            return Box::pin(self.decide_leased(plan)).await;
        }
        self.decide_exactly(plan).await
    }

    /// The server's clock holds, whatever `now` is.
    async fn amend(&self, _: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        self.correct(amendments).await.map_err(|uncorrected| uncorrected.error)
    }

    /// A server has no parts: what is meaningless expires.
    fn announce(&self, _: &[u64]) {}
}

fn uncorrected(failure: Failure, rest: Vec<Amendment>) -> Uncorrected {
    Uncorrected { sent: !failure.is_unsent(), error: failure.error, rest }
}

#[cfg(test)]
mod tests;
