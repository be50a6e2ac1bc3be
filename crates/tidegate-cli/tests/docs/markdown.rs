//! The documents, and their runnable blocks.

use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block, with the words behind its opening fence.
pub(crate) struct Block {
    pub(crate) kind: String,
    pub(crate) place: String,
    pub(crate) text: String,
}

/// One thing to do, in the order of a document.
pub(crate) enum Step {
    /// A block `yaml file=NAME`, which is saved.
    Save { name: String, text: String },
    /// A command of a block `console`, and its documented output.
    Run { place: String, command: String, shown: Vec<String> },
    /// A `tidegate` command of a block `sh`, which shows nothing: it must succeed.
    Succeed { place: String, command: String },
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn documents() -> Vec<PathBuf> {
    let listed = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        listed.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    found.push(root().join("README.md"));
    found.sort();
    found
}

pub(crate) fn blocks(path: &Path) -> Vec<Block> {
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

pub(crate) fn steps(path: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    for block in blocks(path) {
        if let Some((_, name)) = block.kind.split_once(" file=") {
            steps.push(Step::Save { name: name.to_owned(), text: block.text });
        } else if block.kind == "console" {
            steps.extend(session(&block));
        } else if block.kind == "sh" {
            let commands = block.text.lines().filter(|line| line.starts_with("tidegate "));
            steps.extend(commands.map(|line| Step::Succeed {
                place: block.place.clone(),
                command: line.to_owned(),
            }));
        }
    }
    steps
}

/// `$ ` begins a command, `> ` continues it, and everything else is its output.
fn session(block: &Block) -> Vec<Step> {
    let mut steps = Vec::new();
    for line in block.text.lines() {
        if let Some(begun) = line.strip_prefix("$ ") {
            let (place, command) = (block.place.clone(), begun.to_owned());
            steps.push(Step::Run { place, command, shown: Vec::new() });
            continue;
        }
        let Some(Step::Run { command, shown, .. }) = steps.last_mut() else {
            panic!("{}: expected a command, `$ …`, first", block.place);
        };
        match line.strip_prefix("> ") {
            Some(continued) if shown.is_empty() => {
                command.push('\n');
                command.push_str(continued);
            }
            _ => shown.push(line.to_owned()),
        }
    }
    steps
}
