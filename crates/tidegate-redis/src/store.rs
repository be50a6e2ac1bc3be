//! The store that nodes share.

mod shard;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tidegate::clock::Now;
use tidegate::plan::Plan;
use tidegate::store::{Amended, Amendment, Answer, Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub use shard::Status;

use crate::batch::{Batch, Unanswered};
use crate::codec::{Ask, Told};
use crate::config::Config;
use crate::connection::{Failure, Reason};
use crate::health::{Health, ShardHealth};
use crate::leases::{LeaseHealth, Leases};
use crate::script::Time;
use crate::{heartbeat, keys};
pub(crate) use shard::Shard;

/// How long to wait before something is tried again that may be tried again.
const RETRY: Duration = Duration::from_millis(50);

/// A store on Redis or Valkey. Clones share it; the last one to go ends it.
///
/// Nothing waits longer than the timeout of its [`Config`]. While the server is lost everything
/// fails at once, and it is found again in the background.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    shard: Arc<Shard>,
    batch: Batch<Shard>,
    timeout: Duration,
    nodes: watch::Receiver<u32>,
    leases: Arc<Leases>,
    /// What goes on in the background, and ends with this.
    _tasks: JoinSet<()>,
}

impl RedisStore {
    /// Starts to connect, on the runtime that this is called on. It never fails: without a server it
    /// starts open, and recovers when there is one.
    #[must_use]
    pub fn connect(config: &Config) -> Self {
        let shard = Arc::new(Shard::new(config));
        let batch = Batch::start(Arc::clone(&shard));
        let (publish, nodes) = watch::channel(config.nodes);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shard).keep_probing());
        tasks.spawn(heartbeat::keep_beating(Arc::clone(&shard), publish));
        let (timeout, leases) = (config.timeout, Arc::new(Leases::new(config.nodes)));
        let keeper = Arc::clone(&leases);
        let inner = Arc::new(Inner { shard, batch, timeout, nodes, leases, _tasks: tasks });
        let weak = Arc::downgrade(&inner);
        tokio::spawn(keeper.keep(move || weak.upgrade().map(|inner| Self { inner })));
        Self { inner }
    }

    /// Gives back what this node has borrowed of leased limits, and borrows nothing any more: for a
    /// node that is about to end.
    pub async fn close(&self) {
        self.inner.leases.close(self).await;
    }

    /// Waits until the server can be asked; `false` if it cannot be by then.
    pub async fn ready(&self, within: Duration) -> bool {
        let mut status = self.inner.shard.status();
        let asks = status.wait_for(|status| status.state.asks());
        tokio::time::timeout(within, asks).await.is_ok_and(|status| status.is_ok())
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> Health {
        let Inner { shard, batch, nodes, .. } = &*self.inner;
        let (status, counters) = (shard.status().borrow().clone(), &shard.counters);
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let shard = ShardHealth {
            address: shard.address.clone(),
            state: status.state,
            since_us: status.since_us,
            last_error: shard.last_error(),
            asks: count(&counters.asks),
            calls: count(&counters.calls),
            errors: counters.errors(),
            changes: counters.changes(),
            queued: batch.queued(),
            latency_us: count(&counters.latency_us),
        };
        let nodes = nodes.has_changed().is_ok_and(|heard| heard).then(|| *nodes.borrow());
        Health { shards: vec![shard], nodes }
    }

    /// What this node has borrowed of leased limits.
    #[must_use]
    pub fn leases(&self) -> LeaseHealth {
        self.inner.leases.health()
    }

    /// Tells of every change of state, as far as somebody looks in between.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.inner.shard.status()
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
        let deadline = Instant::now() + within;
        let mine = random()?;
        loop {
            match self.inner.shard.offer(mine, deadline).await {
                // Setting what is not there yet can be repeated.
                Err(failure) if failure.error.transient && Instant::now() + RETRY < deadline => {
                    sleep(RETRY).await;
                }
                Err(failure) => return Err(failure.error),
                Ok(found) => return Ok(*self.inner.shard.secret.get_or_init(|| found)),
            }
        }
    }

    /// Lets all further asks go by this clock instead of the server's; for tests.
    #[doc(hidden)]
    pub fn go_by(&self, time: Time) {
        self.inner.shard.go_by(time);
    }

    pub(crate) async fn ask(&self, ask: impl FnOnce() -> Ask) -> Result<Told, StoreError> {
        let Inner { shard, batch, timeout, .. } = &*self.inner;
        shard.counters.asks.fetch_add(1, Ordering::Relaxed);
        let told = if shard.asks() {
            let told = batch.ask(ask(), Instant::now() + *timeout).await;
            told.unwrap_or_else(|unanswered| Err(unanswered.into()))
        } else {
            Err(shard.open())
        };
        told.map_err(|failure| {
            shard.counters.failed(failure.reason);
            failure.error
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({})", self.inner.shard.address)
    }
}

impl Store for RedisStore {
    const NAMES_KEYS: bool = true;

    fn decide_at_once(&self, plan: &Plan) -> Option<Answer> {
        self.inner.leases.at_once(plan)
    }

    async fn decide(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let leases = &self.inner.leases;
        let mut begun = leases.begin(plan);
        if let Some(answer) = begun.done {
            return Ok(answer);
        }
        for loan in std::mem::take(&mut begun.first) {
            leases.tell(self, loan);
        }
        let rest = begun.rest.as_ref().unwrap_or(plan);
        let answered = match self.ask(|| Ask::Decide(rest.clone())).await {
            Ok(Told::Decided(answer)) => Ok(answer),
            Ok(_) => Err(Failure::unreadable("an answer to something else").error),
            Err(error) => Err(error),
        };
        leases.finish(plan, begun, answered)
    }

    /// The server's clock holds, whatever `now` is.
    async fn amend(&self, _: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        let leases = &self.inner.leases;
        let here: Vec<bool> = amendments.iter().map(|one| leases.amend(one)).collect();
        let rest = amendments.iter().zip(&here).filter(|(_, here)| !**here);
        let rest: Vec<Amendment> = rest.map(|(amendment, _)| amendment.clone()).collect();
        if rest.is_empty() {
            return Ok(here.into_iter().collect());
        }
        match self.ask(|| Ask::Amend(rest)).await? {
            Told::Amended(amended) => {
                let mut told = amended.into_iter();
                Ok(here.into_iter().map(|here| here || told.next().unwrap_or(false)).collect())
            }
            _ => Err(Failure::unreadable("an answer to something else").error),
        }
    }

    /// A server has no parts: what is meaningless expires.
    fn announce(&self, _: &[u64]) {}
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Full => Self::new(Reason::Overload, true, "too many requests wait for it"),
            Unanswered::Late => Self::timeout(),
            Unanswered::Lost => Self::new(Reason::Connection, true, "the call was not answered"),
        }
    }
}

