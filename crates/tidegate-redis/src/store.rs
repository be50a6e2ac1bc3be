//! The store that nodes share, as a [`Store`].

mod cross_slot;
mod deployment;
mod fragments;
mod idempotency;
mod routing;
mod secret;
mod send;
mod shard;
mod shard_handle;
mod slot_refresh;
mod topology;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tidegate::clock::Now;
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{Amendment, AmendmentResults, Answer, Store, StoreError, Tables};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub use fragments::refunds;
pub(crate) use secret::encode_secret;
pub(crate) use shard::Shard;
pub use shard::ShardStatus;
pub(crate) use shard_handle::ShardHandle;
pub(crate) use topology::Topology;

use crate::codec::{Command, Response};
use crate::config::Config;
use crate::connection::Failure;
use crate::health::Health;
use crate::loans::{self, LoanHealth, LoanTable};
use crate::negative_cache::{Subscriber, keep_publishing};
use crate::replication::{MarkChange, MarkPublisher, MarkReplica, Outbox, Replicator};
use crate::script::Time;
use crate::{heartbeat, keys, lock};
use deployment::Deployment;
use fragments::group_by_slot;
use routing::Slots;

/// Amendments that the store did not confirm.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AmendError {
    /// What happened.
    pub error: StoreError,
    /// True if they were sent, so that the store may have made them: a refund must not be repeated then.
    pub was_sent: bool,
    /// The amendments that are not confirmed. The others were made.
    pub amendments: Vec<Amendment>,
}

/// A store on Redis or Valkey. Clones share it; it ends with the last of them.
///
/// No call waits longer than the timeout of its [`Config`]. While a server is lost, calls to it fail at
/// once, and the connection is made again in the background.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    topology: Arc<Topology>,
    loans: Arc<LoanTable>,
    marks: Arc<Outbox>,
    /// The background tasks, which end with the store.
    _tasks: JoinSet<()>,
    replication: OnceLock<JoinSet<()>>,
}

impl RedisStore {
    /// Starts to connect, on the current runtime. This never fails: without a server the store begins
    /// as lost, and recovers when there is one.
    #[must_use]
    pub fn connect(config: &Config) -> Self {
        let topology = Arc::new(Topology::start(config));
        let (marks, mut tasks) = (Arc::<Outbox>::default(), JoinSet::new());
        if topology.is_cluster() {
            tasks.spawn(Arc::clone(&topology).keep_slots_current());
        }
        tasks.spawn(heartbeat::keep_beating(Arc::clone(&topology)));
        let Deployment { cache, key_prefix, .. } = &*topology.deployment;
        let channel = keys::changes(key_prefix);
        let publishing = keep_publishing(Arc::clone(cache), Arc::clone(&topology), channel.clone());
        tasks.spawn(publishing);
        let subscriber = Subscriber {
            topology: Arc::clone(&topology),
            channel,
            cache: Arc::clone(cache),
            marks_channel: keys::marks_changed(key_prefix),
            marks: Arc::clone(&marks),
        };
        tasks.spawn(subscriber.keep_subscribed());
        let inner = Arc::new(Inner {
            topology,
            loans: Arc::new(LoanTable::new(config.nodes)),
            marks,
            _tasks: tasks,
            replication: OnceLock::new(),
        });
        let loan_table = Arc::clone(&inner.loans);
        tokio::spawn(loans::keep_borrowing(Arc::downgrade(&inner), loan_table));
        Self { inner }
    }

    /// Waits until all servers can be asked; false if they cannot be within this time.
    pub async fn ready(&self, within: Duration) -> bool {
        self.wait_for(within, |status| status.state.allows_calls()).await
    }

    async fn wait_for(&self, within: Duration, condition: impl Fn(&ShardStatus) -> bool) -> bool {
        let mut news = self.inner.topology.deployment.news.subscribe();
        let waiting = async {
            while !condition(&self.status()) {
                // The sender lives as long as the store.
                _ = news.changed().await;
            }
        };
        timeout(within, waiting).await.is_ok()
    }

    /// The worst of its servers' states.
    #[must_use]
    pub fn status(&self) -> ShardStatus {
        self.inner.topology.status()
    }

