//! The tables of docs/operating.md against `tidegate serve --help`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::markdown::root;

/// A flag, its environment variable and its default.
type Row = (String, String, String);

#[test]
fn every_flag_is_documented_with_its_variable_and_default() {
    let (told, documented) = (told(), documented());
    assert!(told.len() > 20, "{told:?}");
    let missing: Vec<&Row> = told.difference(&documented).collect();
    let unknown: Vec<&Row> = documented.difference(&told).collect();
    assert!(missing.is_empty(), "not, or otherwise, in docs/operating.md: {missing:#?}");
    assert!(unknown.is_empty(), "not, or otherwise, in `tidegate serve --help`: {unknown:#?}");
}

#[test]
fn every_flag_stands_under_the_heading_of_its_subject() {
    let help = help();
    let mut heading = "";
    let mut found: Vec<(&str, &str)> = Vec::new();
    for line in help.lines() {
        if line.ends_with(':') && !line.starts_with(' ') {
            heading = line;
        } else if let Some((_, flag)) =
            line.split_once("--").filter(|(indent, _)| indent.len() == 6)
        {
            found.push((heading, flag.split(' ').next().unwrap_or_default()));
        }
    }
    let none: Vec<_> = found.iter().filter(|(heading, _)| *heading == "Options:").collect();
    assert_eq!(none, [&("Options:", "help")], "all others belong to a subject");
    for expected in [
        ("Policies and what they use:", "jwt-key"),
        ("Listeners:", "tls-cert"),
        ("Upstream:", "upstream-ca"),
        ("Counters and their store:", "store"),
        ("Counters and their store:", "max-keys"),
        ("Logs:", "log-level"),
        ("Bounds:", "threads"),
        ("Bounds:", "drain-timeout"),
    ] {
        assert!(found.contains(&expected), "{expected:?}: {found:#?}");
    }
    assert!(help.contains("SIGHUP or a changed file reloads"), "{help}");
}

fn help() -> String {
    let help = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--help"]).output();
    String::from_utf8(help.unwrap().stdout).unwrap()
}

/// The flags in the help text, which wraps its lines.
fn told() -> BTreeSet<Row> {
    let help = help();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let between = |text: &str, from: &str, to: &str| {
        let found = text.split_once(from).and_then(|(_, rest)| rest.split_once(to));
        found.map(|(value, _)| value.trim().to_owned()).unwrap_or_default()
    };
    let entries = words.split(" --").skip(1).filter(|entry| entry.contains("[env: "));
    entries
        .map(|entry| {
            let name = entry.split([' ', ',']).next().unwrap_or_default();
            // The help does not show the value of a variable that may hold a password.
            let variable = between(entry, "[env: ", "]");
            let variable = variable.split('=').next().unwrap_or_default().to_owned();
            (format!("--{name}"), variable, between(entry, "[default: ", "]"))
        })
        .collect()
}

/// Rows `| --flag VALUE | VARIABLE | default | … |`, each cell in code quotes.
fn documented() -> BTreeSet<Row> {
    let text = fs::read_to_string(root().join("docs/operating.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `--"));
    rows.map(|row| {
        let cells: Vec<String> = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let flag = cells[1].split(' ').next().unwrap_or_default().to_owned();
        (flag, cells[2].clone(), cells[3].clone())
    })
    .collect()
}
