//! The state directory: what outlives the process.
//!
//! Counters and marks have a journal each: a base with everything, and logs of what changed since.
//! Changes are appended within a second by a thread of its own ([`Saver`]); when the logs have outgrown
//! the base a new one is written beside it and takes its place in one step. At the start all of it is
//! read and checked before any of it is used: counters that are half right would be worse than none.

mod format;
mod found;
mod health;
mod journal;
mod names;
mod saver;

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tidegate::clock::Now;
use tidegate::marks::{Mark, MarkChange, MarkKind, Marks};
use tidegate::store::{ImportSummary, Memory, SavedChange};
use tidegate::{HashKey, Key};

pub(crate) use health::{Health, StatePresent};
pub(crate) use journal::Journal;
pub(crate) use saver::{Saved, Saver};

use found::{Cut, Found};
use journal::Position;
use names::Names;

const LOCK: &str = "lock";

/// What is written while the daemon runs.
pub(crate) struct Journals {
    /// Where counters are in this process's memory.
    pub(crate) counters: Option<Journal<SavedChange>>,
    pub(crate) marks: Journal<MarkChange>,
}

/// A directory that this process alone uses.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    health: Arc<Health>,
    /// The lock is held for as long as the file is open.
    _lock: File,
}

/// Why a state directory cannot be used: which file, what was found, and what to do.
#[derive(Debug)]
pub(crate) struct StateError(String);

impl std::fmt::Display for StateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StateError {}

impl StateDir {
    /// Opens a state directory, and makes it if it is not there, for this user alone.
    ///
    /// # Errors
    /// It cannot be made or written to, or another process uses it.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let at = path.display();
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
            StateError(format!("cannot make the state directory {at}: {error}"))
        })?;
        let lock = writable().truncate(false).open(path.join(LOCK)).map_err(|error| {
            StateError(format!("cannot write to the state directory {at}: {error}"))
        })?;
        match lock.try_lock() {
            Ok(()) => {
                let health = Arc::new(Health::new(path));
                Ok(Self { path: path.to_owned(), health, _lock: lock })
            }
            Err(TryLockError::WouldBlock) => Err(StateError(format!(
                "the state directory {at} is in use by another process; give each its own"
            ))),
            Err(TryLockError::Error(error)) => {
                Err(StateError(format!("cannot lock the state directory {at}: {error}")))
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How the saving goes.
    pub(crate) const fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Puts the saved keys back into a store whose limits have been announced, and tracks what changes
    /// from then on. `now` must be read from the clock that the store will run on.
    ///
    /// # Errors
    /// What was saved cannot be read or used. The store is as it was, unless the disk itself failed
    /// after all had been read once without fault.
    pub(crate) fn load_counters(
        &self,
        store: &Memory,
        secret: &HashKey,
        now: Now,
    ) -> Result<(Journal<SavedChange>, Option<ImportSummary>), StateError> {
        let (names, fingerprint) = (Names::counters(&self.path), secret.fingerprint());
        let found = Found::look(&names, Some(fingerprint))?;
        let position = position(&found);
        let mut imported = (!found.is_empty()).then(ImportSummary::default);
        found.replay(&names, now, |saved_at, changes| {
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
        let mut journal = Journal::new(names, fingerprint, position);
        journal.abandon_base();
        Ok((journal, imported))
    }

    /// Takes saved marks back, and tracks what changes from then on; also returns how many still hold.
    ///
    /// # Errors
    /// They cannot be read or used. None of them is taken then.
    pub(crate) fn load_marks(
        &self,
        marks: &Marks,
        secret: &HashKey,
        now: Now,
    ) -> Result<(Journal<MarkChange>, usize), StateError> {
        let names = Names::marks(&self.path);
        let found = Found::look(&names, None)?;
        let position = position(&found);
        // By the ids that they had then, which may be of another secret.
        let mut saved: HashMap<(MarkKind, Key), Mark> = HashMap::new();
        found.replay(&names, now, |_, changes| {
            for change in changes {
                match change {
                    MarkChange::Set(mark) => saved.insert((mark.kind, mark.id), mark),
                    MarkChange::Removed { id, kind } => saved.remove(&(kind, id)),
                };
            }
        })?;
        let back = marks.import(saved.into_values(), now);
        marks.track_changes();
        let mut journal = Journal::new(names, secret.fingerprint(), position);
        journal.abandon_base();
        Ok((journal, back))
    }

    /// Writes a file beside the one of this name and puts it in its place, durably.
    pub(crate) fn replace(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let (path, temporary) = (self.path.join(name), self.path.join(format!("{name}.tmp")));
        let mut file = writable().truncate(true).open(&temporary)?;
        write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        File::open(&self.path)?.sync_all()
    }
}

fn writable() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

/// Where a journal goes on after what was found.
fn position<T: DeserializeOwned>(found: &Found<T>) -> Position {
    if let Some(Cut { path, bytes }) = &found.cut {
        let file = path.display();
        let message =
            "the end of a log was not finished when the daemon was killed, and is left out";
        tracing::warn!(event = "state_cut", %file, bytes, "{message}");
    }
    let (next, previous_bytes) = found.next();
    Position {
        has_base: !found.is_empty(),
        base_bytes: found.base_bytes(),
        logged: found.logged(),
        next,
        previous_bytes,
    }
}

#[cfg(test)]
mod tests;
