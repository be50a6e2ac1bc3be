//! One server: its connection, its breaker and its counters.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::deployment::Deployment;
use super::send::decode_reply;
use crate::breaker::{Breaker, BreakerState, Permit};
use crate::codec::BatchLayout;
use crate::connection::{Connection, Failure, Reason, Remedy, ScriptCall};
use crate::health::{Counters, ShardHealth, UNREACHED};
use crate::lock;
use crate::script::{self, Script};
use crate::slot::SLOTS;

/// How long a probe waits for a connection. No request waits for a probe.
const PROBE_CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long it is from a probe that was answered to the next.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const LOG_SUSPECT_EVERY_US: u64 = 1_000_000;

/// The state of a server's breaker, or the worst of several.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardStatus {
    /// The state.
    pub state: BreakerState,
    /// Since when, in microseconds since the Unix epoch.
    pub since_us: u64,
}

/// One server.
pub(crate) struct Shard {
    pub(crate) address: String,
    pub(crate) counters: Counters,
    pub(crate) connection: Connection,
    pub(crate) deployment: Arc<Deployment>,
    breaker: Mutex<Breaker>,
    status: watch::Sender<ShardStatus>,
    /// A slot of this server for probes to write into; `SLOTS` if it has none.
    probe_slot: AtomicU16,
    last_error: Mutex<Option<String>>,
    suspect_log: Mutex<SuspectLog>,
}

impl Shard {
    pub(super) fn new(
        address: String,
        connection: Connection,
        deployment: Arc<Deployment>,
    ) -> Self {
        let breaker = Breaker::new(deployment.clock.steady_us());
        let status = ShardStatus { state: breaker.state(), since_us: breaker.since_us() };
        Self {
            address,
            counters: Counters::default(),
            connection,
            deployment,
            breaker: Mutex::new(breaker),
            status: watch::Sender::new(status),
            probe_slot: AtomicU16::new(SLOTS),
            last_error: Mutex::default(),
            suspect_log: Mutex::default(),
        }
    }

    pub(super) fn status(&self) -> watch::Receiver<ShardStatus> {
        self.status.subscribe()
    }

    /// True if the breaker lets calls through.
    pub(crate) fn allows_calls(&self) -> bool {
        self.status.borrow().state.allows_calls()
    }

    /// Waits until the breaker lets calls through, as that of a new server soon does.
    pub(super) async fn ready(&self, deadline: Instant) {
        let mut status = self.status();
        let allowed = status.wait_for(|status| status.state.allows_calls());
        _ = tokio::time::timeout_at(deadline, allowed).await;
    }

    /// The failure of a call that the breaker stops.
    pub(super) fn open_failure(&self) -> Failure {
        let detail = match self.last_error() {
            Some(error) => format!("it is not asked since it failed: {error}"),
            None => UNREACHED.to_owned(),
        };
        Failure::new(Reason::Open, true, detail)
    }

    /// The last error of its calls or of its connection.
    fn last_error(&self) -> Option<String> {
        lock(&self.last_error).clone().or_else(|| self.connection.last_error())
    }

    pub(super) fn health(&self, queued: usize) -> ShardHealth {
        let status = self.status.borrow().clone();
        self.counters.health(self.address.clone(), &status, self.last_error(), queued)
    }

    /// Runs a script if the breaker allows it, and reports the outcome to the breaker.
    pub(crate) async fn eval(
        &self,
        script: &Script,
        call: ScriptCall,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let permit = self.permit()?;
        let replied = self.connection.eval(script, call, deadline).await;
        self.record_outcome(permit, replied.as_ref().err());
        replied
    }

    pub(super) fn permit(&self) -> Result<Permit, Failure> {
        lock(&self.breaker).permit().ok_or_else(|| self.open_failure())
    }

    /// Reports to the breaker how a call ended.
    pub(super) fn record_outcome(&self, permit: Permit, failure: Option<&Failure>) {
        let failure = failure.filter(|failure| failure.is_of_server());
        if let Some(failure) = failure {
            self.note(failure);
        }
        let answered = failure.is_none();
        self.update(|breaker, now_us| breaker.called(permit, answered, now_us, fastrand::u64(..)));
    }

    /// Probes the server whenever that is due, until the breaker is healthy again. So a node without
    /// requests recovers too.
    pub(super) async fn keep_probing(self: Arc<Self>) {
        let mut status = self.status.subscribe();
        let needs_probe = |status: &ShardStatus| {
            matches!(status.state, BreakerState::Open | BreakerState::Merging)
        };
        // The sender lives as long as this shard.
        while let Ok(state) = status.wait_for(needs_probe).await.map(|status| status.state) {
            if state == BreakerState::Merging {
                sleep(PROBE_EVERY).await;
                if let Ok(permit) = self.permit() {
                    self.record_outcome(permit, self.try_empty_call().await.err().as_ref());
                }
                continue;
            }
            self.wait_until_probe().await;
            if self.update(Breaker::start_probe) {
                let answered = self.probe().await;
                self.update(|breaker, now_us| {
                    breaker.probed(answered, now_us, fastrand::u64(..));
                });
            }
        }
    }

