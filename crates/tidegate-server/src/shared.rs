//! The store that nodes share, as the daemon uses it: a [`RedisStore`] whose calls are timed, whose
//! lost corrections wait in a retry queue, and whose abandoned decisions are given back.

mod connect;
mod recovery;
mod retry_queue;
mod watch;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate::clock::{Now, SystemClock};
use tidegate::engine::plan::{LEVELS_MAX, Mode, Plan};
use tidegate::engine::store::{Amendment, AmendmentResults, Answer, Store, StoreError, Tables};
use tidegate::{HashKey, Settlement};
use tidegate_redis::{AmendError, BreakerState, RedisStore, StoredKey, refunds};
use tokio::runtime::Handle;

use crate::seal::SealedReservation;
use crate::telemetry::{Metrics, StoreCall, store_failed};
use retry_queue::{Correction, RetryQueue};

pub(crate) use connect::connect;
pub(crate) use watch::{follow, wait_until_answering};

/// What the digest of a secret is for.
const DIGEST: &str = "which nodes hash keys alike";
/// How long the secret of all nodes is asked for, once the store answers.
const SECRET_WAIT: Duration = Duration::from_secs(1);

/// A shared store. Clones share it.
#[derive(Clone)]
pub(crate) struct SharedStore {
    redis: RedisStore,
    metrics: Arc<Metrics>,
    clock: SystemClock,
    /// True once keys are hashed with the secret of all nodes. The store is not asked before: every
    /// subject would get a second key there.
    knows_secret: Arc<AtomicBool>,
    retries: Arc<RetryQueue>,
}

impl SharedStore {
    pub(crate) fn new(redis: RedisStore, metrics: Arc<Metrics>, clock: SystemClock) -> Self {
        let (knows_secret, retries) = (Arc::default(), Arc::default());
        Self { redis, metrics, clock, knows_secret, retries }
    }

    /// The store itself.
    pub(crate) fn redis(&self) -> &RedisStore {
        &self.redis
    }

    /// True while a server of the store is not asked, because it failed.
    pub(crate) fn is_lost(&self) -> bool {
        !self.redis.health().state().allows_calls()
    }

    /// Queues the settlement of a sealed reservation, until the store can say whether it is the
    /// first; false if the queue is full.
    pub(crate) fn settle_later(
        &self,
        sealed: Box<SealedReservation>,
        settlement: Settlement,
    ) -> bool {
        self.retries.push(Correction::Settle(sealed, settlement))
    }

    /// How many corrections wait for the store, and how many were lost.
    pub(crate) fn corrections(&self) -> (usize, u64) {
        (self.retries.len(), self.retries.lost())
    }

    /// True until [`adopt_secret`](Self::adopt_secret) is called.
    pub(crate) fn lacks_secret(&self) -> bool {
        !self.knows_secret.load(Ordering::Acquire)
    }

    /// Tells other nodes what this node hashes keys with, and lets the store be asked.
    pub(crate) fn adopt_secret(&self, secret: &HashKey) {
        let [a, b, c, d, ..] = secret.derive(DIGEST);
        self.redis.set_secret_digest(&format!("{:08x}", u32::from_be_bytes([a, b, c, d])));
        self.knows_secret.store(true, Ordering::Release);
    }

    /// The secret of all nodes, which the first node makes.
    pub(crate) async fn secret(&self) -> Result<HashKey, StoreError> {
        self.redis.secret(SECRET_WAIT).await.map(HashKey::new)
    }

    /// What keys hold, by the names that this node has for them.
    pub(crate) async fn inspect(
        &self,
        names: &[Arc<str>],
    ) -> Result<Vec<Option<StoredKey>>, StoreError> {
        if self.lacks_secret() { Err(secret_unknown()) } else { self.redis.inspect(names).await }
    }

