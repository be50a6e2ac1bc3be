//! The policies of a daemon: read and checked together, at the start and at every reload.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tidegate::Policy;
use tidegate::engine::policy::Options;
use tidegate::engine::policy::diagnostics::Diagnostics;

use crate::config::Config;
use crate::demo;
use crate::error::StartError;
use crate::files::{self, FileError};
use crate::notify::Targets;
use crate::surfaces::{Serviceability, Surface, check_surfaces};

/// Policies that can be put in force together. The gateway serves the first.
pub(crate) struct PolicyBundle {
    /// In the order of the command line.
    pub(crate) policies: Vec<LoadedPolicy>,
    pub(crate) webhooks: Targets,
    pub(crate) warnings: Vec<String>,
}

impl PolicyBundle {
    pub(crate) fn policies(&self) -> Vec<Arc<Policy>> {
        self.policies.iter().map(|loaded| Arc::clone(&loaded.policy)).collect()
    }
}

/// A policy, and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct LoadedPolicy {
    pub(crate) policy: Arc<Policy>,
    /// The file, as diagnostics name it.
    pub(crate) file: String,
    /// SHA-256 of the text as read, in hexadecimal digits.
    pub(crate) sha256: String,
    pub(crate) warnings: Diagnostics,
}

impl LoadedPolicy {
    /// Checks a policy's text.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(crate) fn check(file: &str, text: &str, options: &Options) -> Result<Self, Diagnostics> {
        let checked = Policy::check(file, text, options)?;
        Ok(Self {
            policy: Arc::new(checked.policy),
            file: file.to_owned(),
            sha256: HEXLOWER.encode(&Sha256::digest(text)),
            warnings: checked.warnings,
        })
    }
}

/// The files that the policies are read from, again and again.
pub(crate) struct PolicySource {
    files: Vec<PolicyFile>,
    config: Arc<Config>,
    /// All files, of policies or not, that can be read only once.
    pipes: Vec<PathBuf>,
}

impl PolicySource {
    pub(crate) fn new(config: Arc<Config>, pipes: Vec<PathBuf>) -> Self {
        let files = config.policies.iter().cloned().map(PolicyFile::new).collect();
        Self { files, config, pipes }
    }

    /// True unless all policies are pipes.
    pub(crate) fn is_reloadable(&self) -> bool {
        self.files.is_empty() || !self.files.iter().all(|file| file.piped.is_some())
    }

    /// Reads the policies, or the demo's, and checks that this daemon can serve them.
    pub(crate) fn read(&self) -> Result<PolicyBundle, StartError> {
        let options = Options { profile: self.config.profile.clone(), env: files::environment() };
        let policies = if self.files.is_empty() {
            let demo = LoadedPolicy::check(demo::POLICY_NAME, demo::POLICY, &options);
            vec![demo.map_err(StartError::report)?]
        } else {
            load_all(&self.files, &options)?
        };
        let surfaces = [Surface::Gateway, Surface::Api];
        let surfaces = if self.config.has_gateway() { &surfaces[..] } else { &surfaces[1..] };
        let Serviceability { errors, warnings } =
            check_surfaces(&policies, surfaces, self.config.geoip.is_some());
        if !errors.is_empty() {
            return Err(StartError::new(errors.join("\n")));
        }
        if self.config.jwt_key.is_none() && policies.iter().any(|one| one.policy.uses_jwt()) {
            let detail = "the policy reads bearer tokens (`jwt`), and there is no --jwt-key to verify them with";
            return Err(StartError::new(detail));
        }
        let mut bundle = PolicyBundle { policies, webhooks: Targets::default(), warnings };
        let allowed = self.config.notify_allow_private.clone().unwrap_or_default();
        bundle.webhooks = Targets::of(&bundle.policies(), &allowed)?;
        let diagnostics = bundle.policies.iter().map(|policy| policy.warnings.to_string());
        let own = diagnostics.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        let piped = self.pipes.iter().map(|pipe| {
            format!("{} is a pipe: a reload keeps what it said at the start", pipe.display())
        });
        bundle.warnings = own.chain(bundle.warnings).chain(piped).collect();
        Ok(bundle)
    }
}

/// A file that a policy is read from.
#[derive(Debug)]
struct PolicyFile {
    path: PathBuf,
    /// The text of a pipe, which can be read only once; `None` for a regular file.
    piped: Option<OnceLock<String>>,
}

impl PolicyFile {
    fn new(path: PathBuf) -> Self {
        let piped = files::is_pipe(&path).then(OnceLock::new);
        Self { path, piped }
    }

    fn text(&self) -> Result<Cow<'_, str>, FileError> {
        let Some(piped) = &self.piped else { return files::read(&self.path).map(Cow::Owned) };
        if let Some(text) = piped.get() {
            return Ok(Cow::Borrowed(text));
        }
        let text = files::read(&self.path)?;
        Ok(Cow::Borrowed(piped.get_or_init(|| text)))
    }

    fn load(&self, options: &Options) -> Result<LoadedPolicy, String> {
        let text = self.text().map_err(|error| format!("error: {error}"))?;
        let file = self.path.display().to_string();
        LoadedPolicy::check(&file, &text, options).map_err(|diagnostics| diagnostics.to_string())
    }
}

/// Reads the policies in these files, all under one profile and environment.
///
/// # Errors
/// Everything that is wrong with any of them: `file:line:column: error: …`, line by line.
fn load_all(files: &[PolicyFile], options: &Options) -> Result<Vec<LoadedPolicy>, StartError> {
    let (mut policies, mut problems) = (Vec::<LoadedPolicy>::new(), Vec::new());
    for file in files {
        match file.load(options) {
            Ok(policy) => policies.push(policy),
            Err(problem) => problems.push(problem),
        }
    }
    let mut files_by_name: HashMap<&str, &str> = HashMap::new();
    for LoadedPolicy { policy, file, .. } in &policies {
        let name = policy.name();
        if let Some(first) = files_by_name.insert(name, file) {
            problems.push(format!(
                "{file}: error: found the name `{name}`, which {first} has too; give each policy its own"
            ));
        }
    }
    if problems.is_empty() { Ok(policies) } else { Err(StartError::report(problems.join("\n"))) }
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

    fn load(files: &[(&str, &str)], options: &Options) -> Result<Vec<LoadedPolicy>, String> {
        let dir = tempfile::tempdir().unwrap();
        let write = |(name, text): &(&str, &str)| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            PolicyFile::new(path)
        };
        let files: Vec<PolicyFile> = files.iter().map(write).collect();
        let here = format!("{}/", dir.path().display());
        load_all(&files, options).map_err(|problems| problems.to_string().replace(&here, ""))
    }

    #[test]
    fn policies_are_loaded_in_order_with_the_hash_of_their_text() {
        let (shop, bank) = (policy("shop"), policy("bank"));
        let files = [("shop.yaml", shop.as_str()), ("bank.yaml", bank.as_str())];
        let set = load(&files, &Options::default()).unwrap();
        let names: Vec<&str> = set.iter().map(|one| one.policy.name()).collect();
        assert_eq!(names, ["shop", "bank"]);
        assert_eq!(set[0].policy.version(), Some("1.10"));
        // As `sha256sum` has it.
        let hash = "e06174bf0246247a887ac094a04caee5c174d979a928ffdec24d53b1ad8013a8";
        assert_eq!(set[0].sha256, hash);
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
        let missing = load_all(&[missing], &Options::default());
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
