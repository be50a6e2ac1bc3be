//! Every example in the documents is run: a ```yaml policy block, and a policy that a reader saves,
//! must be valid without warnings, a ```yaml test block must pass against the policy block before it, and the commands of
//! ```console blocks must print what is shown below them. CONTRIBUTING.md says how to write them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

mod architecture;
mod dependencies;
mod flags;
mod links;
mod markdown;
mod metrics;
mod session;
mod shown;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use tidegate::Policy;
use tidegate::engine::policy::Options;
use tidegate::engine::simulate::TestFile;

use markdown::{Block, blocks, documents, root, steps};
use session::Session;

#[test]
fn every_example_in_the_documents_works() {
    let blocks: Vec<Block> = documents().iter().flat_map(|path| blocks(path)).collect();
    let (mut policies, mut tests) = (0, 0);
    let mut policy: Option<&Block> = None;
    for block in &blocks {
        let is_policy = block.kind == "yaml policy";
        if is_policy || block.kind.contains(" file=") && block.text.starts_with("tidegate:") {
            let checked = Policy::check(&block.place, &block.text, &Options::default());
            let checked = checked.unwrap_or_else(|errors| panic!("{errors}"));
            assert!(checked.warnings.is_empty(), "{}", checked.warnings);
            policy = Some(block).filter(|_| is_policy).or(policy);
            policies += 1;
        } else if block.kind == "yaml test" {
            run(block, policy.unwrap_or_else(|| panic!("{}: no policy before it", block.place)));
            tests += 1;
        }
    }
    assert!(policies > 5 && tests > 3, "found {policies} policies and {tests} tests");
}

/// Each document is a session of its own, and all of them run at once.
#[test]
fn every_session_in_the_documents_goes_as_shown() {
    let documents = documents();
    let commands: usize = thread::scope(|scope| {
        let follow = |path: PathBuf| {
            let steps = steps(&path);
            let mut session = Session::start();
            steps.iter().for_each(|step| session.follow(step));
            session.end();
            steps.len()
        };
        let readers: Vec<_> =
            documents.into_iter().map(|path| scope.spawn(move || follow(path))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(commands > 60, "found only {commands} commands");
}

#[test]
fn the_tour_explains_a_request_that_meets_limits() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let line = readme.lines().find(|line| line.starts_with("tidegate explain ")).unwrap();
    let arguments = line.split_whitespace().skip(1).chain(["--json"]);
    let output =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).current_dir(root()).output();
    let json: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let limits = json["limits"].as_array().unwrap();
    let applying = limits.iter().filter(|limit| limit["applies"] == true).count();
    assert!(applying >= 3, "only {applying} of {} apply", limits.len());
}

fn run(test: &Block, policy: &Block) {
    let file = TestFile::parse(&test.place, &test.text).unwrap_or_else(|errors| panic!("{errors}"));
    let report =
        file.run(&policy.place, &policy.text, None).unwrap_or_else(|errors| panic!("{errors}"));
    for one in &report.tests {
        assert!(one.failure.is_none(), "{}: {}: {:#?}", test.place, one.name, one.failure);
    }
}
