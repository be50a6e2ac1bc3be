//! Reloading: policies, certificate, keys, countries and tokens, from the files that the daemon was given. What
//! is broken is refused and told, and the old one stays.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tidegate::clock::Now;
use tokio::signal::unix::Signal;

use crate::admin::Status;
use crate::app::App;
use crate::drain::StopSignals;
use crate::error::StartError;
use crate::guard::SharedTokens;
use crate::sources::{Checked, Part, Sources};
use crate::tls::{Certificates, Trust};
use crate::tokens::Tokens;
use crate::watch::Changes;

/// Everything that can be read again.
pub(crate) struct Reload {
    pub(crate) app: Arc<App>,
    pub(crate) status: Arc<Status>,
    pub(crate) sources: Sources,
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) trust: Option<Arc<Trust>>,
    pub(crate) tokens: Option<SharedTokens>,
}

impl Reload {
    /// Reloads on a hang-up and on changed files, until the daemon is told to stop.
    pub(crate) async fn until_stopped(
        &self,
        changes: Changes,
        mut hang_up: Signal,
        mut stop: StopSignals,
    ) -> StopSignals {
        let (_watcher, mut changes) = changes;
        loop {
            tokio::select! {
                _ = hang_up.recv() => self.run().await,
                Some(()) = changes.recv() => self.run().await,
                () = stop.wait() => return stop,
            }
        }
    }

    /// Reads everything again; each part stays as it is where its files are broken.
    async fn run(&self) {
        let (now, mut outcome) = (self.app.now(), Outcome::default());
        for part in self.sources.parts() {
            match self.renew(part, now).await {
                Ok(()) => outcome.taken.push(part),
                Err(error) => outcome.refused.push((part, error.to_string())),
            }
        }
        self.status.tried(now, outcome.error());
        outcome.log(self.sources.pipes());
    }

    async fn renew(&self, part: Part, now: Now) -> Result<(), StartError> {
        match part {
            Part::JwtKey => {
                let verifier = self.sources.read_verifier()?;
                self.app.verifier.store(verifier.map(Arc::new));
            }
            Part::Certificate => {
                let reloaded = self.certificates.as_ref().map_or(Ok(()), |one| one.reload());
                reloaded.map_err(StartError::new)?;
            }
            Part::UpstreamCa => {
                let reloaded = self.trust.as_ref().map_or(Ok(()), |one| one.reload());
                reloaded.map_err(StartError::new)?;
            }
            Part::GeoIp => {
                if let Some(path) = &self.sources.geoip {
                    self.app.countries.reload(path).await.map_err(StartError::new)?;
                }
            }
            Part::Tokens => {
                if let Some((tokens, path)) = self.tokens.as_ref().zip(self.sources.tokens.as_ref())
                {
                    tokens.store(Arc::new(Tokens::read(path).map_err(StartError::new)?));
                }
            }
            Part::Policies => {
                let Checked { policies, webhooks, warnings } = self.sources.read_policies()?;
                self.app.put_in_force(&policies.all(), webhooks).map_err(StartError::new)?;
                for warning in self.status.reloaded(now, &policies, warnings) {
                    tracing::warn!(event = "warning", "{warning}");
                }
            }
        }
        Ok(())
    }
}

/// What a reload took, and what it refused and why.
#[derive(Default)]
struct Outcome {
    taken: Vec<Part>,
    refused: Vec<(Part, String)>,
}

impl Outcome {
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
            let taken = listed(&self.taken);
            Some(format!("taken: {taken}; as before: {}", refused.join(", ")))
        }
    }

    fn log(&self, pipes: &[PathBuf]) {
        let kept = match pipes {
            [] => String::new(),
            [pipe] => format!("; {} is a pipe and stays as it was read", pipe.display()),
            pipes => {
                let names: Vec<_> = pipes.iter().map(|pipe| pipe.display()).collect();
                format!("; {} are pipes and stay as they were read", listed(&names))
            }
        };
        match self.error() {
            None if self.taken.is_empty() => {
                tracing::warn!(event = "reload_kept", "nothing can be read anew{kept}");
            }
            None => {
                let taken = listed(&self.taken);
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

fn listed(names: &[impl fmt::Display]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
