//! Pushes this node's marks to the server, and pulls the marks of others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::outbox::{Outbox, QueuedChange};
use super::protocol::{self, Position, PullReply};
use super::{MarkReplica, ReplicatedMark};
use crate::connection::{Failure, Reason, ScriptCall};
use crate::script::Script;
use crate::store::Topology;

const EVERY: Duration = Duration::from_secs(1);
/// How soon a node tries again while the breaker is open.
const RETRY: Duration = Duration::from_millis(50);
/// How long changes gather after a push.
const GATHER: Duration = Duration::from_millis(5);
/// How often the keys' expiry is extended.
const EXTEND_EVERY: Duration = Duration::from_secs(3_600);
/// How many changes travel together.
const PAGE: usize = 500;
/// Replication is no request: it may wait for a loaded server.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Pushes the changes of the outbox.
#[derive(Clone)]
pub(crate) struct MarkPublisher {
    pub(crate) topology: Arc<Topology>,
    pub(crate) channel: Vec<u8>,
    pub(crate) outbox: Arc<Outbox>,
}

/// Keeps one node and the server in step.
pub(crate) struct Replicator {
    publisher: MarkPublisher,
    replica: Arc<dyn MarkReplica>,
    /// True once this node has pulled everything.
    is_complete: watch::Sender<bool>,
    node: String,
    position: Position,
    /// The marks of the server, while all marks are pulled again.
    pulled_ids: Option<HashSet<u128>>,
    extended_at: Option<Instant>,
    is_error_logged: bool,
}

impl MarkPublisher {
    /// Pushes what waits for the last time, and not for long: for a node that is about to end.
    pub(crate) async fn publish_last(&self) {
        if !matches!(timeout(TIMEOUT, self.push_all()).await, Ok(Ok(()))) {
            tracing::error!(
                event = "marks_unshared",
                "the store could not be told of all bans and flags of this node before its end"
            );
        }
    }

    /// Pushes all that waits. A second caller waits for the first, so that both return when all is
    /// pushed.
    async fn push_all(&self) -> Result<(), Failure> {
        let _pushing = self.outbox.pushing.lock().await;
        loop {
            let changes = self.outbox.take(PAGE);
            if changes.is_empty() {
                return Ok(());
            }
            if let Err(failure) = self.push(&changes, false).await {
                self.outbox.put_back(changes);
                return Err(failure);
            }
        }
    }

    async fn push(&self, changes: &[QueuedChange], if_absent: bool) -> Result<(), Failure> {
        let own_prefix = &self.topology.deployment.own_prefix;
        let call = protocol::push_call(own_prefix, &self.channel, changes, if_absent);
        let refused = protocol::read_refused(&self.eval(&protocol::PUSH, call).await?)?;
        if refused > 0 {
            tracing::error!(
                event = "marks_unshared",
                refused,
                "the store has no room for further bans and flags: other nodes do not know these"
            );
        }
        Ok(())
    }

    /// Calls a script without telling the breaker, which is for requests: a page is long.
    async fn eval(&self, script: &Script, call: ScriptCall) -> Result<Value, Failure> {
        let handle = self.topology.own_shard()?;
        if !handle.shard.allows_calls() {
            return Err(Failure::new(Reason::Open, true, "the store is lost"));
        }
        let replied = handle.shard.connection.eval(script, call, Instant::now() + TIMEOUT).await;
        self.topology.note_redirect(&handle, &replied);
        replied
    }
}

impl Replicator {
    pub(crate) fn new(
        publisher: MarkPublisher,
        replica: Arc<dyn MarkReplica>,
        is_complete: watch::Sender<bool>,
    ) -> Self {
        Self {
            publisher,
            replica,
            is_complete,
            node: format!("{:016x}", fastrand::u64(..)),
            position: Position::default(),
            pulled_ids: Some(HashSet::new()),
            extended_at: None,
            is_error_logged: false,
        }
    }

    /// Replicates until the task is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            match self.exchange().await {
                Ok(()) => {
                    self.is_error_logged = false;
                    self.is_complete.send_replace(true);
                    sleep(GATHER).await;
                    tokio::select! {
                        () = sleep(EVERY) => {}
                        () = self.publisher.outbox.wake.notified() => {}
                    }
                }
                Err(failure) => {
                    self.start_over();
                    self.log(&failure);
                    sleep(if failure.reason == Reason::Open { RETRY } else { EVERY }).await;
                }
            }
        }
    }

    /// Pushes what has changed here, and pulls what has changed elsewhere.
    async fn exchange(&mut self) -> Result<(), Failure> {
        self.publisher.push_all().await?;
        if self.publisher.outbox.take_overflow() {
            self.start_over();
        }
        while self.pull_page().await? {}
        if let Some(pulled_ids) = self.pulled_ids.take()
            && let Err(failure) = self.push_missing(&pulled_ids).await
        {
            self.pulled_ids = Some(pulled_ids);
            return Err(failure);
        }
        Ok(())
    }

    /// Lets the next exchange pull everything.
    fn start_over(&mut self) {
        self.position.number = 0;
        self.pulled_ids = Some(HashSet::new());
    }

    /// Pulls a page; true if there are more.
    async fn pull_page(&mut self) -> Result<bool, Failure> {
        let extend = self.extended_at.is_none_or(|at| at.elapsed() >= EXTEND_EVERY);
        let own_load = (self.node.as_str(), self.replica.own_load_ppm());
        let own_prefix = &self.publisher.topology.deployment.own_prefix;
        let call = protocol::pull_call(own_prefix, &self.position, PAGE, extend, own_load);
        let reply = self.publisher.eval(&protocol::PULL, call).await?;
        let PullReply { position, load_ppm, changes, has_more } = protocol::read_pull(reply)?;
        if extend {
            self.extended_at = Some(Instant::now());
        }
        if position.epoch != self.position.epoch {
            self.start_over();
        }
        self.position = position;
        self.replica.apply_load(load_ppm);
        if let Some(pulled_ids) = &mut self.pulled_ids {
            pulled_ids.extend(changes.iter().map(|change| change.id));
        }
        // Changes that wait here are newer.
        let is_current = |change: &ReplicatedMark| !self.publisher.outbox.contains(change.id);
        let changes: Vec<ReplicatedMark> = changes.into_iter().filter(is_current).collect();
        if !changes.is_empty() {
            self.replica.apply(changes);
        }
        Ok(has_more)
    }

    /// Pushes the marks of this node that the server lacks.
    async fn push_missing(&self, pulled_ids: &HashSet<u128>) -> Result<(), Failure> {
        let missing = self.replica.marks().filter(|change| !pulled_ids.contains(&change.id));
        let mut missing = missing.map(QueuedChange::new);
        loop {
            let changes: Vec<QueuedChange> = missing.by_ref().take(PAGE).collect();
            if changes.is_empty() {
                return Ok(());
            }
            self.publisher.push(&changes, true).await?;
        }
    }

    /// The breaker logs a store that is lost, but not one that forbids these scripts.
    fn log(&mut self, failure: &Failure) {
        let error = &failure.error;
        if error.transient {
            tracing::debug!(event = "marks_unheard", %error, "bans and flags were not exchanged");
        } else if !std::mem::replace(&mut self.is_error_logged, true) {
            tracing::error!(
                event = "marks_unshared",
                %error,
                "the store does not let this node exchange bans and flags with others"
            );
        }
    }
}
