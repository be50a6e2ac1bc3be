//! What the daemon reads, at its start and at every reload, and where from.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tidegate::identity::Networks;
use tidegate::{Options, Policy};

use crate::config::{Config, JwtConfig};
use crate::demo;
use crate::error::StartError;
use crate::files::{environment, is_pipe};
use crate::jwt::Verifier;
use crate::notify::Targets;
use crate::policies::{LoadedPolicy, PolicyFile, PolicySet};
use crate::surfaces::{Serviceability, Surface, serviceability};
use crate::watch::{Changes, watch};

/// Where things are read from.
#[derive(Debug)]
pub(crate) struct Sources {
    policies: Vec<PolicyFile>,
    profile: Option<String>,
    /// What listens, which the policies must suit.
    surfaces: Vec<Surface>,
    jwt: Option<JwtConfig>,
    pub(crate) tokens: Option<PathBuf>,
    tls: Vec<PathBuf>,
    upstream_ca: Option<PathBuf>,
    pub(crate) geoip: Option<PathBuf>,
    /// Where webhooks may be that are not public.
    notify_private: Networks,
    /// Those of the files that can be read only once.
    pipes: Vec<PathBuf>,
}

/// What is read and replaced by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    JwtKey,
    Certificate,
    UpstreamCa,
    GeoIp,
    Tokens,
    Policies,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JwtKey => "the JWT key",
            Self::Certificate => "the certificate",
            Self::UpstreamCa => "the roots of the upstream",
            Self::GeoIp => "the countries",
            Self::Tokens => "the tokens",
            Self::Policies => "the policies",
        })
    }
}

/// Policies that can be put in force, and what to warn of.
pub(crate) struct Checked {
    pub(crate) policies: PolicySet,
    pub(crate) webhooks: Targets,
    pub(crate) warnings: Vec<String>,
}

impl Sources {
    pub(crate) fn of(config: &Config) -> Self {
        let tls = config.tls.iter().flat_map(|tls| [tls.certificate.clone(), tls.key.clone()]);
        let mut sources = Self {
            policies: config.policies.iter().cloned().map(PolicyFile::new).collect(),
            profile: config.profile.clone(),
            surfaces: if config.has_gateway() {
                vec![Surface::Gateway, Surface::Api]
            } else {
                vec![Surface::Api]
            },
            jwt: config.jwt.clone(),
            tokens: config.tokens.clone(),
            tls: tls.collect(),
            upstream_ca: config.upstream_ca.clone(),
            geoip: config.geoip.clone(),
            notify_private: config.notify_private.clone(),
            pipes: Vec::new(),
        };
        sources.pipes = sources.files().into_iter().filter(|file| is_pipe(file)).collect();
        sources
    }

    /// Watches all files. What is read from now on and then changes is told.
    pub(crate) fn watch(&self) -> Result<Changes, StartError> {
        Ok(watch(self.files())?)
    }

    /// Every part that there is, and that can be read again.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let again = |file: &PathBuf| !self.pipes.contains(file);
        let mut parts = Vec::new();
        if self.jwt.as_ref().is_some_and(|jwt| again(&jwt.key)) {
            parts.push(Part::JwtKey);
        }
        if !self.tls.is_empty() && self.tls.iter().all(again) {
            parts.push(Part::Certificate);
        }
        if self.upstream_ca.as_ref().is_some_and(again) {
            parts.push(Part::UpstreamCa);
        }
        if self.geoip.as_ref().is_some_and(again) {
            parts.push(Part::GeoIp);
        }
        if self.tokens.as_ref().is_some_and(again) {
            parts.push(Part::Tokens);
        }
        if self.policies.is_empty() || !self.policies.iter().all(PolicyFile::is_piped) {
            parts.push(Part::Policies);
        }
        parts
    }

    /// The files that can be read only once: a reload keeps what they said.
    pub(crate) fn pipes(&self) -> &[PathBuf] {
        &self.pipes
    }

    fn files(&self) -> Vec<PathBuf> {
        let policies = self.policies.iter().map(|policy| &policy.path);
        let keys = self.jwt.iter().map(|jwt| &jwt.key);
        let rest = self.tokens.iter().chain(&self.tls).chain(&self.upstream_ca).chain(&self.geoip);
        policies.chain(keys).chain(rest).cloned().collect()
    }

    /// Reads the policies, or the demo's, and checks that this daemon can serve them.
    pub(crate) fn read_policies(&self) -> Result<Checked, StartError> {
        let options = Options { profile: self.profile.clone(), env: environment() };
        let policies = if self.policies.is_empty() {
            let demo = LoadedPolicy::check(demo::POLICY_NAME, demo::POLICY, &options);
            PolicySet::of(demo.map_err(StartError::report)?)
        } else {
            PolicySet::load(&self.policies, &options).map_err(StartError::report)?
        };
        let Serviceability { errors, warnings } =
            serviceability(&policies, &self.surfaces, self.geoip.is_some());
        if !errors.is_empty() {
            return Err(StartError::new(errors.join("\n")));
        }
        if self.jwt.is_none() && reads_tokens(&policies.all()) {
            let detail = "the policy reads bearer tokens (`jwt`), and there is no --jwt-key to verify them with";
            return Err(StartError::new(detail));
        }
        let webhooks = Targets::of(&policies.all(), &self.notify_private);
        let webhooks = webhooks.map_err(StartError::new)?;
        let own = policies.policies().iter().flat_map(|policy| lines(&policy.warnings.to_string()));
        let piped = self.pipes.iter().map(|pipe| {
            format!("{} is a pipe: a reload keeps what it said at the start", pipe.display())
        });
        let warnings = own.chain(warnings).chain(piped).collect();
        Ok(Checked { policies, webhooks, warnings })
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
fn reads_tokens(policies: &[Arc<Policy>]) -> bool {
    policies.iter().any(|policy| policy.uses_jwt())
}
