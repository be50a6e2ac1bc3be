//! Test files: as written → checked.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::request;
use super::step::{Step, step};
use crate::policy::compile::fields::{Fields, Keys, entries, text, texts};
use crate::policy::diagnostics::{Diagnostics, Position, Reporter, shown};
use crate::policy::document::{self, Entry, Node, Value};

const FILE_KEYS: Keys = Keys::new("policy profile env start tests");
const TEST_KEYS: Keys = Keys::new("name request steps");
/// 2026-01-05T09:00:00Z, a Monday.
const START_DEFAULT_US: u64 = 1_767_603_600_000_000;

/// A checked test file.
#[derive(Debug)]
pub struct TestFile {
    pub(super) file: String,
    policy: String,
    profile: Option<String>,
    env: BTreeMap<String, String>,
    pub(super) start_us: u64,
    pub(super) tests: Vec<Test>,
}

#[derive(Debug)]
pub(super) struct Test {
    pub(super) name: String,
    named_at: Position,
    pub(super) steps: Vec<Step>,
}

impl TestFile {
    /// Reads a test file. `file` is what diagnostics call it.
    ///
    /// # Errors
    /// Everything that is wrong with it, all at once.
    pub fn parse(file: &str, source: &str) -> Result<Self, Diagnostics> {
        let diagnostics = Reporter::default();
        let root = document::parse(source, &diagnostics);
        let test_file = root.and_then(|root| read(file, &root, &diagnostics));
        diagnostics.conclude(file, test_file).map(|(test_file, _)| test_file)
    }

    /// The policy's path, as written: relative to the test file.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// What the policy is to be read with.
    #[must_use]
    pub fn options(&self) -> crate::policy::Options {
        crate::policy::Options { profile: self.profile.clone(), env: self.env.clone() }
    }

    /// How many times a step is taken in all its tests: what a run costs.
    #[must_use]
    pub fn repetitions(&self) -> u64 {
        let steps = self.tests.iter().flat_map(|test| &test.steps);
        steps.map(|step| u64::from(step.times)).sum()
    }

    /// The names of its tests.
    pub fn test_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tests.iter().map(|test| test.name.as_str())
    }
}

