//! The state directory: what outlives the process.
//!
//! Counters and marks have a journal each: a snapshot with everything, and logs with the changes since.
//! A thread of its own ([`StateWriter`]) appends changes within a second. When the logs have outgrown
//! the snapshot, the thread writes a new one beside it and renames it over the old one. At the start
//! everything is read and checked before anything is used: half-restored counters would be worse than
//! none.

mod file_names;
mod health;
mod journal;
mod ownership;
mod record_format;
mod recovery;
mod writer;

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::HashKey;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::marks::{Mark, MarkChange, MarkKind, Marks};
use tidegate::engine::store::{ImportSummary, Memory, SavedChange};

pub(crate) use health::{SaveStatus, StateHealth};
pub(crate) use journal::Journal;
pub(crate) use writer::{SaveSummary, StateWriter};

use crate::error::StartError;
use file_names::FileNames;
use ownership::{make_own_directory, open_writable};
use recovery::{Recovery, TornTail};

const LOCK: &str = "lock";

/// The journals that are written while the daemon runs.
pub(crate) struct Journals {
    /// `None` if a shared store has the counters.
    pub(crate) counters: Option<Journal<SavedChange>>,
    pub(crate) marks: Journal<MarkChange>,
}

/// A directory that this process alone uses.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    health: Arc<StateHealth>,
    /// The lock is held for as long as the file is open.
    _lock: File,
}

impl StateDir {
    /// Opens a state directory. A missing one is made, for this user alone.
    ///
    /// # Errors
    /// It cannot be made or written to, belongs to another user, or another process uses it.
    pub(crate) fn open(path: &Path) -> Result<Self, StartError> {
        let at = path.display();
        make_own_directory(path).map_err(|error| {
            StartError::new(format!("cannot use the state directory {at}: {error}"))
        })?;
        let lock = open_writable(&path.join(LOCK), false).map_err(|error| {
            StartError::new(format!("cannot write to the state directory {at}: {error}"))
        })?;
        match lock.try_lock() {
            Ok(()) => {
                let health = Arc::new(StateHealth::new(path));
                Ok(Self { path: path.to_owned(), health, _lock: lock })
            }
            Err(TryLockError::WouldBlock) => Err(StartError::new(format!(
                "the state directory {at} is in use by another process; give each its own"
            ))),
            Err(TryLockError::Error(error)) => {
                Err(StartError::new(format!("cannot lock the state directory {at}: {error}")))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The state of saving, for operators.
    pub(crate) const fn health(&self) -> &Arc<StateHealth> {
        &self.health
    }

    /// Restores the saved keys in a store whose limits are announced, and tracks changes from then on.
    /// `now` must come from the clock that the store will run on.
    ///
    /// # Errors
    /// The files cannot be read or used. The store is unchanged, unless the disk failed after all files
    /// had been read once without fault.
    pub(crate) fn load_counters(
        &self,
        store: &Memory,
        secret: &HashKey,
        now: Now,
    ) -> Result<(Journal<SavedChange>, Option<ImportSummary>), StartError> {
        let (names, fingerprint) = (FileNames::counters(&self.path), secret.fingerprint());
        let recovery = Recovery::read(&names, Some(fingerprint))?;
        warn_of_torn_tail(recovery.torn.as_ref());
        let position = recovery.position();
        let mut imported = position.has_snapshot.then(ImportSummary::default);
        recovery.replay(&names, now, |saved_at, changes| {
            let some = store.replay(saved_at, changes, now);
            if let Some(imported) = &mut imported {
                imported.meaningless += some.meaningless;
                imported.strangers += some.strangers;
            }
        })?;
        if let Some(imported) = &mut imported {
            imported.restored = store.keys();
        }
        store.track_changes();
        Ok((Journal::new(names, fingerprint, position), imported))
    }

    /// Restores the saved marks and tracks changes from then on; also returns how many still hold.
    ///
    /// # Errors
    /// The files cannot be read or used. No mark is restored then.
    pub(crate) fn load_marks(
        &self,
        marks: &Marks,
        secret: &HashKey,
        now: Now,
    ) -> Result<(Journal<MarkChange>, usize), StartError> {
        let names = FileNames::marks(&self.path);
        let recovery = Recovery::read(&names, None)?;
        warn_of_torn_tail(recovery.torn.as_ref());
        let position = recovery.position();
        // By the saved ids, which may be of another secret.
        let mut saved: HashMap<(MarkKind, Key), Mark> = HashMap::new();
        recovery.replay(&names, now, |_, changes| {
            for change in changes {
                match change {
                    MarkChange::Set(mark) => saved.insert((mark.kind, mark.id), mark),
                    MarkChange::Removed { id, kind } => saved.remove(&(kind, id)),
                };
            }
        })?;
        let restored = marks.import(saved.into_values(), now);
        marks.track_changes();
        Ok((Journal::new(names, secret.fingerprint(), position), restored))
    }

    /// Reads a file, which must belong to this user alone.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<File> {
        ownership::open_own(&self.path.join(name))
    }

    /// Replaces a file, durably.
    pub(crate) fn replace(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        ownership::replace(&self.path.join(name), write)
    }
}

fn warn_of_torn_tail(torn: Option<&TornTail>) {
    if let Some(TornTail { path, bytes }) = torn {
        let file = path.display();
        let message =
            "the end of a log was not finished when the daemon was killed, and is left out";
        tracing::warn!(event = "state_cut", %file, bytes, "{message}");
    }
}

#[cfg(test)]
mod tests;
