//! Reloading: policies, certificates, keys, countries and tokens are read again from their files. A
//! part whose files are broken stays as it was, and the log says why.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::Signal;

use crate::admin::Status;
use crate::app::App;
use crate::drain::StopSignals;
use crate::error::StartError;
use crate::telemetry::ReloadResult;
use crate::watch::Changes;

/// Reads everything again that can be read again.
pub(crate) struct Reloader {
    app: Arc<App>,
    status: Arc<Status>,
    parts: Vec<Part>,
    /// The files that can be read only once. A reload keeps their content.
    pipes: Vec<PathBuf>,
}

/// Something that is reloaded by itself.
struct Part {
    name: &'static str,
    reload: Box<dyn Fn() -> Result<(), StartError> + Send + Sync>,
}

impl Reloader {
    pub(crate) fn new(app: Arc<App>, status: Arc<Status>, pipes: Vec<PathBuf>) -> Self {
        Self { app, status, parts: Vec::new(), pipes }
    }

    /// Adds a part that is read from these files, if they can be read again.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        files: &[&PathBuf],
        reload: impl Fn() -> Result<(), StartError> + Send + Sync + 'static,
    ) {
        if !files.iter().any(|file| self.pipes.contains(file)) {
            self.parts.push(Part { name, reload: Box::new(reload) });
        }
    }

    /// Reloads on a hang-up and on changed files, until a signal stops the daemon.
    pub(crate) async fn run_until_stopped(
        self,
        changes: Changes,
        mut hang_up: Signal,
        mut stop: StopSignals,
    ) -> StopSignals {
        let (_watcher, mut changes) = changes;
        let reloader = Arc::new(self);
        loop {
            tokio::select! {
                _ = hang_up.recv() => {}
                Some(()) = changes.recv() => {}
                () = stop.wait() => return stop,
            }
            let reloader = Arc::clone(&reloader);
            // Files block the thread that reads them.
            if let Err(error) = tokio::task::spawn_blocking(move || reloader.reload()).await {
                tracing::error!(event = "reload_refused", "a reload failed: {error}");
            }
        }
    }

    fn reload(&self) {
        let (now, mut outcome) = (self.app.now(), Outcome::default());
        for Part { name, reload } in &self.parts {
            match reload() {
                Ok(()) => outcome.taken.push(*name),
                Err(error) => outcome.refused.push((*name, error.to_string())),
            }
        }
        self.status.tried(now, outcome.error());
        self.app.metrics.reloaded(outcome.result());
        outcome.log(&self.pipes);
    }
}

/// The parts that a reload replaced, and those that it refused.
#[derive(Default)]
struct Outcome {
    taken: Vec<&'static str>,
    refused: Vec<(&'static str, String)>,
}

impl Outcome {
    fn result(&self) -> ReloadResult {
        match (self.refused.is_empty(), self.taken.is_empty()) {
            (true, _) => ReloadResult::Taken,
            (false, false) => ReloadResult::Partial,
            (false, true) => ReloadResult::Refused,
        }
    }

    /// What was wrong. After a partial reload it also names the parts that were replaced.
    fn error(&self) -> Option<String> {
        let refused = self.refused.iter();
        if self.refused.is_empty() {
            None
        } else if self.taken.is_empty() {
            Some(refused.map(|(_, error)| error.as_str()).collect::<Vec<_>>().join("\n"))
        } else {
            let refused: Vec<_> =
                refused.map(|(part, error)| format!("{part} ({error})")).collect();
            let taken = self.taken.join(", ");
            Some(format!("taken: {taken}; as before: {}", refused.join(", ")))
        }
    }

    fn log(&self, pipes: &[PathBuf]) {
        let names: Vec<_> = pipes.iter().map(|pipe| pipe.display().to_string()).collect();
        let kept = match &names[..] {
            [] => String::new(),
            [pipe] => format!("; {pipe} is a pipe and stays as it was read"),
            pipes => format!("; {} are pipes and stay as they were read", pipes.join(", ")),
        };
        match self.error() {
            None if self.taken.is_empty() => {
                tracing::warn!(event = "reload_kept", "nothing can be read anew{kept}");
            }
            None => {
                let taken = self.taken.join(", ");
                tracing::info!(event = "reloaded", "{taken} are read anew and in force{kept}");
            }
            Some(error) => {
                let extent =
                    if self.taken.is_empty() { ", what was in force stays" } else { " in part" };
                tracing::error!(event = "reload_refused", "a reload was refused{extent}: {error}");
            }
        }
    }
}
