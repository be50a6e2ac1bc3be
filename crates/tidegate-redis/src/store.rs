//! The store that nodes share.

mod shard;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tidegate::clock::{Now, SystemClock};
use tidegate::plan::Plan;
use tidegate::store::{Amended, Amendment, Answer, Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub use shard::Status;

use crate::batch::{Batch, Unanswered};
use crate::codec::{Ask, Told};
use crate::config::Config;
use crate::connection::{Connector, Failure, Reason, settings};
use crate::health::{Health, ShardHealth};
use crate::known::{self, Announcer, Changed, Known, Listener, keep_announcing};
use crate::script::Time;
use crate::{heartbeat, keys};
pub(crate) use shard::Shard;

/// How long to wait before something is tried again that may be tried again.
const RETRY: Duration = Duration::from_millis(50);

/// Corrections that were not made, as far as anybody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uncorrected {
    /// What happened.
    pub error: StoreError,
    /// Whether they were sent, so that they may have been made: a refund must not be sent again then.
    pub sent: bool,
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
    shard: Arc<Shard>,
    batch: Batch<Shard>,
    timeout: Duration,
    nodes: watch::Receiver<u32>,
    known: Arc<Known>,
    announcer: Announcer,
    clock: SystemClock,
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
        let (known, (announcer, announcing)) = (Arc::<Known>::default(), Announcer::new());
        let channel = keys::changes(&config.prefix);
        tasks.spawn(keep_announcing(announcing, shard.connection.clone(), channel.clone()));
        let (connector, settings) = (Connector::new(config), settings(config));
        let listener = Listener { connector, settings, channel, known: Arc::clone(&known) };
        tasks.spawn(listener.keep_listening());
        let (timeout, clock) = (config.timeout, SystemClock::new());
        let inner = Inner { shard, batch, timeout, nodes, known, announcer, clock, _tasks: tasks };
        Self { inner: Arc::new(inner) }
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
        let Inner { shard, batch, nodes, known, .. } = &*self.inner;
        let (status, counters) = (shard.status().borrow().clone(), &shard.counters);
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let strangers = shard.strangers.load(Ordering::Relaxed);
        let health = ShardHealth {
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
        Health { shards: vec![health], nodes, known: known.health(), strangers }
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

    /// Says what this node hashes keys with, so that nodes that use something else are noticed: a
    /// digest that gives nothing away. It is said once.
    pub fn hashes_with(&self, digest: &str) {
        _ = self.inner.shard.digest.set(digest.to_owned());
    }

    /// Tells all nodes what was changed otherwise than by [amending](Store::amend), so that none
    /// refuses any longer what is admitted again. Nobody waits for it.
    pub fn changed(&self, changed: Changed) {
        self.inner.known.forget(&changed);
        self.inner.announcer.announce(changed);
    }

    /// Lets all further asks go by this clock instead of the server's; for tests.
    #[doc(hidden)]
    pub fn go_by(&self, time: Time) {
        self.inner.known.switch_off();
        self.inner.shard.go_by(time);
    }

    /// Makes corrections, as [amending](Store::amend) does, and tells of those that were not made
    /// whether they may have been all the same.
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn correct(&self, amendments: &[Amendment]) -> Result<Amended, Uncorrected> {
        let told = self.ask(|| Ask::Amend(amendments.to_vec())).await;
        // Whether it was answered or not: it may have been carried out.
        known::changes(amendments).for_each(|changed| self.changed(changed));
        match told {
            Ok(Told::Amended(amended)) => Ok(amended),
            Ok(Told::Decided(_)) => Err(Failure::unreadable("an answer to something else").into()),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn ask(&self, ask: impl FnOnce() -> Ask) -> Result<Told, Failure> {
        let Inner { shard, batch, timeout, .. } = &*self.inner;
        shard.counters.asks.fetch_add(1, Ordering::Relaxed);
        let told = if shard.asks() {
            let told = batch.ask(ask(), Instant::now() + *timeout).await;
            told.unwrap_or_else(|unanswered| Err(unanswered.into()))
        } else {
            Err(shard.open())
        };
        told.inspect_err(|failure| shard.counters.failed(failure.reason))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({})", self.inner.shard.address)
    }
}

impl Store for RedisStore {
    const NAMES_KEYS: bool = true;

    async fn decide(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let Inner { known, clock, .. } = &*self.inner;
        if let Some(answer) = known.recall(plan, || clock.steady_us()) {
            return Ok(answer);
        }
        let asking = known.asking(clock.steady_us());
        match self.ask(|| Ask::Decide(plan.clone())).await {
            Ok(Told::Decided(answer)) => {
                known.note(plan, &answer, asking, clock.steady_us());
                Ok(answer)
            }
            Ok(Told::Amended(_)) => Err(Failure::unreadable("an answer to something else").error),
            Err(failure) => Err(failure.error),
        }
    }

    /// The server's clock holds, whatever `now` is.
    async fn amend(&self, _: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        self.correct(amendments).await.map_err(|uncorrected| uncorrected.error)
    }

    /// A server has no parts: what is meaningless expires.
    fn announce(&self, _: &[u64]) {}
}

impl From<Failure> for Uncorrected {
    fn from(failure: Failure) -> Self {
        let sent = !matches!(failure.reason, Reason::Open | Reason::Overload);
        Self { error: failure.error, sent }
    }
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
