//! Every dependency is argued in ARCHITECTURE.md.

use std::fs;

use crate::markdown::root;

#[test]
fn every_dependency_of_the_workspace_is_argued() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let listed = manifest.split("[workspace.dependencies]").nth(1).unwrap();
    let listed =
        listed.split("\n[").next().unwrap().lines().filter_map(|line| line.split_once(" ="));
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let argued: Vec<&str> = architecture
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|names| names.split(", "))
        .collect();
    let is_ours = |name: &str| name.starts_with("tidegate");
    let missing: Vec<&str> = listed
        .map(|(name, _)| name)
        .filter(|name| !is_ours(name) && !argued.contains(name))
        .collect();
    assert!(missing.is_empty(), "not in the table of ARCHITECTURE.md: {missing:?}");
}
