//! One server: its connection, what is thought of it, and what has been counted.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::common::Common;
use super::lanes::Lane;
use super::sending::decide;
use crate::breaker::{Breaker, Permit, State};
use crate::connection::{Connection, Failure, Reason, Remedy, Run, Script};
use crate::health::{Counters, ShardHealth, UNREACHED};
use crate::slot::SLOTS;

/// How long a probe waits for a connection. No request waits for a probe.
const PROBE_CONNECTS: Duration = Duration::from_secs(1);
/// How long it is until the next one, once a probe was answered.
const PROBE_AGAIN: Duration = Duration::from_millis(100);
const DOUBT_EVERY_US: u64 = 1_000_000;

/// What is thought of a server, or of all of them: then the worst.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// What it is thought to be.
    pub state: State,
    /// Since when, in microseconds since the Unix epoch.
    pub since_us: u64,
}

/// One server.
pub(crate) struct Shard {
    pub(crate) address: String,
    pub(crate) counters: Counters,
    pub(crate) connection: Connection,
    pub(super) common: Arc<Common>,
    breaker: Mutex<Breaker>,
    status: watch::Sender<Status>,
    /// Whether the breaker lets calls through, for those who only want to know that.
    asks: AtomicBool,
    /// A slot of its own, for probes to write into; none is as many as there are slots.
    home: AtomicU16,
    last_error: Mutex<Option<String>>,
    doubt: Mutex<Doubt>,
}

impl Shard {
    pub(super) fn new(address: String, connection: Connection, common: Arc<Common>) -> Self {
        let breaker = Breaker::new(common.clock.steady_us());
        let status = Status { state: breaker.state(), since_us: breaker.since_us() };
        Self {
            address,
            counters: Counters::default(),
            connection,
            common,
            breaker: Mutex::new(breaker),
            status: watch::Sender::new(status),
            asks: AtomicBool::new(false),
            home: AtomicU16::new(SLOTS),
            last_error: Mutex::default(),
            doubt: Mutex::default(),
        }
    }

    /// What the names of all keys begin with.
    pub(crate) fn front(&self) -> &str {
        &self.common.front
    }

    /// Whether keys of one call must lie in one slot.
    pub(crate) fn is_in_slots(&self) -> bool {
        self.common.in_slots
    }

    pub(crate) fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Whether the server is asked at all.
    pub(crate) fn asks(&self) -> bool {
        self.asks.load(Ordering::Relaxed)
    }

    /// Waits until the server is asked, as one that was just met soon is; `false` if it is not by then.
    pub(super) async fn ready(&self, deadline: Instant) -> bool {
        let mut status = self.status();
        let asks = status.wait_for(|status| status.state.asks());
        tokio::time::timeout_at(deadline, asks).await.is_ok_and(|status| status.is_ok())
    }

    /// Why it is not asked.
    pub(super) fn open(&self) -> Failure {
        let detail = match self.last_error() {
            Some(error) => format!("it is not asked since it failed: {error}"),
            None => UNREACHED.to_owned(),
        };
        Failure::new(Reason::Open, true, detail)
    }

    /// What went wrong last, with its calls or with its connection.
    pub(super) fn last_error(&self) -> Option<String> {
        locked(&self.last_error).clone().or_else(|| self.connection.trouble())
    }

    pub(super) fn health(&self, queued: usize) -> ShardHealth {
        let (status, counters) = (self.status.borrow().clone(), &self.counters);
        ShardHealth {
            address: self.address.clone(),
            state: status.state,
            since_us: status.since_us,
            last_error: self.last_error(),
            asks: counters.asks.load(Ordering::Relaxed),
            calls: counters.calls.load(Ordering::Relaxed),
            again: counters.again.load(Ordering::Relaxed),
            errors: counters.errors(),
            changes: counters.changes(),
            queued,
            latency_us: counters.latency_us.load(Ordering::Relaxed),
        }
    }

    /// Runs a script if the breaker lets it, and tells the breaker how it went.
    pub(crate) async fn run(
        &self,
        script: Script,
        run: Run,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let permit = self.permit()?;
        let replied = self.connection.run(script, run, deadline).await;
        self.conclude(permit, replied.as_ref().err());
        replied
    }

    /// Leave to make a call.
    pub(super) fn permit(&self) -> Result<Permit, Failure> {
        locked(&self.breaker).permit().ok_or_else(|| self.open())
    }

    /// How a call ended: well, or for this reason not.
    pub(super) fn conclude(&self, permit: Permit, failure: Option<&Failure>) {
        let failure = failure.filter(|failure| failure.is_of_server());
        if let Some(failure) = failure {
            self.note(failure);
        }
        let answered = failure.is_none();
        self.tell(|breaker, now_us| breaker.called(permit, answered, now_us, fastrand::u64(..)));
    }

