//! The thread that saves: within a second what has changed, and everything when the log has grown long.
//!
//! Decisions never wait for the disk. What changes is noted in memory and taken a few keys at a time;
//! all files are written here.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Serialize;
use tidegate::Key;
use tidegate::clock::Now;
use tidegate::marks::{Mark, MarkChange, MarkKind, Marks};
use tidegate::store::SavedChange;

use super::health::Health;
use super::journal::{Base, Journal};
use super::{Journals, StateDir, StateError};
use crate::app::App;

/// How long a change waits to be saved, what saving takes itself included, as far as the last time tells:
/// less than a second, so that a kill loses no more than the last even where it takes longer by then.
const WITHIN_US: u64 = 700_000;
/// How long it waits at least between two times, where saving takes most of that.
const PAUSE_US: u64 = 100_000;
/// How soon it is tried again where the disk is full or fails.
const AGAIN_US: u64 = 5_000_000;
/// How many records of a base are written between two looks at the clock.
const LOOK_EVERY: usize = 1_024;
/// How many marks are read at once.
const PAGE: usize = 4_096;

/// Saves for as long as it lives.
pub(crate) struct Saver {
    stop: Sender<()>,
    thread: JoinHandle<Result<Saved, StateError>>,
}

/// What was saved at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) keys: u64,
    pub(crate) marks: u64,
}

impl Saver {
    /// Saves what changes in an engine from now on; it has been tracked since it was loaded.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(app: Arc<App>, state: StateDir, journals: Journals) -> io::Result<Self> {
        let (stop, told) = channel();
        let worker = Worker::new(app, state, journals, told);
        let thread = thread::Builder::new().name("state".to_owned()).spawn(|| worker.run())?;
        Ok(Self { stop, thread })
    }

    /// Saves everything once more, and ends.
    ///
    /// # Errors
    /// Something could not be written. What was saved before is untouched.
    pub(crate) fn finish(self) -> Result<Saved, StateError> {
        drop(self.stop);
        let ended = StateError("what saves to the state directory has failed".to_owned());
        self.thread.join().unwrap_or(Err(ended))
    }
}

struct Worker {
    app: Arc<App>,
    state: StateDir,
    counters: Option<Journal<SavedChange>>,
    marks: Journal<MarkChange>,
    told: Receiver<()>,
    /// When changes are saved next, by the steady clock.
    due_us: u64,
    /// When a base may be tried next.
    base_us: u64,
    stopping: bool,
}

/// Which journal of a worker.
type Which<T> = fn(&mut Worker) -> Option<&mut Journal<T>>;

const COUNTERS: Which<SavedChange> = |worker| worker.counters.as_mut();
const MARKS: Which<MarkChange> = |worker| Some(&mut worker.marks);

impl Worker {
    fn new(app: Arc<App>, state: StateDir, journals: Journals, told: Receiver<()>) -> Self {
        let Journals { counters, marks } = journals;
        let due_us = app.now().steady_us.saturating_add(WITHIN_US);
        Self { app, state, counters, marks, told, due_us, base_us: 0, stopping: false }
    }

    fn run(mut self) -> Result<Saved, StateError> {
        while !self.is_told_to_stop() {
            self.save_changes();
            self.write_bases();
        }
        self.finish()
    }

    /// Waits until changes are due; whether it is to stop instead.
    fn is_told_to_stop(&mut self) -> bool {
        let left_us = self.due_us.saturating_sub(self.app.now().steady_us);
        let told = self.told.recv_timeout(Duration::from_micros(left_us));
        self.stopping |= !matches!(told, Err(RecvTimeoutError::Timeout));
        self.stopping
    }

    /// Appends what has changed to the logs. What changes while this goes on waits for the next time, so that
    /// the longer it takes, the sooner that begins.
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
                journal.lack();
            }
            append(journal, health, now, memory.changes(now));
        }
        append(&mut self.marks, health, now, app.engine.marks().changes(now));
        if self.marks.is_whole() && self.counters.as_ref().is_none_or(Journal::is_whole) {
            health.saved(now.unix_us);
        }
    }

    /// Writes the bases that are due.
    fn write_bases(&mut self) {
        if self.app.now().steady_us < self.base_us {
            return;
        }
        if self.counters.as_ref().is_some_and(Journal::wants_base) {
            self.try_base(COUNTERS, Self::counters_base);
        }
        if !self.stopping && self.marks.wants_base() {
            self.try_base(MARKS, Self::marks_base);
        }
    }

    /// Writes a base, unless it is told to stop meanwhile: then all is written anyway.
    fn try_base<T: Serialize>(
        &mut self,
        which: Which<T>,
        write: fn(&mut Self) -> io::Result<Option<u64>>,
    ) {
        let written = write(self);
        let health = Arc::clone(self.state.health());
        let base_us = self.app.now().steady_us.saturating_add(AGAIN_US);
        let Some(journal) = which(self) else { return };
        let of = journal.names().of;
        match written {
            Ok(Some(_)) => health.recovered(of),
            Ok(None) => journal.abandon_base(),
            Err(error) => {
                journal.abandon_base();
                health.failed(of, &error);
                self.base_us = base_us;
            }
        }
    }

    fn counters_base(&mut self) -> io::Result<Option<u64>> {
        let (app, now) = (Arc::clone(&self.app), self.app.now());
        let (Some(journal), Some(memory)) = (&mut self.counters, app.engine.store().memory())
        else {
            return Ok(None);
        };
        let base = journal.begin_base(now)?;
        self.fill(COUNTERS, base, now, memory.export(now).map(SavedChange::Set))
    }

    fn marks_base(&mut self) -> io::Result<Option<u64>> {
        let (app, now) = (Arc::clone(&self.app), self.app.now());
        let base = self.marks.begin_base(now)?;
        self.fill(MARKS, base, now, all_marks(app.engine.marks(), now).map(MarkChange::Set))
    }

    /// Writes all records of a base, while changes are saved as at any other time; `None` if it is told
    /// to stop.
    fn fill<T: Serialize>(
        &mut self,
        which: Which<T>,
        mut base: Base,
        now: Now,
        records: impl Iterator<Item = T>,
    ) -> io::Result<Option<u64>> {
        for (index, record) in records.enumerate() {
            let waited = base.record(now, &record)?;
            if (waited || index % LOOK_EVERY == 0) && !self.stopping {
                self.stopping = !matches!(self.told.try_recv(), Err(TryRecvError::Empty));
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
        let written = journal.finish_base(now, base).map(Some);
        let bytes = journal.take_written();
        self.state.health().wrote(bytes);
        written
    }

    /// Saves everything, each for itself: what cannot be saved takes nothing with it.
    fn finish(mut self) -> Result<Saved, StateError> {
        self.stopping = true;
        let marks = self.marks_base().map_err(|error| self.marks.names().unwritable(&error));
        let keys = match self.counters_base() {
            Ok(keys) => Ok(keys.unwrap_or_default()),
            Err(error) => Err(self.counters.as_ref().map_or_else(
                || StateError(error.to_string()),
                |journal| journal.names().unwritable(&error),
            )),
        };
        match (marks, keys) {
            (Ok(marks), Ok(keys)) => Ok(Saved { keys, marks: marks.unwrap_or_default() }),
            (Err(marks), Err(keys)) => Err(StateError(format!("{marks}; {keys}"))),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

fn append<T: Serialize>(
    journal: &mut Journal<T>,
    health: &Health,
    now: Now,
    changes: impl Iterator<Item = T>,
) {
    if !journal.accepts() {
        // A base will have them; nobody is to remember them until then.
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
