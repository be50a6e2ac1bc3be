//! What people read when something is wrong with a policy or a test file: every error and every
//! warning, as a snapshot. Each shows the document with what is said of it below the line it is
//! said of; several problems per document show that one run finds all of them, in order.
//!
//! After a message was changed on purpose, `INSTA_UPDATE=always cargo test` writes the snapshots
//! anew.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod conditions;
mod document;
mod identity;
mod limits;
mod not_yet;
mod operations;
mod overlays;
mod protection;
mod response;
mod test_files;
mod top;
mod warnings;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use insta::assert_snapshot;
use tidegate::Policy;
use tidegate::engine::policy::diagnostics::{Diagnostics, Severity};
use tidegate::engine::policy::{LimitBuilder, Options};
use tidegate::engine::simulate::TestFile;

fn options(profile: Option<&str>) -> Options {
    let env = BTreeMap::from([("SET".to_owned(), "5".to_owned())]);
    Options { profile: profile.map(str::to_owned), env }
}

/// All that is said of a policy.
fn diagnostics(text: &str, profile: Option<&str>) -> Diagnostics {
    match Policy::check("policy.yaml", text, &options(profile)) {
        Ok(checked) => checked.warnings,
        Err(found) => found,
    }
}

/// A policy with what is said of it.
fn policy(text: &str) -> String {
    let text = text.trim_start();
    annotated(text, &diagnostics(text, None))
}

/// A policy's further lines with what is said of them.
fn lines(text: &str) -> String {
    policy(&format!("tidegate: 1\nname: n\n{}", text.trim_start()))
}

/// A test file with what is said of it.
fn test_file(text: &str) -> String {
    let text = text.trim_start();
    annotated(text, &TestFile::parse("policy.test.yaml", text).unwrap_err())
}

/// A document, each of its lines followed by what is said of it.
fn annotated(text: &str, found: &Diagnostics) -> String {
    assert!(found.iter().len() > 0, "nothing was said of\n{text}");
    assert!(found.iter().is_sorted_by_key(|one| one.at), "out of order:\n{found}");
    let mut result = String::new();
    for (index, line) in text.lines().enumerate() {
        writeln!(result, "{:>3} | {line}", index + 1).unwrap();
        let here = |at: u32| usize::try_from(at).unwrap() == index + 1;
        for one in found.iter().filter(|one| here(one.at.line)) {
            let indent = " ".repeat(usize::try_from(one.at.column).unwrap() - 1);
            writeln!(result, "    | {indent}^ {}: {}", one.severity.word(), one.message).unwrap();
            if let Some(help) = &one.help {
                writeln!(result, "    | {indent}  help: {help}").unwrap();
            }
        }
    }
    for one in
        found.iter().filter(|one| usize::try_from(one.at.line).unwrap() > text.lines().count())
    {
        writeln!(result, "end | {}: {}", one.severity.word(), one.message).unwrap();
    }
    result
}

/// Only what is said, where a document is too long to show.
fn said(text: &str) -> String {
    diagnostics(text, None).to_string()
}

/// A document for each line of a list, with what is said of it.
fn each(list: &str) -> String {
    list.trim().lines().map(|line| policy(line.trim()) + "\n").collect()
}

#[test]
fn builders_name_what_is_said_twice() {
    let twice = LimitBuilder::total("a", 5).by("ip");
    let built = Policy::builder("n").limit(twice.clone()).limit(twice).build();
    assert_snapshot!(built.unwrap_err().to_string());
}
