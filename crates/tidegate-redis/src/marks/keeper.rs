//! Tells the server of this node's marks, and this node of the server's.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::queue::{Queue, Queued};
use super::script::{self, Hearing, Place};
use super::{HeardMark, Replica};
use crate::connection::{Failure, Reason, Run, Script};
use crate::store::Topology;

const EVERY: Duration = Duration::from_secs(1);
/// How soon it is looked again whether the store can be asked.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long changes gather behind those that were told.
const GATHER: Duration = Duration::from_millis(5);
/// How often the keys are kept for longer.
const KEEP_EVERY: Duration = Duration::from_secs(3_600);
/// How many changes travel together.
const PAGE: usize = 500;
/// It is no request: it may wait until a loaded server gets to it.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What tells the server of a node's changes.
#[derive(Clone)]
pub(crate) struct Teller {
    pub(crate) topology: Arc<Topology>,
    pub(crate) channel: Vec<u8>,
    pub(crate) queue: Arc<Queue>,
}

/// What keeps one node and the server in step.
pub(crate) struct Keeper {
    teller: Teller,
    replica: Arc<dyn Replica>,
    /// Whether this node has heard everything once.
    whole: watch::Sender<bool>,
    node: String,
    place: Place,
    /// What was there, while everything is heard anew.
    seen: Option<HashSet<u128>>,
    kept: Option<Instant>,
    told_of_trouble: bool,
}

impl Teller {
    /// Tells what waits for the last time, and not for long: for a node that is about to end.
    pub(crate) async fn finish(&self) {
        let told = tokio::time::timeout(TIMEOUT, self.tell()).await;
        if !matches!(told, Ok(Ok(()))) {
            tracing::error!(
                event = "marks_unshared",
                "the store could not be told of all bans and flags of this node before its end"
            );
        }
    }

    /// Tells all that waits, one caller at a time: who comes later also waits for what is on its way.
    async fn tell(&self) -> Result<(), Failure> {
        let _turn = self.queue.telling.lock().await;
        loop {
            let changes = self.queue.take(PAGE);
            if changes.is_empty() {
                return Ok(());
            }
            if let Err(failure) = self.send(&changes, false).await {
                self.queue.put_back(changes);
                return Err(failure);
            }
        }
    }

    async fn send(&self, changes: &[Queued], if_absent: bool) -> Result<(), Failure> {
        let run = script::tell(self.topology.own(), &self.channel, changes, if_absent);
        let refused = script::refused(&self.run(script::telling(), run).await?)?;
        if refused > 0 {
            tracing::error!(
                event = "marks_unshared",
                refused,
                "the store has no room for further bans and flags: other nodes do not know these"
            );
        }
        Ok(())
    }

    /// Runs a script beside the breaker, which is for requests: a page is long, and nobody waits.
    async fn run(&self, script: Script, run: Run) -> Result<Value, Failure> {
        let member = self.topology.own_member()?;
        if !member.shard.asks() {
            return Err(Failure::new(Reason::Open, true, "the store is lost"));
        }
        let replied = member.shard.connection.run(script, run, Instant::now() + TIMEOUT).await;
        self.topology.note_move(&member, &replied);
        replied
    }
}

impl Keeper {
    pub(crate) fn new(
        teller: Teller,
        replica: Arc<dyn Replica>,
        whole: watch::Sender<bool>,
    ) -> Self {
        Self {
            teller,
            replica,
            whole,
            node: format!("{:016x}", fastrand::u64(..)),
            place: Place::default(),
            seen: Some(HashSet::new()),
            kept: None,
            told_of_trouble: false,
        }
    }

    /// Keeps them in step for as long as it is let.
    pub(crate) async fn keep(mut self) {
        loop {
            match self.turn().await {
                Ok(()) => {
                    self.told_of_trouble = false;
                    self.whole.send_replace(true);
                    sleep(GATHER).await;
                    tokio::select! {
                        () = sleep(EVERY) => {}
                        () = self.teller.queue.wake.notified() => {}
                    }
                }
                Err(failure) => {
                    self.begin_anew();
                    self.log(&failure);
                    // Not asked yet, or not at the moment.
                    let asked = failure.reason != Reason::Open;
                    sleep(if asked { EVERY } else { LOOK_AGAIN }).await;
                }
            }
        }
    }

    /// Tells what has changed here, and hears what has changed there.
    async fn turn(&mut self) -> Result<(), Failure> {
        self.teller.tell().await?;
        if self.teller.queue.has_dropped() {
            self.begin_anew();
        }
        while self.hear().await? {}
        if let Some(seen) = self.seen.take()
            && let Err(failure) = self.tell_what_lacks(&seen).await
        {
            self.seen = Some(seen);
            return Err(failure);
        }
        Ok(())
    }

    /// Everything is heard once more.
    fn begin_anew(&mut self) {
        self.place.number = 0;
        self.seen = Some(HashSet::new());
    }

    /// Hears a page; returns whether there is another.
    async fn hear(&mut self) -> Result<bool, Failure> {
        let keep = self.kept.is_none_or(|kept| kept.elapsed() >= KEEP_EVERY);
        let hearing = Hearing {
            place: &self.place,
            count: PAGE,
            keep,
            node: &self.node,
            load_ppm: self.replica.own_load_ppm(),
        };
        let run = script::hear(self.teller.topology.own(), &hearing);
        let told = script::told(self.teller.run(script::hearing(), run).await?)?;
        if keep {
            self.kept = Some(Instant::now());
        }
        if told.place.epoch != self.place.epoch {
            self.begin_anew();
        }
        self.place = told.place;
        self.replica.heard_load(told.load_ppm);
        let more = told.more;
        if let Some(seen) = &mut self.seen {
            seen.extend(told.changes.iter().map(|change| change.id));
        }
        // What has changed here meanwhile goes before.
        let is_old = |change: &HeardMark| !self.teller.queue.has(change.id);
        let changes: Vec<HeardMark> = told.changes.into_iter().filter(is_old).collect();
        if !changes.is_empty() {
            self.replica.heard(changes);
        }
        Ok(more)
    }

    /// Says what this node knows and the server does not.
    async fn tell_what_lacks(&self, seen: &HashSet<u128>) -> Result<(), Failure> {
        let known = self.replica.known().filter(|change| !seen.contains(&change.id));
        let mut known = known.map(Queued::new);
        loop {
            let changes: Vec<Queued> = known.by_ref().take(PAGE).collect();
            if changes.is_empty() {
                return Ok(());
            }
            self.teller.send(&changes, true).await?;
        }
    }

    /// A store that is lost is told of elsewhere; one that does not let us is not.
    fn log(&mut self, failure: &Failure) {
        let error = &failure.error;
        if error.transient {
            tracing::debug!(event = "marks_unheard", %error, "bans and flags were not exchanged");
        } else if !std::mem::replace(&mut self.told_of_trouble, true) {
            tracing::error!(
                event = "marks_unshared",
                %error,
                "the store does not let this node exchange bans and flags with others"
            );
        }
    }
}