    /// Probes the server whenever that is due, and until it is trusted again: a node without requests
    /// recovers too.
    pub(super) async fn keep_probing(self: Arc<Self>) {
        let mut status = self.status.subscribe();
        let doubted = |status: &Status| matches!(status.state, State::Open | State::Merging);
        // The sender lives as long as this does.
        while let Ok(state) = status.wait_for(doubted).await.map(|status| status.state) {
            if state == State::Merging {
                sleep(PROBE_AGAIN).await;
                self.probe_again().await;
                continue;
            }
            self.wait_to_probe().await;
            if self.tell(|breaker, now_us| breaker.probe(now_us)) {
                let answered = self.probe().await;
                self.tell(|breaker, now_us| breaker.probed(answered, now_us, fastrand::u64(..)));
            }
        }
    }

    /// Until it is due; or until the server that could not be reached can be.
    async fn wait_to_probe(&self) {
        let at_us = locked(&self.breaker).probe_at_us().unwrap_or_default();
        let left_us = at_us.saturating_sub(self.common.clock.steady_us());
        tokio::select! {
            () = sleep(Duration::from_micros(left_us)) => {}
            () = self.connection.recovered() => self.tell(Breaker::hurry),
        }
    }

    /// A call without asks, which the breaker knows of.
    async fn probe(&self) -> bool {
        self.connection.connected(Instant::now() + PROBE_CONNECTS).await;
        let deadline = Instant::now() + self.common.timeout;
        let lane = self.common.lanes.take();
        let replied = self.connection.run(decide(), self.probing(&lane), deadline).await;
        if let Err(failure) = &replied {
            self.note(failure);
        }
        replied.is_ok()
    }

    async fn probe_again(&self) {
        let deadline = Instant::now() + self.common.timeout;
        let lane = self.common.lanes.take();
        _ = self.run(decide(), self.probing(&lane), deadline).await;
    }

    /// A call without asks. The number that it leaves shows whether the server takes writes.
    fn probing(&self, lane: &Lane<'_>) -> Run {
        let slot = Some(self.home.load(Ordering::Relaxed)).filter(|slot| *slot < SLOTS);
        let lane = slot.map(|slot| (slot, lane));
        let arguments = vec![self.common.header(lane.map(|(_, lane)| lane))];
        let keys = lane.map(|(slot, lane)| self.common.key_of(lane, slot)).into_iter().collect();
        Run { keys, arguments, asking: false }
    }

    /// This is one of its slots, or it has none that anything is kept in.
    pub(super) fn is_home_of(&self, slot: Option<u16>) {
        self.home.store(slot.unwrap_or(SLOTS), Ordering::Relaxed);
    }

    fn note(&self, failure: &Failure) {
        *locked(&self.last_error) = Some(failure.error.detail.clone());
        if failure.remedy == Remedy::Reconnect {
            self.connection.give_up();
        }
    }

    /// Tells the breaker something, and everybody else if it changed its mind.
    fn tell<T>(&self, tell: impl FnOnce(&mut Breaker, u64) -> T) -> T {
        let mut breaker = locked(&self.breaker);
        let before = breaker.state();
        let told = tell(&mut breaker, self.common.clock.steady_us());
        let (state, since_us) = (breaker.state(), breaker.since_us());
        if state != before {
            self.asks.store(state.asks(), Ordering::Relaxed);
            self.counters.changed(state);
            // While the breaker is locked, so that nobody hears of changes in another order.
            self.status.send_replace(Status { state, since_us });
            self.common.news.send_replace(());
            self.log(before, state, since_us);
            if state == State::Open {
                self.connection.give_up();
            }
        }
        told
    }

    fn log(&self, before: State, state: State, now_us: u64) {
        let tells = match (before, state) {
            (_, State::Suspect) => locked(&self.doubt).begins(now_us),
            (State::Suspect, State::Healthy) => locked(&self.doubt).told,
            _ => true,
        };
        if !tells {
            return;
        }
        let store = self.address.as_str();
        let error = self.last_error().unwrap_or_default();
        match (before, state) {
            (State::Healthy | State::Suspect | State::Merging, State::Open) => {
                tracing::error!(event = "store_state", store, %state, error, "the store is lost");
            }
            (_, State::Open) => {
                tracing::warn!(event = "store_state", store, %state, error, "the store is still lost");
            }
            (_, State::Suspect) => {
                tracing::warn!(event = "store_state", store, %state, error, "a call to the store failed");
            }
            (_, State::HalfOpen) => {
                tracing::info!(event = "store_state", store, %state, "the store is tried");
            }
            (_, State::Merging) => {
                tracing::info!(event = "store_state", store, %state, "the store answers again");
            }
            (_, State::Healthy) => {
                tracing::info!(event = "store_state", store, %state, "the store is healthy");
            }
        }
    }
}

/// Single calls that fail, which every other one may: one a second is told of, and how it ended.
#[derive(Debug, Default)]
struct Doubt {
    told: bool,
    told_us: u64,
}

impl Doubt {
    fn begins(&mut self, now_us: u64) -> bool {
        self.told = now_us >= self.told_us.saturating_add(DOUBT_EVERY_US);
        if self.told {
            self.told_us = now_us;
        }
        self.told
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
