//! The events of the log are those that docs/operating.md lists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

#[test]
fn every_line_of_the_log_has_an_event_that_the_documents_list() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut logged = BTreeSet::from(["log_dropped".to_owned()]);
    let folders = ["src", "../tidegate-redis/src"].map(|folder| crate_folder.join(folder));
    for file in folders.iter().flat_map(|folder| sources(folder)) {
        let text = fs::read_to_string(&file).unwrap();
        for line in lines_logged(&text) {
            let event = line.split_once("event = \"").and_then(|(_, rest)| rest.split_once('"'));
            let (event, _) = event.unwrap_or_else(|| panic!("no event in {file:?}: {line}"));
            logged.insert(event.to_owned());
        }
    }
    assert!(logged.len() > 10, "{logged:?}");
    let document = fs::read_to_string(crate_folder.join("../../docs/operating.md")).unwrap();
    assert_eq!(logged, listed(&document), "logged, and listed");
}

/// The sources that are not tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        match (path.is_dir(), name) {
            (_, "tests" | "tests.rs") => {}
            (true, _) => found.extend(sources(&path)),
            (false, _) if name.ends_with(".rs") => found.push(path),
            (false, _) => {}
        }
    }
    found
}

/// What stands between the parentheses of every macro of `tracing`.
fn lines_logged(source: &str) -> Vec<&str> {
    let starts = LEVELS.iter().flat_map(|level| {
        let name = format!("{level}!(");
        source.match_indices(&name).map(|(at, name)| at + name.len()).collect::<Vec<_>>()
    });
    starts
        .map(|start| {
            let mut depth = 1_usize;
            let end = source[start..].find(|character| {
                match character {
                    '(' => depth += 1,
                    ')' => depth -= 1,
                    _ => {}
                }
                depth == 0
            });
            &source[start..start + end.unwrap()]
        })
        .collect()
}

/// The first column of the table of events.
fn listed(document: &str) -> BTreeSet<String> {
    let (_, table) = document.split_once("| `event` | says |\n").unwrap();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(','));
    names.map(|name| name.trim().trim_matches('`').to_owned()).collect()
}
