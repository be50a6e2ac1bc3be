//! Reloading: policies, certificate, keys and tokens, from the files that the daemon was given. What
//! is broken is refused and told, and the old one stays.

use std::sync::Arc;

use tokio::signal::unix::Signal;

use crate::admin::Status;
use crate::app::App;
use crate::error::StartError;
use crate::guard::SharedTokens;
use crate::sources::{Checked, Sources};
use crate::stop::Stop;
use crate::tls::Certificates;
use crate::tokens::Tokens;
use crate::watch::Changes;

/// Everything that can be read again.
pub(crate) struct Reload {
    pub(crate) app: Arc<App>,
    pub(crate) status: Arc<Status>,
    pub(crate) sources: Sources,
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) tokens: Option<SharedTokens>,
}

impl Reload {
    /// Reloads on a hang-up and on changed files, until the daemon is told to stop.
    pub(crate) async fn until_stopped(
        &self,
        changes: Changes,
        mut hang_up: Signal,
        mut stop: Stop,
    ) -> Stop {
        let (_watcher, mut changes) = changes;
        loop {
            tokio::select! {
                _ = hang_up.recv() => self.run(),
                Some(()) = changes.recv() => self.run(),
                () = stop.told() => return stop,
            }
        }
    }

    /// Reads everything again; each part stays as it is where its files are broken.
    pub(crate) fn run(&self) {
        let mut outcome = Outcome::default();
        if self.sources.jwt.is_some() {
            let verifier = self.sources.read_verifier();
            let taken = verifier.map(|verifier| self.app.verifier.store(verifier.map(Arc::new)));
            outcome.note("the JWT key", taken);
        }
        if let Some(certificates) = &self.certificates {
            outcome.note("the certificate", certificates.reload().map_err(StartError::new));
        }
        if let Some((tokens, path)) = self.tokens.as_ref().zip(self.sources.tokens.as_ref()) {
            let read = Tokens::read(path).map_err(StartError::new);
            outcome.note("the tokens", read.map(|read| tokens.store(Arc::new(read))));
        }
        let now = self.app.now();
        let checked = self.sources.read_policies();
        let checked = checked.and_then(|checked| {
            let in_force = self.app.put_in_force(&checked.policies.all());
            in_force.map(|()| checked).map_err(StartError::new)
        });
        let taken = checked.map(|Checked { policies, warnings }| {
            for warning in self.status.reloaded(now, &policies, warnings) {
                tracing::warn!(event = "warning", "{warning}");
            }
        });
        outcome.note("the policies", taken);
        self.status.tried(now, outcome.error());
        outcome.log();
    }
}

/// What a reload took, and what it refused and why.
#[derive(Default)]
struct Outcome {
    taken: Vec<&'static str>,
    refused: Vec<(&'static str, String)>,
}

impl Outcome {
    fn note(&mut self, part: &'static str, result: Result<(), StartError>) {
        match result {
            Ok(()) => self.taken.push(part),
            Err(error) => self.refused.push((part, error.to_string())),
        }
    }

    /// What was wrong; where only a part was, also what became of each.
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

    fn log(&self) {
        match self.error() {
            None => {
                let taken = self.taken.join(", ");
                tracing::info!(event = "reloaded", "{taken} are read anew and in force");
            }
            Some(error) => {
                let extent =
                    if self.taken.is_empty() { ", what was in force stays" } else { " in part" };
                tracing::error!(event = "reload_refused", "a reload was refused{extent}: {error}");
            }
        }
    }
}
