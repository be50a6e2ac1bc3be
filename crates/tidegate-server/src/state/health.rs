//! The state of saving, for operators.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of saving. The writer thread changes it, status and metrics read it.
#[derive(Debug)]
pub(crate) struct StateHealth {
    path: PathBuf,
    status: Mutex<SaveStatus>,
}

/// The state of saving at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SaveStatus {
    /// Everything until this Unix time is saved.
    pub(crate) saved_unix_us: Option<u64>,
    pub(crate) written_bytes: u64,
    /// The journals that cannot be saved, and why.
    pub(crate) failures: Vec<(&'static str, String)>,
}

impl StateHealth {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), status: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn status(&self) -> SaveStatus {
        self.locked().clone()
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.locked().written_bytes += bytes;
    }

    pub(super) fn saved(&self, unix_us: u64) {
        self.locked().saved_unix_us = Some(unix_us);
    }

    /// A journal cannot be saved; logged when that begins.
    pub(super) fn failed(&self, of: &'static str, error: &impl Display) {
        let failures = &mut self.locked().failures;
        let is_new = failures.iter().all(|(known, _)| *known != of);
        failures.retain(|(known, _)| *known != of);
        failures.push((of, error.to_string()));
        if is_new {
            let message = "what changes is not saved to the state directory; it is tried again";
            tracing::error!(event = "state_failing", of, %error, "{message}");
        }
    }

    /// A journal is saved; logged if it was not before.
    pub(super) fn recovered(&self, of: &'static str) {
        let failures = &mut self.locked().failures;
        let known = failures.len();
        failures.retain(|(known, _)| *known != of);
        if failures.len() < known {
            tracing::info!(event = "state_recovered", of, "all is in the state directory again");
        }
    }

    fn locked(&self) -> MutexGuard<'_, SaveStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
