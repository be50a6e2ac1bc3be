//! The policies of the daemon: read, checked and known by their hash.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tidegate::policy::document::BYTES_MAX;
use tidegate::policy::{Options, Policy};

use crate::demo;
use crate::error::StartError;

/// Policies that are fit to be put in force together.
pub(crate) struct PolicySet(Vec<LoadedPolicy>);

/// One of them.
pub(crate) struct LoadedPolicy {
    pub(crate) policy: Arc<Policy>,
    pub(crate) file: String,
    /// SHA-256 of the text as it was read, in hex.
    pub(crate) hash: String,
    warnings: Vec<String>,
}

impl PolicySet {
    /// Reads all files; every problem of every file is told.
    pub(crate) fn load(paths: &[PathBuf], profile: Option<&str>) -> Result<Self, StartError> {
        let (mut policies, mut problems) = (Vec::new(), Vec::new());
        for path in paths {
            let file = path.display().to_string();
            let source = read(path).map_err(|why| format!("cannot read {file}: {why}"));
            match source.and_then(|source| check(&file, &source, profile)) {
                Ok(policy) => policies.push(policy),
                Err(problem) => problems.push(problem),
            }
        }
        problems.extend(same_names(&policies));
        if problems.is_empty() {
            Ok(Self(policies))
        } else {
            Err(StartError::new(problems.join("\n")))
        }
    }

    /// The demo's policy.
    pub(crate) fn demo() -> Result<Self, StartError> {
        let policy = check(demo::POLICY_NAME, demo::POLICY, None).map_err(StartError::new)?;
        Ok(Self(vec![policy]))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LoadedPolicy> {
        self.0.iter()
    }

    /// The policies alone, in the order in which they were given.
    pub(crate) fn all(&self) -> Vec<Arc<Policy>> {
        self.0.iter().map(|loaded| Arc::clone(&loaded.policy)).collect()
    }

    /// What is legal but surely not meant.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|loaded| loaded.warnings.iter().cloned())
    }
}

fn check(file: &str, source: &str, profile: Option<&str>) -> Result<LoadedPolicy, String> {
    let options = Options { profile: profile.map(str::to_owned), env: environment() };
    let checked = Policy::check(file, source, &options).map_err(|errors| errors.to_string())?;
    let warnings = checked.warnings.to_string().lines().map(str::to_owned).collect();
    let hash = Sha256::digest(source.as_bytes());
    let hash = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(LoadedPolicy { policy: Arc::new(checked.policy), file: file.to_owned(), hash, warnings })
}

fn same_names(policies: &[LoadedPolicy]) -> impl Iterator<Item = String> {
    policies.iter().enumerate().filter_map(move |(index, policy)| {
        let name = policy.policy.name();
        let earlier = policies[..index].iter().find(|earlier| earlier.policy.name() == name)?;
        let (one, other) = (&earlier.file, &policy.file);
        Some(format!("{one} and {other} are both called `{name}`, expected a name each"))
    })
}

/// The text of a file, of which no more is read than a policy may be long.
fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let limit = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() > BYTES_MAX { Err("it is larger than 1 MiB".to_owned()) } else { Ok(text) }
}

fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
