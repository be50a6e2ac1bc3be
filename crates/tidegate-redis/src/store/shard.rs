//! One server: its connection, what is thought of it, and what has been counted.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redis::Value;
use tidegate::clock::SystemClock;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::batch::{Caller, Weighed};
use crate::breaker::{Breaker, Permit, State};
use crate::codec::{self, Ask, Told};
use crate::config::Config;
use crate::connection::{Connection, Failure, Reason, Script};
use crate::health::Counters;
use crate::script::{self, Time};

/// How long a probe waits for a connection. No request waits for a probe.
const PROBE_CONNECTS: Duration = Duration::from_secs(1);
/// How long it is until the next one, once a probe was answered.
const PROBE_AGAIN: Duration = Duration::from_millis(100);
const DOUBT_EVERY_US: u64 = 1_000_000;
/// The time of the server's own clock.
const SERVER_TIME: u64 = 0;

/// What is thought of a server.
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
    pub(crate) prefix: Arc<str>,
    pub(crate) counters: Counters,
    pub(crate) connection: Connection,
    /// The deployment's secret, once it was asked for.
    pub(crate) secret: OnceLock<[u8; 16]>,
    /// A digest of what this node hashes keys with, once that is certain.
    pub(crate) digest: OnceLock<String>,
    /// How many nodes have another.
    pub(crate) strangers: AtomicU32,
    clock: SystemClock,
    timeout: Duration,
    breaker: Mutex<Breaker>,
    status: watch::Sender<Status>,
    /// Whether the breaker lets calls through, for those who only want to know that.
    asks: AtomicBool,
    last_error: Mutex<Option<String>>,
    doubt: Mutex<Doubt>,
    /// The time to go by in tests.
    fixed_us: AtomicU64,
}

impl Shard {
    pub(super) fn new(config: &Config) -> Self {
        let clock = SystemClock::new();
        let breaker = Breaker::new(clock.steady_us());
        let status = Status { state: breaker.state(), since_us: breaker.since_us() };
        Self {
            address: config.address(),
            prefix: Arc::clone(&config.prefix),
            counters: Counters::default(),
            connection: Connection::start(config),
            secret: OnceLock::new(),
            digest: OnceLock::new(),
            strangers: AtomicU32::new(0),
            clock,
            timeout: config.timeout,
            breaker: Mutex::new(breaker),
            status: watch::Sender::new(status),
            asks: AtomicBool::new(false),
            last_error: Mutex::default(),
            doubt: Mutex::default(),
            fixed_us: AtomicU64::new(SERVER_TIME),
        }
    }

    pub(crate) fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Whether the server is asked at all.
    pub(super) fn asks(&self) -> bool {
        self.asks.load(Ordering::Relaxed)
    }

    /// Why it is not.
    pub(super) fn open(&self) -> Failure {
        let detail = match self.last_error() {
            Some(error) => format!("it is not asked since it failed: {error}"),
            None => "it was not reached yet".to_owned(),
        };
        Failure::new(Reason::Open, true, detail)
    }

    pub(super) fn last_error(&self) -> Option<String> {
        locked(&self.last_error).clone()
    }

    pub(super) fn go_by(&self, time: Time) {
        let fixed_us = match time {
            Time::Server => SERVER_TIME,
            Time::Fixed(unix_us) => unix_us,
        };
        self.fixed_us.store(fixed_us, Ordering::SeqCst);
    }

