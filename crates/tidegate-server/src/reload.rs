//! Reloading: policies, certificate, keys and tokens, from the files that the daemon was given. What
//! is broken is refused and told, and the old one stays.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate::{Options, Policy};
use tokio::signal::unix::Signal;

use crate::admin::Status;
use crate::app::App;
use crate::config::{Config, JwtConfig};
use crate::demo;
use crate::error::StartError;
use crate::files;
use crate::guard::SharedTokens;
use crate::jwt::Verifier;
use crate::policies::{LoadedPolicy, PolicySet};
use crate::server::Stop;
use crate::surfaces::{Serviceability, Surface, serviceability};
use crate::tls::Certificates;
use crate::tokens::Tokens;
use crate::watch::{Changes, watch};

/// Everything that can be read again.
pub(crate) struct Reload {
    pub(crate) app: Arc<App>,
    pub(crate) status: Arc<Status>,
    pub(crate) sources: Sources,
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) tokens: Option<SharedTokens>,
}

/// Where things are read from.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub(crate) policies: Vec<PathBuf>,
    pub(crate) profile: Option<String>,
    /// What listens, which the policies must suit.
    surfaces: Vec<Surface>,
    pub(crate) jwt: Option<JwtConfig>,
    pub(crate) tokens: Option<PathBuf>,
    tls: Vec<PathBuf>,
}

/// Policies that can be put in force, and what to warn of.
pub(crate) struct Checked {
    pub(crate) policies: PolicySet,
    pub(crate) warnings: Vec<String>,
}

impl Sources {
    pub(crate) fn of(config: &Config) -> Self {
        let tls = config.tls.iter().flat_map(|tls| [tls.certificate.clone(), tls.key.clone()]);
        Self {
            policies: config.policies.clone(),
            profile: config.profile.clone(),
            surfaces: if config.has_gateway() {
                vec![Surface::Gateway, Surface::Api]
            } else {
                vec![Surface::Api]
            },
            jwt: config.jwt.clone(),
            tokens: config.tokens.clone(),
            tls: tls.collect(),
        }
    }

    /// Watches all files. What is read from now on and then changes is told.
    pub(crate) fn watch(&self) -> Result<Changes, StartError> {
        let mut files = self.policies.clone();
        files.extend(self.jwt.iter().map(|jwt| jwt.key.clone()));
        files.extend(self.tokens.clone());
        files.extend(self.tls.iter().cloned());
        Ok(watch(files)?)
    }

    /// Reads the policies, or the demo's, and checks that this daemon can serve them.
    pub(crate) fn read_policies(&self) -> Result<Checked, StartError> {
        let options = Options { profile: self.profile.clone(), env: files::environment() };
        let policies = if self.policies.is_empty() {
            let demo = LoadedPolicy::check(demo::POLICY_NAME, demo::POLICY, &options);
            PolicySet::of(demo.map_err(StartError::report)?)
        } else {
            PolicySet::load(&self.policies, &options).map_err(StartError::report)?
        };
        let Serviceability { errors, warnings } = serviceability(&policies, &self.surfaces);
        if !errors.is_empty() {
            return Err(StartError::new(errors.join("\n")));
        }
        if self.jwt.is_none() && reads_tokens(&policies.all()) {
            let detail = "the policy reads bearer tokens (`jwt`), and there is no --jwt-key to verify them with";
            return Err(StartError::new(detail));
        }
        let own = policies.policies().iter().flat_map(|policy| lines(&policy.warnings.to_string()));
        let warnings = own.chain(warnings).collect();
        Ok(Checked { policies, warnings })
    }

    pub(crate) fn read_verifier(&self) -> Result<Option<Verifier>, StartError> {
        let Some(jwt) = &self.jwt else { return Ok(None) };
        let verifier = Verifier::load(&jwt.key, jwt.issuer.clone(), jwt.audience.clone());
        let verifier = verifier.map_err(StartError::new)?;
        for skipped in verifier.skipped() {
            tracing::warn!(event = "key_skipped", "{skipped}");
        }
        Ok(Some(verifier))
    }
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
                Some(_) = changes.recv() => self.run(),
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

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Whether any policy reads bearer tokens.
fn reads_tokens(policies: &[Arc<Policy>]) -> bool {
    policies.iter().any(|policy| policy.uses_jwt())
}