fn read(file: &str, root: &Node, diagnostics: &Reporter) -> Option<TestFile> {
    if root.get("tidegate").is_some() && root.get("tests").is_none() {
        let message = "found a policy, expected a test file";
        diagnostics.error_with_help(root.at, message, "check it with `tidegate validate`");
        return None;
    }
    let fields = Fields::of(root, "a test file", &FILE_KEYS, diagnostics)?;
    let missing = "found no `policy`, expected the path of the policy to test";
    let policy = fields.require("policy", root.at, missing);
    let policy = policy.and_then(|node| text(node, "the path of a policy", diagnostics));
    let profile = fields.get("profile").filter(|node| !node.is_null());
    let profile = profile.map(|node| texts(node, "the name of a profile", diagnostics));
    let profile = profile.filter(|names| !names.is_empty());
    let profile = profile.map(|names| names.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let env = fields.get("env").map(|node| variables(node, diagnostics)).unwrap_or_default();
    let start_us = fields.get("start").and_then(|node| start_us(node, diagnostics));
    let missing = "found no `tests`, expected a list of them";
    let tests = match fields.require("tests", root.at, missing) {
        Some(Node { value: Value::List(nodes), .. }) if !nodes.is_empty() => {
            nodes.iter().filter_map(|node| test(node, diagnostics)).collect()
        }
        Some(node) => {
            diagnostics.error(node.at, format!("found {}, expected a list of tests", node.kind()));
            Vec::new()
        }
        None => Vec::new(),
    };
    check_names(&tests, diagnostics);
    Some(TestFile {
        file: file.to_owned(),
        policy: policy?.to_owned(),
        profile: profile.map(|names| names.join(",")),
        env,
        start_us: start_us.unwrap_or(START_DEFAULT_US),
        tests,
    })
}

/// Reports a name that two tests have.
fn check_names(tests: &[Test], diagnostics: &Reporter) {
    let mut seen = HashSet::new();
    for Test { name, named_at, .. } in tests {
        if !seen.insert(name) {
            diagnostics.error(*named_at, format!("found a second test named `{}`", shown(name)));
        }
    }
}

fn variables(node: &Node, diagnostics: &Reporter) -> BTreeMap<String, String> {
    let written = entries(node, "`env`", diagnostics).unwrap_or_default();
    let mut values = BTreeMap::new();
    for Entry { key, value, .. } in written {
        match value.text() {
            Some(_) if value.is_null() => {}
            Some(text) => drop(values.insert(key.clone(), text.to_owned())),
            None => {
                diagnostics.error(value.at, format!("found {}, expected a text", value.kind()));
            }
        }
    }
    values
}

fn start_us(node: &Node, diagnostics: &Reporter) -> Option<u64> {
    let expected = "a time such as 2026-01-05T09:00:00Z";
    let text = text(node, expected, diagnostics)?;
    let start = text.parse().ok();
    let start = start.and_then(|at: jiff::Timestamp| u64::try_from(at.as_microsecond()).ok());
    if start.is_none() {
        diagnostics.error(node.at, format!("found `{}`, expected {expected}", shown(text)));
    }
    start
}

fn test(node: &Node, diagnostics: &Reporter) -> Option<Test> {
    let fields = Fields::of(node, "a test", &TEST_KEYS, diagnostics)?;
    let missing = "found no `name`, expected a sentence that says what the test shows";
    let name = fields.require("name", node.at, missing);
    let name = name.and_then(|node| text(node, "a name for the test", diagnostics));
    let empty = Node { at: node.at, value: Value::Map(Vec::new()) };
    let request = Arc::new(fields.get("request").unwrap_or(&empty).clone());
    request::read(&request::numbered(&request, 1), diagnostics);
    let nodes = match fields.get("steps") {
        Some(Node { value: Value::List(nodes), .. }) if !nodes.is_empty() => nodes.as_slice(),
        None if fields.is_misspelt(&["steps"]) => return None,
        _ => {
            diagnostics.error(node.at, "found no steps, expected a list of them under `steps`");
            return None;
        }
    };
    let mut steps = Vec::new();
    let mut previous_us = 0;
    for node in nodes {
        let Some(step) = step(node, &request, previous_us, diagnostics) else { continue };
        previous_us = step.end_us();
        steps.push(step);
    }
    let named_at = fields.get("name").map_or(node.at, |name| name.at);
    Some(Test { name: name?.to_owned(), named_at, steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(steps: &str) -> Result<TestFile, Diagnostics> {
        let text = format!("policy: p.yaml\ntests:\n  - name: t\n    steps:\n{steps}");
        TestFile::parse("t.yaml", &text)
    }

    #[test]
    fn repetitions_cannot_run_beyond_the_end_of_time() {
        assert!(read("      - { at: 1d, times: 1000, spread: 1d }\n").is_ok());
        for step in ["{ times: 10000000, spread: 1000d }", "{ at: 2d, times: 1000, spread: 1d }"] {
            let error = read(&format!("      - {step}\n")).unwrap_err().to_string();
            assert!(error.contains("end after more than 1000d"), "{step}: {error}");
        }
    }

    #[test]
    fn a_null_in_a_step_deletes_what_the_test_says_rule_9() {
        let file = read("      - { request: { user: null, headers: { a: null } } }\n").unwrap();
        let request = file.tests[0].steps[0].action.request().unwrap();
        assert_eq!(request.get("user"), None);
        assert!(read("      - { request: { usr: null } }\n").is_err());
        assert!(read("      - { request: { user: [a] } }\n").is_err());
    }

    #[test]
    fn a_file_says_what_it_costs_to_run() {
        let steps = "      - { times: 10000000 }\n      - { times: 5 }\n      - {}\n";
        assert_eq!(read(steps).unwrap().repetitions(), 10_000_006);
    }

    #[test]
    fn a_large_request_is_not_copied_for_every_step() {
        let request = format!("    request: {{ path: /{} }}\n    steps:\n", "x".repeat(500_000));
        let steps = "      - {}\n".repeat(20_000);
        let text = format!("policy: p.yaml\ntests:\n  - name: t\n{request}{steps}");
        assert_eq!(TestFile::parse("t.yaml", &text).unwrap().repetitions(), 20_000);
    }
}
