//! What the daemon reads, at its start and at every reload, and where from.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate::{Options, Policy};

use crate::config::{Config, JwtConfig};
use crate::demo;
use crate::error::StartError;
use crate::files;
use crate::jwt::Verifier;
use crate::policies::{LoadedPolicy, PolicySet};
use crate::surfaces::{Serviceability, Surface, serviceability};
use crate::watch::{Changes, watch};

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

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Whether any policy reads bearer tokens.
pub(crate) fn reads_tokens(policies: &[Arc<Policy>]) -> bool {
    policies.iter().any(|policy| policy.uses_jwt())
}
