//! Links within the repository have a target.

use std::fs;
use std::path::{Path, PathBuf};

use crate::markdown::{documents, root};

#[test]
fn every_link_leads_to_a_file_and_its_heading() {
    let records = fs::read_dir(root().join("docs/adr")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    let others = others.map(|name| root().join(name));
    for path in documents().into_iter().chain(records).chain(others) {
        let text = fs::read_to_string(&path).unwrap();
        for link in links(&text) {
            assert!(leads_somewhere(&path, link), "{}: {link}", path.display());
        }
    }
}

/// The targets of `[text](target)`, but for those on other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

fn leads_somewhere(from: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let to: PathBuf =
        if file.is_empty() { from.to_owned() } else { from.parent().unwrap().join(file) };
    if heading.is_empty() {
        return to.exists();
    }
    let text = fs::read_to_string(&to).unwrap_or_default();
    text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading)
}

/// The anchor that a heading gets: lower case, spaces as dashes, no signs.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
