//! The store that nodes share, as the daemon sees it: every call is timed, and one that nobody waits for
//! any more is finished all the same, and what it took is given back.

mod health;
mod later;
mod recovery;
mod watch;

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready as answer_of};

use tidegate::algorithm::Spec;
use tidegate::clock::{Now, SystemClock};
use tidegate::plan::{LEVELS_MAX, Mode, Plan};
use tidegate::store::{Amended, Amendment, Answer, Change, Store, StoreError};
use tidegate::{HashKey, Settlement};
use tidegate_redis::{Cursor, Found, LeaseHealth, MarkChange, Page, Replica};
use tokio::runtime::Handle;
use tokio::sync::watch as told;

use crate::seal::Travelled;
use crate::telemetry::{Metrics, StoreCall, store_failed};
use later::{Correction, Later};

pub(crate) use health::{Health, KnownHealth, ShardHealth, StoreState};
pub(crate) use watch::{follow, settled};

/// What a call to the store becomes.
pub(crate) type Calling<T, E = StoreError> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Corrections that were not made, as far as anybody knows.
#[derive(Debug)]
pub(crate) struct Unamended {
    pub(crate) error: StoreError,
    /// Whether they may have been made all the same.
    pub(crate) sent: bool,
    /// Which they are: others were made.
    pub(crate) rest: Vec<Amendment>,
}

/// A store that several nodes share. It bounds the time of its calls itself, and gets well by itself.
pub(crate) trait Remote: Send + Sync + 'static {
    /// Decides what needs no waiting; `None` where the store must be asked.
    fn decide_at_once(&self, _plan: &Plan) -> Option<Answer> {
        None
    }

    /// Whether calls are carried out in the order in which they are made.
    fn keeps_order(&self) -> bool {
        false
    }

    /// What this node has borrowed.
    fn leases(&self) -> LeaseHealth {
        LeaseHealth::default()
    }

    /// Gives back what this node has borrowed, at its end.
    fn close(&self) -> Calling<()> {
        Box::pin(ready(Ok(())))
    }

    fn decide(&self, plan: Arc<Plan>) -> Calling<Answer>;

    fn amend(&self, now: Now, amendments: Vec<Amendment>) -> Calling<Amended, Unamended>;

    fn announce(&self, families: &[u64]);

    fn health(&self) -> Health;

    /// The secret that hashes keys on all nodes; made by the first who asks.
    fn secret(&self) -> Calling<[u8; 16]>;

    /// Tells the others what this node hashes keys with: a digest that gives nothing away.
    fn hashes_with(&self, digest: &str);

    /// Keeps the marks of this node and those of all others the same from now on; tells when it knows
    /// all that they do.
    fn share_marks(&self, _replica: Arc<dyn Replica>) -> told::Receiver<bool> {
        told::channel(true).1
    }

    /// Tells all nodes of a mark that has changed here.
    fn mark_changed(&self, _change: MarkChange) {}

    /// The keys that match a pattern, page by page, for operators.
    fn scan(&self, pattern: String, from: Cursor, count: usize) -> Calling<Page>;

    /// What keys hold, by their names; `None` for each that is not there.
    fn look(&self, names: Vec<Arc<str>>) -> Calling<Vec<Option<Found>>>;

    /// Deletes keys that cannot be read, by their names.
    fn delete(&self, names: Vec<Arc<str>>) -> Calling<u64>;
}

/// What the digest of a secret is for.
const DIGEST: &str = "which nodes hash keys alike";

/// A shared store. Clones share it.
#[derive(Clone)]
pub(crate) struct SharedStore {
    remote: Arc<dyn Remote>,
    metrics: Arc<Metrics>,
    clock: SystemClock,
    /// Whether keys are hashed with the secret of all nodes: the store must not be asked before, as
    /// everybody would have further keys there.
    knows_secret: Arc<AtomicBool>,
    later: Arc<Later>,
}

impl SharedStore {
    /// What stands before this store.
    pub(crate) fn new(remote: Arc<dyn Remote>, metrics: Arc<Metrics>, clock: SystemClock) -> Self {
        let (knows_secret, later) = (Arc::default(), Arc::default());
        Self { remote, metrics, clock, knows_secret, later }
    }

    /// How the store is.
    pub(crate) fn health(&self) -> Health {
        self.remote.health()
    }

    /// Whether calls are carried out in the order in which they are made.
    pub(crate) fn keeps_order(&self) -> bool {
        self.remote.keeps_order()
    }

    /// The store itself.
    pub(crate) fn remote(&self) -> &Arc<dyn Remote> {
        &self.remote
    }

    /// Whether it is not asked for anything.
    pub(crate) fn is_lost(&self) -> bool {
        self.health().state == StoreState::Lost
    }

    /// Keeps a settlement of a lease that travelled until the store can say whether it is the first;
    /// returns whether there is room for it.
    pub(crate) fn settle_later(&self, travelled: Box<Travelled>, settlement: Settlement) -> bool {
        self.later.keep(Correction::Settle(travelled, settlement))
    }

    /// How many corrections wait for the store, and how many were lost.
    pub(crate) fn corrections(&self) -> (usize, u64) {
        (self.later.len(), self.later.lost())
    }

    /// Whether the secret is still to be [asked](Remote::secret) for.
    pub(crate) fn lacks_secret(&self) -> bool {
        !self.knows_secret.load(Ordering::Acquire)
    }