    /// Gives back what a plan was charged with.
    async fn give_back(&self, plan: &Plan, answer: &Answer) {
        let amendments = refunds(plan, answer);
        if amendments.is_empty() {
            return;
        }
        let amended = self.redis.try_amend(&amendments).await;
        let Err(AmendError { error, was_sent, amendments, .. }) = amended else { return };
        if !self.retries.push_failed(&amendments, was_sent) {
            self.metrics.store_failed(&error);
            store_failed(&error, "what a request took that nobody waits for stays charged");
        }
    }
}

impl Store for SharedStore {
    fn names_keys(&self) -> bool {
        true
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(Duration::from_millis(50))
    }

    fn try_decide(
        &self,
        plan: &Plan,
        _: Option<&Tables>,
        answer: &mut Answer,
    ) -> Option<Result<(), StoreError>> {
        if self.lacks_secret() {
            return None;
        }
        *answer = self.redis.decide_at_once(plan)?;
        Some(Ok(()))
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        let (plan, lacks_secret) = (Arc::new(plan.clone()), self.lacks_secret());
        let (redis, shared_plan) = (self.redis.clone(), Arc::clone(&plan));
        let call = Box::pin(async move {
            if lacks_secret {
                Err(secret_unknown())
            } else {
                redis.decide_shared(&shared_plan).await
            }
        });
        PendingDecision { store: self.clone(), plan, call: Some(call), began_us: None }
    }

    /// Corrections that the store cannot take now wait in the retry queue, and count as made.
    async fn amend(
        &self,
        _: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        let began_us = self.clock.steady_us();
        let amended = self.redis.try_amend(amendments).await;
        let took_us = self.clock.steady_us().saturating_sub(began_us);
        self.metrics.store_answered(StoreCall::Amend, took_us);
        match amended {
            Ok(amended) => Ok(amended),
            Err(failed) if self.retries.push_failed(&failed.amendments, failed.was_sent) => {
                Ok(amendments.iter().take(LEVELS_MAX).map(|_| true).collect())
            }
            Err(failed) => Err(failed.error),
        }
    }

    fn announce(&self, families: &[u64]) {
        self.redis.announce(families);
    }
}

/// A state of the store, as the status names it.
pub(crate) const fn state_name(state: BreakerState) -> &'static str {
    match state {
        BreakerState::Merging => "recovering",
        state if state.allows_calls() => "healthy",
        _ => "lost",
    }
}

fn secret_unknown() -> StoreError {
    let detail = "the secret that it keeps for all nodes is not known yet".to_owned();
    StoreError { transient: true, detail }
}

type DecideCall = Pin<Box<dyn Future<Output = Result<Answer, StoreError>> + Send>>;

/// A decision that the store was asked for. If its caller goes away before the answer, a task of its
/// own waits for it and gives back what it took: a request that nobody waits for uses nothing.
struct PendingDecision {
    store: SharedStore,
    plan: Arc<Plan>,
    /// `None` once it is answered.
    call: Option<DecideCall>,
    /// `None` until it is first polled: nothing has been sent before.
    began_us: Option<u64>,
}

impl Future for PendingDecision {
    type Output = Result<Answer, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let now_us = self.store.clock.steady_us();
        let began_us = *self.began_us.get_or_insert(now_us);
        let Some(call) = &mut self.call else { return Poll::Pending };
        let answered = ready!(call.as_mut().poll(context));
        self.call = None;
        let took_us = self.store.clock.steady_us().saturating_sub(began_us);
        self.store.metrics.store_answered(StoreCall::Decide, took_us);
        Poll::Ready(answered)
    }
}

impl Drop for PendingDecision {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        if self.began_us.is_none() || self.plan.mode == Mode::Peek {
            return;
        }
        let (store, plan) = (self.store.clone(), Arc::clone(&self.plan));
        // Without a runtime the process is about to end, and places free themselves.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Ok(answer) = call.await {
                    store.give_back(&plan, &answer).await;
                }
            });
        }
    }
}

#[cfg(test)]
#[path = "shared/tests.rs"]
pub(crate) mod tests;
