//! Every example in the documents is run: a ```yaml policy block must be a valid policy without
//! warnings, and a ```yaml test block must pass against the policy block before it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate::Policy;
use tidegate::policy::Options;
use tidegate::simulate::TestFile;

struct Block {
    kind: String,
    place: String,
    text: String,
}

#[test]
fn every_example_in_the_documents_works() {
    let blocks: Vec<Block> = documents().iter().flat_map(|path| blocks(path)).collect();
    let (mut policies, mut tests) = (0, 0);
    let mut policy: Option<&Block> = None;
    for block in &blocks {
        if block.kind == "yaml policy" {
            let checked = Policy::check(&block.place, &block.text, &Options::default());
            let checked = checked.unwrap_or_else(|errors| panic!("{errors}"));
            assert!(checked.warnings.is_empty(), "{}", checked.warnings);
            policy = Some(block);
            policies += 1;
        } else if block.kind == "yaml test" {
            run(block, policy.unwrap_or_else(|| panic!("{}: no policy before it", block.place)));
            tests += 1;
        }
    }
    assert!(policies > 5 && tests > 3, "found {policies} policies and {tests} tests");
}

/// Each `tidegate …` line of the documents' shell blocks, with this binary in place of the word.
#[test]
fn every_command_in_the_documents_works() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let blocks = documents().iter().flat_map(|path| blocks(path)).collect::<Vec<_>>();
    let shell = blocks.iter().filter(|block| block.kind == "sh");
    let mut ran = 0;
    for (block, line) in shell.flat_map(|block| block.text.lines().map(move |line| (block, line))) {
        let Some(arguments) = line.strip_prefix("tidegate ") else { continue };
        let command = format!("'{}' {arguments}", env!("CARGO_BIN_EXE_tidegate"));
        let command = command.replace("> tidegate.schema.json", "> /dev/null");
        let output = Command::new("sh").args(["-c", &command]).current_dir(&root).output().unwrap();
        assert!(output.status.success(), "{}: {line}: {}", block.place, output.status);
        ran += 1;
    }
    assert!(ran >= 4, "found only {ran} commands");
}

#[test]
fn the_tour_explains_a_request_that_meets_limits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let line = readme.lines().find(|line| line.starts_with("tidegate explain ")).unwrap();
    let arguments = line.split_whitespace().skip(1).chain(["--json"]);
    let output =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).current_dir(root).output();
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

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        listed.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    found.push(root.join("README.md"));
    found.sort();
    found
}

/// The fenced blocks of a document, with what stands behind their opening fence.
fn blocks(path: &Path) -> Vec<Block> {
    let text = fs::read_to_string(path).unwrap();
    let name = path.file_name().unwrap().to_string_lossy();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                let place = format!("{name}, the block at line {}", index + 1);
                open = Some(Block { kind: kind.to_owned(), place, text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{name}: a block is never closed");
    blocks
}