impl Shard {
    /// Offers a secret, and gives the one that was first.
    async fn offer(&self, mine: [u8; 16], deadline: Instant) -> Result<[u8; 16], Failure> {
        // Not until the deadline: a server that will never let us in says so before.
        self.connection.connected(deadline.min(Instant::now() + RETRY)).await;
        let key = keys::secret(&self.prefix);
        let mut offer = redis::cmd("SET");
        offer.arg(&key).arg(written(mine)).arg("NX");
        self.connection.send(&offer, deadline).await?;
        let reply = self.connection.send(redis::cmd("GET").arg(&key), deadline).await?;
        let Value::BulkString(text) = &reply else {
            return Err(Failure::unreadable("the deployment's secret is gone again"));
        };
        let digits = str::from_utf8(text).ok().filter(|text| text.len() == 32);
        let value = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
        value.map(u128::to_be_bytes).ok_or_else(|| {
            let key = String::from_utf8_lossy(&key);
            Failure::unreadable(format!("`{key}` holds something else than 32 hexadecimal digits"))
        })
    }
}

/// A secret as the server keeps it.
pub(crate) fn written(secret: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(secret))
}

fn random() -> Result<[u8; 16], StoreError> {
    let mut bytes = [0; 16];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    let detail = || "the system gives no random bytes".to_owned();
    filled.map(|()| bytes).map_err(|_| StoreError { transient: false, detail: detail() })
}

#[cfg(test)]
mod tests;
