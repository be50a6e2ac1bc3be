//! The thread that saves: changes within a second, and a new snapshot when the logs have grown long.
//!
//! Decisions never wait for the disk. Changes are tracked in memory and taken a few keys at a time; only
//! this thread writes files.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Serialize;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::marks::{Mark, MarkChange, MarkKind, Marks};
use tidegate::engine::store::SavedChange;

use super::health::StateHealth;
use super::journal::{Journal, Snapshot};
use super::{Journals, StateDir};
use crate::app::App;
use crate::error::StartError;

/// The time from a change until it is saved, by the duration of the last save. It is less than a second,
/// so that a kill loses no more than the last second even if a save takes longer.
const WITHIN_US: u64 = 700_000;
/// The shortest pause between two saves.
const PAUSE_US: u64 = 100_000;
/// The delay after a full or failing disk.
const RETRY_US: u64 = 5_000_000;
/// The number of snapshot records between two looks at the clock.
const LOOK_EVERY: usize = 1_024;
/// The number of marks that are read at once.
const PAGE: usize = 4_096;

/// The handle of the thread.
pub(crate) struct StateWriter {
    stop: Sender<()>,
    thread: JoinHandle<Result<SaveSummary, StartError>>,
}

/// The numbers that were saved at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SaveSummary {
    pub(crate) keys: u64,
    pub(crate) marks: u64,
}

impl StateWriter {
    /// Starts the thread. It saves the changes of the engine, which tracks them since recovery.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(app: Arc<App>, state: StateDir, journals: Journals) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let writer = WriterThread::new(app, state, journals, stopped);
        let thread = thread::Builder::new().name("state".to_owned()).spawn(|| writer.run())?;
        Ok(Self { stop, thread })
    }

    /// Saves everything once more, and ends the thread.
    ///
    /// # Errors
    /// Something could not be written. What was saved before is untouched.
    pub(crate) fn finish(self) -> Result<SaveSummary, StartError> {
        drop(self.stop);
        let ended = StartError::new("the thread that saves to the state directory has failed");
        self.thread.join().unwrap_or(Err(ended))
    }
}

struct WriterThread {
    app: Arc<App>,
    state: StateDir,
    counters: Option<Journal<SavedChange>>,
    marks: Journal<MarkChange>,
    stop: Receiver<()>,
    /// The next save, on the steady clock.
    due_us: u64,
    /// The next snapshot, at the earliest.
    snapshot_us: u64,
    stopping: bool,
}

/// Selects a journal of the thread.
type Which<T> = fn(&mut WriterThread) -> Option<&mut Journal<T>>;

const COUNTERS: Which<SavedChange> = |thread| thread.counters.as_mut();
const MARKS: Which<MarkChange> = |thread| Some(&mut thread.marks);

impl WriterThread {
    fn new(app: Arc<App>, state: StateDir, journals: Journals, stop: Receiver<()>) -> Self {
        let Journals { counters, marks } = journals;
        let due_us = app.now().steady_us.saturating_add(WITHIN_US);
        Self { app, state, counters, marks, stop, due_us, snapshot_us: 0, stopping: false }
    }

    fn run(mut self) -> Result<SaveSummary, StartError> {
        while !self.wait_for_stop() {
            self.save_changes();
            self.write_snapshots();
        }
        self.finish()
    }

    /// Waits until a save is due; true if the thread must stop instead.
    fn wait_for_stop(&mut self) -> bool {
        let left_us = self.due_us.saturating_sub(self.app.now().steady_us);
        let signal = self.stop.recv_timeout(Duration::from_micros(left_us));
        self.stopping |= !matches!(signal, Err(RecvTimeoutError::Timeout));
        self.stopping
    }

    /// Appends changes to the logs. Changes during a save wait for the next one, so that a longer save
    /// makes the next one begin sooner.
    fn save_changes(&mut self) {
        let started_us = self.app.now().steady_us;
        self.append_changes();
        let took_us = self.app.now().steady_us.saturating_sub(started_us);
        let left_us = WITHIN_US.saturating_sub(took_us).max(took_us + PAUSE_US);
        self.due_us = started_us.saturating_add(left_us);
    }

    fn append_changes(&mut self) {
        let (app, now) = (Arc::clone(&self.app), self.app.now());
        let health = self.state.health();
        if let (Some(journal), Some(memory)) = (&mut self.counters, app.engine.store().memory()) {
            if memory.lost_track() {
                journal.mark_broken();
            }
            append(journal, health, now, memory.changes(now));
        }
        append(&mut self.marks, health, now, app.engine.marks().changes(now));
        if self.marks.is_whole() && self.counters.as_ref().is_none_or(Journal::is_whole) {
            health.saved(now.unix_us);
        }
    }