    /// Runs a script if the breaker lets it, and tells the breaker how it went.
    pub(crate) async fn run(
        &self,
        script: Script,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let permit = locked(&self.breaker).permit().ok_or_else(|| self.open())?;
        let began_us = self.clock.steady_us();
        let replied = self.connection.run(script, keys, arguments, deadline).await;
        match &replied {
            Ok(_) => {
                let took_us = self.clock.steady_us().saturating_sub(began_us);
                self.counters.latency_us.store(took_us, Ordering::Relaxed);
            }
            Err(failure) => self.note(failure),
        }
        self.called(permit, replied.is_ok());
        replied
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
                _ = self.run(decide(), &[], &[self.header()], Instant::now() + self.timeout).await;
                continue;
            }
            let at_us = locked(&self.breaker).probe_at_us().unwrap_or_default();
            sleep(Duration::from_micros(at_us.saturating_sub(self.clock.steady_us()))).await;
            if self.tell(|breaker, now_us| breaker.probe(now_us)) {
                let answered = self.probe().await;
                self.tell(|breaker, now_us| breaker.probed(answered, now_us, fastrand::u64(..)));
            }
        }
    }

    /// A call without asks, which the breaker knows of.
    async fn probe(&self) -> bool {
        self.connection.connected(Instant::now() + PROBE_CONNECTS).await;
        let (arguments, deadline) = ([self.header()], Instant::now() + self.timeout);
        let replied = self.connection.run(decide(), &[], &arguments, deadline).await;
        if let Err(failure) = &replied {
            self.note(failure);
        }
        replied.is_ok()
    }

    fn header(&self) -> Vec<u8> {
        script::header(match self.fixed_us.load(Ordering::SeqCst) {
            SERVER_TIME => Time::Server,
            unix_us => Time::Fixed(unix_us),
        })
    }

    fn note(&self, failure: &Failure) {
        *locked(&self.last_error) = Some(failure.error.detail.clone());
    }

    fn called(&self, permit: Permit, answered: bool) {
        self.tell(|breaker, now_us| breaker.called(permit, answered, now_us, fastrand::u64(..)));
    }

    /// Tells the breaker something, and everybody else if it changed its mind.
    fn tell<T>(&self, tell: impl FnOnce(&mut Breaker, u64) -> T) -> T {
        let mut breaker = locked(&self.breaker);
        let before = breaker.state();
        let told = tell(&mut breaker, self.clock.steady_us());
        let (state, since_us) = (breaker.state(), breaker.since_us());
        if state != before {
            self.asks.store(state.asks(), Ordering::Relaxed);
            self.counters.changed(state);
            // While the breaker is locked, so that nobody hears of changes in another order.
            self.status.send_replace(Status { state, since_us });
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

impl Caller for Shard {
    type Ask = Ask;
    type Told = Result<Told, Failure>;

    async fn call(&self, asks: Vec<Ask>, deadline: Instant) -> Vec<Result<Told, Failure>> {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let (mut keys, mut arguments) = (Vec::new(), Vec::with_capacity(asks.len() + 1));
        arguments.push(self.header());
        for ask in &asks {
            arguments.push(codec::encode(ask, &self.prefix, &mut keys));
        }
        let replied = self.run(decide(), &keys, &arguments, deadline).await;
        match replied.and_then(|reply| replies(reply, asks.len())) {
            Ok(replies) => asks.iter().zip(replies).map(|(ask, reply)| told(ask, reply)).collect(),
            Err(failure) => vec![Err(failure); asks.len()],
        }
    }
}

impl Weighed for Ask {
    fn keys(&self) -> usize {
        match self {
            Self::Decide(plan) => plan.levels.len(),
            Self::Amend(amendments) => amendments.len(),
        }
    }
}

fn decide() -> Script {
    Script { text: script::TEXT, sha1: script::sha1() }
}

fn replies(reply: Value, expected: usize) -> Result<Vec<Value>, Failure> {
    match reply {
        Value::Array(replies) if replies.len() == expected => Ok(replies),
        _ => Err(Failure::unreadable("the script's reply has another shape")),
    }
}

fn told(ask: &Ask, reply: Value) -> Result<Told, Failure> {
    match reply {
        Value::BulkString(bytes) => codec::decode(ask, &bytes)
            .map_err(|error| Failure { reason: Reason::Unreadable, error }),
        Value::ServerError(error) => Err(Failure::refused(&error)),
        _ => Err(Failure::unreadable("the script's reply has another shape")),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
