//! The policies of a daemon: all of them good, or all that is wrong with them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use sha2::{Digest as _, Sha256};
use tidegate::policy::diagnostics::Diagnostics;
use tidegate::{Options, Policy};

use crate::files::{self, Unreadable};

/// Policies that can be served together. The first is that of the gateway.
#[derive(Clone, Debug)]
pub(crate) struct PolicySet {
    policies: Vec<LoadedPolicy>,
}

/// Where a policy is read, and read again.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    pub(crate) path: PathBuf,
    /// What a pipe said, which it says once; that of a file is not kept.
    piped: Option<OnceLock<String>>,
}

impl PolicyFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        let piped = files::is_pipe(&path).then(OnceLock::new);
        Self { path, piped }
    }

    /// Whether it can be read only once, so that a reload keeps what it was.
    pub(crate) const fn is_piped(&self) -> bool {
        self.piped.is_some()
    }

    fn text(&self) -> Result<Cow<'_, str>, Unreadable> {
        let Some(piped) = &self.piped else { return files::read(&self.path).map(Cow::Owned) };
        if let Some(text) = piped.get() {
            return Ok(Cow::Borrowed(text));
        }
        let text = files::read(&self.path)?;
        Ok(Cow::Borrowed(piped.get_or_init(|| text)))
    }
}

/// A policy, and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct LoadedPolicy {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Its file, as diagnostics call it.
    pub file: String,
    /// SHA-256 of the text as read, in hexadecimal digits.
    pub sha256: String,
    /// What should be looked at all the same.
    pub warnings: Diagnostics,
}

impl LoadedPolicy {
    /// Checks a policy's text.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(crate) fn check(file: &str, text: &str, options: &Options) -> Result<Self, Diagnostics> {
        let checked = Policy::check(file, text, options)?;
        let digest = Sha256::digest(text);
        Ok(Self {
            policy: Arc::new(checked.policy),
            file: file.to_owned(),
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            warnings: checked.warnings,
        })
    }

    fn read(file: &PolicyFile, options: &Options) -> Result<Self, Fault> {
        let text = file.text().map_err(Fault::Unreadable)?;
        Self::check(&file.path.display().to_string(), &text, options).map_err(Fault::Invalid)
    }
}

impl PolicySet {
    /// Reads the policies in these files, all under one profile and environment.
    ///
    /// # Errors
    /// Everything that is wrong with any of them.
    pub(crate) fn load(files: &[PolicyFile], options: &Options) -> Result<Self, Faults> {
        let mut problems = Vec::new();
        let mut policies = Vec::new();
        for file in files {
            match LoadedPolicy::read(file, options) {
                Ok(policy) => policies.push(policy),
                Err(problem) => problems.push(problem),
            }
        }
        problems.extend(same_names(&policies));
        if problems.is_empty() { Ok(Self { policies }) } else { Err(Faults(problems)) }
    }

    /// One policy by itself.
    #[must_use]
    pub(crate) fn of(policy: LoadedPolicy) -> Self {
        Self { policies: vec![policy] }
    }

    /// The policies alone, to be put in force.
    #[must_use]
    pub(crate) fn all(&self) -> Vec<Arc<Policy>> {
        self.policies.iter().map(|loaded| Arc::clone(&loaded.policy)).collect()
    }

    /// The policies, in the order of the command line.
    #[must_use]
    pub(crate) fn policies(&self) -> &[LoadedPolicy] {
        &self.policies
    }
}

fn same_names(policies: &[LoadedPolicy]) -> Vec<Fault> {
    let mut files: HashMap<&str, &str> = HashMap::new();
    let mut problems = Vec::new();
    for LoadedPolicy { policy, file, .. } in policies {
        if let Some(first) = files.get(policy.name()) {
            problems.push(Fault::SameName {
                name: policy.name().to_owned(),
                files: [(*first).to_owned(), file.clone()],
            });
        } else {
            files.insert(policy.name(), file);
        }
    }
    problems
}

/// Why policies cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Faults(Vec<Fault>);

