//! Policies: from text to a checked policy, with every problem named by file, line and column.

mod builder;
pub(crate) mod compile;
pub mod diagnostics;
pub mod document;
mod implication;
mod message;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod overlay;
pub(crate) mod protection;
mod published;
mod requirements;
mod schema;
pub(crate) mod sources;
pub(crate) mod when;

use std::collections::BTreeMap;

pub use builder::{LimitBuilder, PolicyBuilder};
pub use message::{MessageTemplate, MessageValue};
pub use model::{Algorithm, Limit, OnStoreFailure, Policy};
pub use protection::{Challenge, ChallengeKind, Secret, Webhook};
pub use published::{
    Conditions, Published, PublishedCost, PublishedLimit, PublishedOperation, PublishedPattern,
    Row, Rows,
};
pub use requirements::{ProtectionRequirement, Requirement};
pub use schema::json_schema;

use compile::fields;
use diagnostics::{Diagnostics, Reporter, shown};
use document::Node;
use overlay::{Place, lay_over, substitute};

/// The sections whose keys are names.
const NAMED_SECTIONS: [&str; 7] =
    ["limits", "operations", "events", "penalties", "ratios", "factors", "notify"];

/// What a policy is read with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The profile to lay over it; several, separated by commas, in this order.
    pub profile: Option<String>,
    /// The environment variables that it may name.
    pub env: BTreeMap<String, String>,
}

/// A policy that can be used, and what should be looked at all the same.
#[derive(Debug)]
pub struct Checked {
    /// The policy.
    pub policy: Policy,
    /// Warnings; no errors.
    pub warnings: Diagnostics,
}

impl Policy {
    /// Reads a policy. `file` is what diagnostics call it. No profile is laid over it, and the
    /// environment is not read: `${NAME:-default}` takes its default. For both there is
    /// [`check`](Self::check).
    ///
    /// # Errors
    /// Everything that is wrong with it, all at once.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        Self::check(file, text, &Options::default()).map(|checked| checked.policy)
    }

    /// Reads a policy with a profile and environment variables, and keeps the warnings.
    ///
    /// ```
    /// use tidegate::engine::{policy::Options};
    /// use tidegate::Policy;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let text = "{tidegate: 1, name: api, limits: {a: {by: ip, total: \"${MOST:-5}\"}}}";
    /// let options = Options { env: std::env::vars().collect(), ..Options::default() };
    /// let checked = Policy::check("api.yaml", text, &options)?;
    /// for warning in checked.warnings.iter() {
    ///     eprintln!("{}", warning.message);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong with it, all at once, warnings included.
    pub fn check(file: &str, text: &str, options: &Options) -> Result<Checked, Diagnostics> {
        let diagnostics = Reporter::default();
        let policy = read(text, options, &diagnostics);
        let (policy, warnings) = diagnostics.conclude(file, policy)?;
        Ok(Checked { policy, warnings })
    }

    /// The names of the profiles that a policy has, as far as it can be read.
    #[must_use]
    pub fn profile_names(text: &str) -> Vec<String> {
        let root = document::parse(text, &Reporter::default());
        let entries = root.as_ref().and_then(|root| root.get("profiles")).and_then(Node::entries);
        entries.unwrap_or_default().iter().map(|entry| entry.key.clone()).collect()
    }

    /// A policy from a few lines of Rust.
    ///
    /// ```
    /// use tidegate::engine::policy::{LimitBuilder, Policy};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::builder("api")
    ///     .operation("login", "POST /auth/login")
    ///     .limit(LimitBuilder::sliding_window("login-ip", "5/min").when("login").by("ip"))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn builder(name: &str) -> PolicyBuilder {
        PolicyBuilder::new(name)
    }
}

fn read(text: &str, options: &Options, diagnostics: &Reporter) -> Option<Policy> {
    let mut root = document::parse(text, diagnostics)?;
    check_profiles(&root, diagnostics);
    for profile in options.profile.iter().flat_map(|names| names.split(',')) {
        lay_profile_over(&mut root, profile.trim(), diagnostics);
    }
    if let document::Value::Map(entries) = &mut root.value {
        // Other profiles may name variables that only they need.
        entries.retain(|entry| entry.key != "profiles");
    }
    let before = diagnostics.len();
    substitute(&mut root, &options.env, diagnostics);
    let unresolved = diagnostics.len();
    let policy = compile::compile(&root, &options.env, diagnostics);
    if unresolved > before {
        diagnostics.remove_consequences(unresolved);
    }
    policy
}

/// What can be wrong with `profiles:` itself; what is inside one shows when it is laid over.
fn check_profiles(root: &Node, diagnostics: &Reporter) {
    let Some(profiles) = root.get("profiles") else { return };
    for profile in fields::entries(profiles, "`profiles`", diagnostics).unwrap_or_default() {
        if profile.key.contains(',') {
            let message = format!(
                "found the profile `{}`, expected a name without comma",
                shown(&profile.key)
            );
            diagnostics.error(profile.key_at, message);
        }
        let inner = profile.value.entries().unwrap_or_default();
        if let Some(inner) = inner.iter().find(|entry| entry.key == "profiles") {
            let message = "found `profiles` inside a profile, which would be ignored";
            diagnostics.error(inner.key_at, message);
        }
    }
}

fn lay_profile_over(root: &mut Node, name: &str, diagnostics: &Reporter) {
    let profiles = root.get("profiles");
    let Some(profile) = profiles.and_then(|profiles| profiles.get(name)).cloned() else {
        let at = profiles.map_or(root.at, |profiles| profiles.at);
        let names = profiles
            .and_then(Node::entries)
            .unwrap_or_default()
            .iter()
            .map(|entry| entry.key.as_str());
        let names: Vec<&str> = names.collect();
        diagnostics.unknown_word(at, format!("found no profile `{name}`"), name, names);
        return;
    };
    if profile.entries().is_none() {
        diagnostics.error(
            profile.at,
            format!("found {}, expected a map for the profile `{name}`", profile.kind()),
        );
        return;
    }
    check_deletions(root, &profile, diagnostics);
    lay_over(root, &profile, Place::Policy);
}

/// What a profile deletes must be there: a limit or operation of that name, a key that there is.
fn check_deletions(base: &Node, profile: &Node, diagnostics: &Reporter) {
    let policy_keys: Vec<&str> = compile::POLICY_KEYS.known().collect();
    let limit_keys: Vec<&str> = compile::LIMIT_KEYS.known().collect();
    check_deletions_among(&policy_keys, profile, diagnostics);
    for section in NAMED_SECTIONS {
        let Some(over) = profile.get(section) else { continue };
        let here = base.get(section).and_then(Node::entries).unwrap_or_default();
        let here: Vec<&str> = here.iter().map(|entry| entry.key.as_str()).collect();
        check_deletions_among(&here, over, diagnostics);
        for limit in over.entries().unwrap_or_default().iter().filter(|_| section == "limits") {
            check_deletions_among(&limit_keys, &limit.value, diagnostics);
        }
    }
}

fn check_deletions_among(valid: &[&str], over: &Node, diagnostics: &Reporter) {
    let deleted = over.entries().unwrap_or_default().iter().filter(|entry| entry.value.is_null());
    for entry in deleted.filter(|entry| !valid.contains(&entry.key.as_str())) {
        let message = format!("the profile deletes `{}`, which there is not", shown(&entry.key));
        diagnostics.unknown_word(entry.key_at, message, &entry.key, valid.iter().copied());
    }
}