    /// True if calls are carried out in the order in which they are made: all keys lie in one slot.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        self.inner.topology.only_slot.is_some()
    }

    /// The state of the store, for status and metrics.
    #[must_use]
    pub fn health(&self) -> Health {
        let (topology, deployment) = (&self.inner.topology, &self.inner.topology.deployment);
        Health {
            shards: topology.health(),
            lost_refunds: topology.lost_refunds.load(Ordering::Relaxed),
            nodes: deployment.live_nodes(),
            negative_cache: deployment.cache.health(),
            foreign_nodes: deployment.foreign_nodes.load(Ordering::Relaxed),
        }
    }

    /// What this node has borrowed of leased limits.
    #[must_use]
    pub fn loan_health(&self) -> LoanHealth {
        self.inner.loans.health()
    }

    /// How many nodes are alive: as configured, until the first heartbeat.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        let deployment = &self.inner.topology.deployment;
        deployment.live_nodes().unwrap_or(deployment.configured_nodes)
    }

    /// Returns all loans, borrows nothing any more, and publishes the marks that wait: for a node that
    /// is about to end.
    pub async fn close(&self) {
        if self.inner.replication.get().is_some() {
            self.mark_publisher().publish_last().await;
        }
        loans::return_all(self).await;
    }

    /// The deployment's secret, which the first node makes and all keep. A node that knows it puts it
    /// back where a server loses it.
    ///
    /// # Errors
    /// No server answers in time, or the key holds something else.
    pub async fn secret(&self, within: Duration) -> Result<[u8; 16], StoreError> {
        self.inner.topology.secret(Instant::now() + within).await
    }

    /// Sets a digest of this node's secret, which does not reveal it. Nodes with another digest are
    /// counted. It can be set once.
    pub fn set_secret_digest(&self, digest: &str) {
        _ = self.inner.topology.deployment.digest.set(digest.to_owned());
    }

    /// Keeps the marks of this node and of all others the same from now on; once in the life of a
    /// store. The receiver turns true when this node has all marks.
    pub fn replicate_marks(&self, replica: Arc<dyn MarkReplica>) -> watch::Receiver<bool> {
        let (is_complete, completion) = watch::channel(false);
        let replicator = Replicator::new(self.mark_publisher(), replica, is_complete);
        let mut tasks = JoinSet::new();
        tasks.spawn(replicator.run());
        // A second replicator is dropped, and its task ends.
        _ = self.inner.replication.set(tasks);
        completion
    }

    /// Sends a changed mark to all nodes soon; if the store is lost, once it is back.
    pub fn publish_mark(&self, change: MarkChange) {
        self.inner.marks.push(change);
    }

    /// Lets all further calls go by this clock instead of the server's; for tests.
    #[doc(hidden)]
    pub fn set_clock(&self, time: Time) {
        self.inner.topology.deployment.cache.disable();
        *lock(&self.inner.topology.deployment.time) = time;
    }

    /// Makes amendments as [`Store::amend`] does. An error says which may have been made all the same.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn try_amend(
        &self,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, AmendError> {
        let (loans, now_us) = (&self.inner.loans, self.now_us());
        let local: Vec<bool> = amendments.iter().map(|one| loans.can_amend(one, now_us)).collect();
        let remote = amendments.iter().zip(&local).filter(|(_, is_local)| !**is_local);
        let remote: Arc<[Amendment]> = remote.map(|(amendment, _)| amendment.clone()).collect();
        if remote.is_empty() {
            return Ok(amendments.iter().map(|one| loans.amend(one, now_us)).collect());
        }
        let response = self.execute(Command::Amend(Arc::clone(&remote))).await;
        // The store may have made them without an answer.
        self.inner.topology.deployment.cache.invalidate_amended(amendments);
        let amended = response.and_then(Response::into_amended).map_err(|failure| AmendError {
            was_sent: !failure.is_unsent(),
            error: failure.error,
            amendments: remote.to_vec(),
        })?;
        // Local amendments come last: after an error, the caller repeats all of them.
        let (mut amended, now_us) = (amended.into_iter(), self.now_us());
        let results = amendments.iter().zip(local).map(|(amendment, is_local)| {
            if is_local { loans.amend(amendment, now_us) } else { amended.next().unwrap_or(false) }
        });
        Ok(results.collect())
    }

    /// Decides a plan with the tokens that this node has borrowed; `None` where the server must be asked.
    #[must_use]
    pub fn decide_at_once(&self, plan: &Plan) -> Option<Answer> {
        let is_leased = plan.levels.iter().any(|level| level.leased);
        if is_leased { self.inner.loans.decide(plan, self.now_us()) } else { None }
    }

    /// Decides a plan without copying it.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn decide_shared(&self, plan: &Arc<Plan>) -> Result<Answer, StoreError> {
        self.decide_with(plan, || Arc::clone(plan)).await
    }

    /// `shared` makes the copy that waits in the queue, where the server must be asked.
    async fn decide_with(
        &self,
        plan: &Plan,
        shared: impl FnOnce() -> Arc<Plan> + Send,
    ) -> Result<Answer, StoreError> {
        if let Some(answer) = self.inner.topology.deployment.cache.find(plan, || self.now_us()) {
            return Ok(answer);
        }
        if plan.levels.iter().any(|level| level.leased) {
            return Box::pin(self.decide_leased(plan, shared)).await;
        }
        self.decide_remotely(shared()).await
    }

    /// Spends loans, and asks the server for the levels that they do not cover.
    async fn decide_leased(
        &self,
        plan: &Plan,
        shared: impl FnOnce() -> Arc<Plan> + Send,
    ) -> Result<Answer, StoreError> {
        let loans = &self.inner.loans;
        let mut partial = loans.begin(plan, self.now_us());
        if let Some(answer) = partial.answer {
            return Ok(answer);
        }
        for request in std::mem::take(&mut partial.requests) {
            loans::send_first(self, request);
        }
        let cache = &self.inner.topology.deployment.cache;
        let cached = partial.remainder.as_ref().and_then(|plan| cache.find(plan, || self.now_us()));
        let answered = match cached {
            Some(answer) => Ok(answer),
            None => self.decide_remotely(partial.remainder.clone().unwrap_or_else(shared)).await,
        };
        loans.finish(plan, &partial, answered, self.now_us())
    }

    async fn decide_remotely(&self, plan: Arc<Plan>) -> Result<Answer, StoreError> {
        let cache = &self.inner.topology.deployment.cache;
        let start = cache.start_call(self.now_us());
        let response = self.execute(Command::Decide(Arc::clone(&plan))).await;
        let answer = response.and_then(Response::into_answer)?;
        cache.insert(&plan, &answer, start, self.now_us());
        Ok(answer)
    }

    /// Sends a command to the servers that have its keys, in as many calls as that takes.
    pub(crate) async fn execute(&self, command: Command) -> Result<Response, Failure> {
        let topology = &self.inner.topology;
        let deadline = Instant::now() + topology.deployment.timeout;
        match topology.slots_of(&command) {
            Slots::One(slot) => topology.send_to_slot(slot, command, deadline).await,
            Slots::Many(slots) => {
                let fragments = group_by_slot(&slots);
                Box::pin(topology.send_cross_slot(&command, &fragments, deadline)).await
            }
        }
    }

    pub(crate) fn upgrade(inner: &Weak<Inner>) -> Option<Self> {
        inner.upgrade().map(|inner| Self { inner })
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.inner.topology
    }

    pub(crate) fn loan_table(&self) -> &LoanTable {
        &self.inner.loans
    }

    /// This node's steady time.
    pub(crate) fn now_us(&self) -> u64 {
        self.inner.topology.deployment.clock.steady_us()
    }

    fn mark_publisher(&self) -> MarkPublisher {
        let Inner { topology, marks, .. } = &*self.inner;
        let channel = keys::marks_changed(&topology.deployment.key_prefix);
        MarkPublisher { topology: Arc::clone(topology), channel, outbox: Arc::clone(marks) }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({})", self.inner.topology.address)
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
        self.decide_with(plan, || Arc::new(plan.clone())).await
    }

    /// Goes by the server's clock, whatever `now` is.
    async fn amend(
        &self,
        _: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        self.try_amend(amendments).await.map_err(|failed| failed.error)
    }

    /// Nothing to prepare: a server has no tables per limit, and unused keys expire.
    fn announce(&self, _: &[u64]) {}
}

#[cfg(test)]
mod tests;