    /// Waits until a probe is due, or a server that could not be reached can be reached.
    async fn wait_until_probe(&self) {
        let at_us = lock(&self.breaker).probe_at_us().unwrap_or_default();
        let left_us = at_us.saturating_sub(self.deployment.clock.steady_us());
        tokio::select! {
            () = sleep(Duration::from_micros(left_us)) => {}
            () = self.connection.recovered() => self.update(Breaker::hurry),
        }
    }

    /// Makes the probe that the half-open breaker waits for.
    async fn probe(&self) -> bool {
        self.connection.connected(Instant::now() + PROBE_CONNECT_MAX).await;
        let replied = self.try_empty_call().await;
        if let Err(failure) = &replied {
            self.note(failure);
        }
        replied.is_ok()
    }

    /// Makes a call without commands. It writes its idempotency key, which shows whether the server
    /// accepts writes.
    async fn try_empty_call(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + self.deployment.timeout;
        let key = &self.deployment.idempotency.take();
        let slot = Some(self.probe_slot.load(Ordering::Relaxed)).filter(|slot| *slot < SLOTS);
        let keys = slot.map(|slot| self.deployment.idempotency_key(key, slot));
        let arguments = vec![self.deployment.header(slot.map(|_| key))];
        let call = ScriptCall { keys: keys.into_iter().collect(), arguments, asking: false };
        let replied = self.connection.eval(&script::DECIDE, call, deadline).await?;
        decode_reply(&[], &BatchLayout::default(), &replied).map(drop)
    }

    pub(super) fn set_probe_slot(&self, slot: Option<u16>) {
        self.probe_slot.store(slot.unwrap_or(SLOTS), Ordering::Relaxed);
    }

    fn note(&self, failure: &Failure) {
        *lock(&self.last_error) = Some(failure.error.detail.clone());
        if failure.remedy == Remedy::Reconnect {
            self.connection.give_up();
        }
    }

    /// Updates the breaker, and announces its new state if that changed.
    fn update<T>(&self, update: impl FnOnce(&mut Breaker, u64) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let before = breaker.state();
        let result = update(&mut breaker, self.deployment.clock.steady_us());
        let (state, since_us) = (breaker.state(), breaker.since_us());
        if state != before {
            self.counters.count_change(state);
            // Under the lock, so that receivers see changes in their order.
            self.status.send_replace(ShardStatus { state, since_us });
            self.deployment.news.send_replace(());
            self.log(before, state, since_us);
            if state == BreakerState::Open {
                self.connection.give_up();
            }
        }
        result
    }

    fn log(&self, before: BreakerState, state: BreakerState, now_us: u64) {
        let is_logged = match (before, state) {
            (_, BreakerState::Suspect) => lock(&self.suspect_log).begin(now_us),
            (BreakerState::Suspect, BreakerState::Healthy) => lock(&self.suspect_log).is_logged,
            _ => true,
        };
        if !is_logged {
            return;
        }
        let store = self.address.as_str();
        let error = self.last_error().unwrap_or_default();
        let is_loss = state == BreakerState::Open && before.allows_calls();
        let message = match state {
            BreakerState::Open if is_loss => "the store is lost",
            BreakerState::Open => "the store is still lost",
            BreakerState::Suspect => "a call to the store failed",
            BreakerState::HalfOpen => "the store is tried",
            BreakerState::Merging => "the store answers again",
            BreakerState::Healthy => "the store is healthy",
        };
        match state {
            BreakerState::Open if is_loss => {
                tracing::error!(event = "store_state", store, %state, error, "{message}");
            }
            BreakerState::Open | BreakerState::Suspect => {
                tracing::warn!(event = "store_state", store, %state, error, "{message}");
            }
            _ => tracing::info!(event = "store_state", store, %state, "{message}"),
        }
    }
}

/// Single calls may fail often. One suspicion a second is logged, and how it ended.
#[derive(Debug, Default)]
struct SuspectLog {
    is_logged: bool,
    logged_us: u64,
}

impl SuspectLog {
    fn begin(&mut self, now_us: u64) -> bool {
        self.is_logged = now_us >= self.logged_us.saturating_add(LOG_SUSPECT_EVERY_US);
        if self.is_logged {
            self.logged_us = now_us;
        }
        self.is_logged
    }
}