impl fmt::Display for Faults {
    /// One line each, `file:line:column: error: …` where there is a place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// One file that is no policy to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It cannot be read.
    Unreadable(Unreadable),
    /// It is not valid; warnings are among it.
    Invalid(Diagnostics),
    /// Two policies have one name.
    SameName {
        /// The name.
        name: String,
        /// Where it was found.
        files: [String; 2],
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "error: {error}"),
            Self::Invalid(diagnostics) => diagnostics.fmt(f),
            Self::SameName { name, files: [first, second] } => write!(
                f,
                "{second}: error: found the name `{name}`, which {first} has too; give each policy its own"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn policy(name: &str) -> String {
        format!(
            "tidegate: 1\nname: {name}\nversion: 1.10\nlimits: {{ a: {{ by: ip, total: 1 }} }}\n"
        )
    }

    fn load(files: &[(&str, &str)], options: &Options) -> Result<PolicySet, String> {
        let dir = tempfile::tempdir().unwrap();
        let write = |(name, text): &(&str, &str)| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            PolicyFile::new(path)
        };
        let files: Vec<PolicyFile> = files.iter().map(write).collect();
        let here = format!("{}/", dir.path().display());
        PolicySet::load(&files, options).map_err(|problems| problems.to_string().replace(&here, ""))
    }

    #[test]
    fn policies_are_loaded_in_order_with_the_hash_of_their_text() {
        let (shop, bank) = (policy("shop"), policy("bank"));
        let files = [("shop.yaml", shop.as_str()), ("bank.yaml", bank.as_str())];
        let set = load(&files, &Options::default()).unwrap();
        let names: Vec<&str> = set.policies().iter().map(|one| one.policy.name()).collect();
        assert_eq!(names, ["shop", "bank"]);
        assert_eq!(set.policies()[0].policy.version(), Some("1.10"));
        // As `sha256sum` has it.
        let hash = "e06174bf0246247a887ac094a04caee5c174d979a928ffdec24d53b1ad8013a8";
        assert_eq!(set.policies()[0].sha256, hash);
    }

    #[test]
    fn everything_that_is_wrong_is_told_with_its_place() {
        let files = [("a.yaml", "tidegate: 1\nname: a\nlimts: {}\n"), ("b.yaml", "tidegate: 2\n")];
        let message = load(&files, &Options::default()).unwrap_err();
        assert!(message.contains("a.yaml:3:1: error: "), "{message}");
        assert!(message.contains("b.yaml:1:"), "{message}");
    }

    #[test]
    fn a_name_that_two_policies_have_is_an_error_that_names_both_files() {
        let shop = policy("shop");
        let files = [("one.yaml", shop.as_str()), ("two.yaml", shop.as_str())];
        let message = load(&files, &Options::default()).unwrap_err();
        assert_eq!(
            message,
            "two.yaml: error: found the name `shop`, which one.yaml has too; give each policy its own"
        );
    }

    #[test]
    fn a_file_that_is_missing_or_too_large_is_named() {
        let missing = PolicyFile::new(PathBuf::from("no/such.yaml"));
        let missing = PolicySet::load(&[missing], &Options::default());
        let message = missing.unwrap_err().to_string();
        assert!(message.starts_with("error: cannot read no/such.yaml: "), "{message}");
        let large = " ".repeat((1 << 20) + 1);
        let message = load(&[("large.yaml", &large)], &Options::default()).unwrap_err();
        assert!(message.contains("larger than 1 MiB"), "{message}");
    }

    #[test]
    fn the_profile_and_the_environment_reach_every_policy() {
        let text = "tidegate: 1\nname: shop\nlimits: { a: { by: ip, total: \"${MOST}\" } }\n";
        assert!(load(&[("shop.yaml", text)], &Options::default()).is_err());
        let env = [("MOST".to_owned(), "5".to_owned())].into();
        assert!(load(&[("shop.yaml", text)], &Options { env, ..Options::default() }).is_ok());
        let profile = Some("production".to_owned());
        let message =
            load(&[("shop.yaml", &policy("shop"))], &Options { profile, ..Options::default() });
        assert!(message.unwrap_err().contains("no profile `production`"));
    }
}
