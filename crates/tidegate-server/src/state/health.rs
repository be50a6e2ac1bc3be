//! How the saving goes, for operators.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is known of the state directory while the daemon runs.
#[derive(Debug)]
pub(crate) struct Health {
    path: PathBuf,
    present: Mutex<StatePresent>,
}

/// How it is at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatePresent {
    /// All that was counted and marked until then is saved, in Unix time.
    pub(crate) saved_unix_us: Option<u64>,
    /// How many bytes were written.
    pub(crate) written_bytes: u64,
    /// What cannot be saved, and why.
    pub(crate) failures: Vec<(&'static str, String)>,
}

impl Health {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), present: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn present(&self) -> StatePresent {
        self.locked().clone()
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.locked().written_bytes += bytes;
    }

    pub(super) fn saved(&self, unix_us: u64) {
        self.locked().saved_unix_us = Some(unix_us);
    }

    /// What is not saved for now; logged when that begins.
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

    /// It is saved again; logged if it was not.
    pub(super) fn recovered(&self, of: &'static str) {
        let failures = &mut self.locked().failures;
        let known = failures.len();
        failures.retain(|(known, _)| *known != of);
        if failures.len() < known {
            tracing::info!(event = "state_recovered", of, "all is in the state directory again");
        }
    }

    fn locked(&self) -> MutexGuard<'_, StatePresent> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