    /// Writes the snapshots that are due.
    fn write_snapshots(&mut self) {
        if self.app.now().steady_us < self.snapshot_us {
            return;
        }
        if self.counters.as_ref().is_some_and(Journal::wants_snapshot) {
            self.try_snapshot(COUNTERS, Self::snapshot_counters);
        }
        if !self.stopping && self.marks.wants_snapshot() {
            self.try_snapshot(MARKS, Self::snapshot_marks);
        }
    }

    /// Writes a snapshot, unless the thread must stop: then it writes all snapshots anyway.
    fn try_snapshot<T: Serialize>(
        &mut self,
        which: Which<T>,
        write: fn(&mut Self) -> io::Result<Option<u64>>,
    ) {
        let written = write(self);
        let health = Arc::clone(self.state.health());
        let snapshot_us = self.app.now().steady_us.saturating_add(RETRY_US);
        let Some(journal) = which(self) else { return };
        let of = journal.names().of;
        match written {
            Ok(Some(_)) => health.recovered(of),
            Ok(None) => journal.abandon_snapshot(),
            Err(error) => {
                journal.abandon_snapshot();
                health.failed(of, &error);
                self.snapshot_us = snapshot_us;
            }
        }
    }

    fn snapshot_counters(&mut self) -> io::Result<Option<u64>> {
        let (app, now) = (Arc::clone(&self.app), self.app.now());
        let (Some(journal), Some(memory)) = (&mut self.counters, app.engine.store().memory())
        else {
            return Ok(None);
        };
        let snapshot = journal.begin_snapshot(now)?;
        self.fill(COUNTERS, snapshot, now, memory.export(now).map(SavedChange::Set))
    }

    fn snapshot_marks(&mut self) -> io::Result<Option<u64>> {
        let (app, now) = (Arc::clone(&self.app), self.app.now());
        let snapshot = self.marks.begin_snapshot(now)?;
        self.fill(MARKS, snapshot, now, all_marks(app.engine.marks(), now).map(MarkChange::Set))
    }

    /// Writes all records of a snapshot, and saves changes meanwhile; `None` if the thread must stop.
    fn fill<T: Serialize>(
        &mut self,
        which: Which<T>,
        mut snapshot: Snapshot,
        now: Now,
        records: impl Iterator<Item = T>,
    ) -> io::Result<Option<u64>> {
        for (index, record) in records.enumerate() {
            let waited = snapshot.record(now, &record)?;
            if (waited || index % LOOK_EVERY == 0) && !self.stopping {
                self.stopping = !matches!(self.stop.try_recv(), Err(TryRecvError::Empty));
                if self.stopping {
                    return Ok(None);
                }
                if self.app.now().steady_us >= self.due_us {
                    self.save_changes();
                    if which(self).is_none_or(|journal| !journal.accepts()) {
                        return Err(io::Error::other("changes could not be written meanwhile"));
                    }
                }
            }
        }
        let Some(journal) = which(self) else { return Ok(None) };
        let written = journal.finish_snapshot(now, snapshot).map(Some);
        let bytes = journal.take_written();
        self.state.health().wrote(bytes);
        written
    }

    /// Saves marks and counters, each by itself: if one fails, the other is saved all the same.
    fn finish(mut self) -> Result<SaveSummary, StartError> {
        self.stopping = true;
        let (marks, keys) = (self.snapshot_marks(), self.snapshot_counters());
        let failed =
            [("marks", &marks), ("counters", &keys)].into_iter().filter_map(|(of, saved)| {
                let (error, at) = (saved.as_ref().err()?, self.state.path().display());
                Some(format!("cannot save {of} to the state directory {at}: {error}"))
            });
        let failed: Vec<String> = failed.collect();
        match (marks, keys) {
            (Ok(marks), Ok(keys)) => {
                Ok(SaveSummary { keys: keys.unwrap_or_default(), marks: marks.unwrap_or_default() })
            }
            _ => Err(StartError::new(failed.join("; "))),
        }
    }
}

fn append<T: Serialize>(
    journal: &mut Journal<T>,
    health: &StateHealth,
    now: Now,
    changes: impl Iterator<Item = T>,
) {
    if !journal.accepts() {
        // The next snapshot will have them.
        changes.for_each(drop);
        return;
    }
    if let Err(error) = journal.append(now, changes) {
        health.failed(journal.names().of, &error);
    }
    health.wrote(journal.take_written());
}

/// All marks, a page at a time.
fn all_marks(marks: &Marks, now: Now) -> impl Iterator<Item = Mark> + '_ {
    let kinds = [MarkKind::Ban, MarkKind::Flag, MarkKind::Factor];
    kinds.into_iter().flat_map(move |kind| {
        let mut last = Some(None::<Key>);
        let pages = std::iter::from_fn(move || {
            let page = marks.list(kind, last?, PAGE, now);
            last = page.last().map(|mark| Some(mark.id));
            Some(page)
        });
        pages.flatten()
    })
}

#[cfg(test)]
mod tests;