    /// Keys are hashed with this secret, that of all nodes, from now on.
    pub(crate) fn secret_is_known(&self, secret: &HashKey) {
        let [a, b, c, d, ..] = secret.derive(DIGEST);
        self.remote.hashes_with(&format!("{:08x}", u32::from_be_bytes([a, b, c, d])));
        self.knows_secret.store(true, Ordering::Release);
    }

    /// The secret of all nodes, if the store can be asked for it.
    pub(crate) async fn secret(&self) -> Result<HashKey, StoreError> {
        self.remote.secret().await.map(HashKey::new)
    }

    /// What this node has borrowed.
    pub(crate) fn leases(&self) -> LeaseHealth {
        self.remote.leases()
    }

    /// Gives back what this node has borrowed, at its end.
    pub(crate) async fn close(&self) {
        // What cannot be given back is free again before long.
        _ = self.remote.close().await;
    }

    pub(crate) fn scan(&self, pattern: String, from: Cursor, count: usize) -> Calling<Page> {
        self.remote.scan(pattern, from, count)
    }

    /// What keys hold, by the names that this node has for them.
    pub(crate) fn look(&self, names: Vec<Arc<str>>) -> Calling<Vec<Option<Found>>> {
        if self.lacks_secret() {
            return Box::pin(ready(Err(secret_unknown())));
        }
        self.remote.look(names)
    }

    pub(crate) fn delete(&self, names: Vec<Arc<str>>) -> Calling<u64> {
        self.remote.delete(names)
    }

    /// Gives back what a plan was charged with.
    async fn give_back(&self, plan: &Plan, answer: &Answer) {
        let amendments = taken(plan, answer);
        if amendments.is_empty() {
            return;
        }
        let amended = self.remote.amend(answer.now, amendments).await;
        let Err(Unamended { error, sent, rest }) = amended else { return };
        if !self.later.keep_unmade(&rest, sent) {
            self.metrics.store_failed(&error);
            store_failed(&error, "what a request took that nobody waits for stays charged");
        }
    }
}

impl Store for SharedStore {
    const NAMES_KEYS: bool = true;
    const LOOK_AGAIN_US: Option<u64> = Some(50_000);

    fn decide_at_once(&self, plan: &Plan) -> Option<Answer> {
        if self.lacks_secret() { None } else { self.remote.decide_at_once(plan) }
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        let plan = Arc::new(plan.clone());
        let call: Calling<Answer> = if self.lacks_secret() {
            Box::pin(ready(Err(secret_unknown())))
        } else {
            self.remote.decide(Arc::clone(&plan))
        };
        Asked { store: self.clone(), plan, call: Some(call), began_us: None }
    }

    /// What is given back while the store is lost is given back once it is there again.
    async fn amend(&self, now: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        let began_us = self.clock.steady_us();
        let amended = self.remote.amend(now, amendments.to_vec()).await;
        let took_us = self.clock.steady_us().saturating_sub(began_us);
        self.metrics.store_answered(StoreCall::Amend, took_us);
        match amended {
            Ok(amended) => Ok(amended),
            Err(Unamended { sent, rest, .. }) if self.later.keep_unmade(&rest, sent) => {
                Ok(amendments.iter().take(LEVELS_MAX).map(|_| true).collect())
            }
            Err(Unamended { error, .. }) => Err(error),
        }
    }

    fn announce(&self, families: &[u64]) {
        self.remote.announce(families);
    }
}

fn secret_unknown() -> StoreError {
    let detail = "the secret that it keeps for all nodes is not known yet".to_owned();
    StoreError { transient: true, detail }
}

/// A decision that the store was asked for. Dropped before its answer, it is waited for elsewhere, and
/// what it took is given back: whoever went away has used nothing.
struct Asked {
    store: SharedStore,
    plan: Arc<Plan>,
    /// `None` once it is answered.
    call: Option<Calling<Answer>>,
    /// `None` until it is first waited for: nothing has been sent before.
    began_us: Option<u64>,
}

impl Future for Asked {
    type Output = Result<Answer, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let now_us = self.store.clock.steady_us();
        let began_us = *self.began_us.get_or_insert(now_us);
        let Some(call) = &mut self.call else { return Poll::Pending };
        let answered = answer_of!(call.as_mut().poll(context));
        self.call = None;
        let took_us = self.store.clock.steady_us().saturating_sub(began_us);
        self.store.metrics.store_answered(StoreCall::Decide, took_us);
        Poll::Ready(answered)
    }
}

impl Drop for Asked {
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

/// The corrections that undo what a plan was charged with.
fn taken(plan: &Plan, answer: &Answer) -> Vec<Amendment> {
    let levels = plan.levels.iter().zip(&answer.replies).enumerate().take(LEVELS_MAX);
    let charged = levels.filter(|(_, (_, reply))| reply.charged);
    let undo = charged.map(|(at, (level, reply))| Amendment {
        level: *level,
        name: plan.names.get(at).cloned(),
        charged_at_us: reply.charged_at_us,
        holder: plan.holder,
        change: match level.spec {
            Spec::Concurrency(_) => Change::Release,
            _ => Change::Refund(level.cost),
        },
    });
    undo.collect()
}

#[cfg(test)]
#[path = "shared/tests.rs"]
pub(crate) mod tests;
