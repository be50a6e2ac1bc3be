//! The contents of the watched files, and the directories through which they are reached.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::files::{is_pipe, open};

/// A longer file is read up to here, and at its end, where databases have their date.
const BYTES_MAX: u64 = 16 << 20;
const END_BYTES: u64 = 64 << 10;
/// As many links as Linux follows.
const LINKS_MAX: usize = 40;

/// The length and hash of a file; `None` while it cannot be read.
type Content = Option<(u64, [u8; 32])>;

/// The contents of all files at one time.
pub(super) type Contents = Vec<Content>;

pub(super) fn read_contents(paths: &[PathBuf]) -> Contents {
    paths.iter().map(|path| content(path)).collect()
}

/// True if a file is gone, or has become something else. An editor may delete a file before it writes
/// the new one.
pub(super) fn is_gone(reported: &Contents, found: &Contents) -> bool {
    reported.iter().zip(found).any(|(reported, found)| reported.is_some() && found.is_none())
}

fn content(path: &Path) -> Content {
    let read = || -> io::Result<(u64, [u8; 32])> {
        // Reading a pipe would consume it.
        if is_pipe(path) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut file = open(path).map_err(io::Error::other)?;
        let length = file.metadata()?.len();
        let mut bytes = Vec::new();
        (&mut file).take(BYTES_MAX).read_to_end(&mut bytes)?;
        if length > BYTES_MAX {
            file.seek(SeekFrom::Start(length.saturating_sub(END_BYTES)))?;
            file.take(END_BYTES).read_to_end(&mut bytes)?;
        }
        Ok((length, Sha256::digest(&bytes).into()))
    };
    read().ok()
}

/// Every directory in which a change may change the target of a path: that of the path itself, and
/// that of every link on the way.
pub(super) fn directories(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for path in paths {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        found.extend(path.parent().map(Path::to_owned));
        follow(&path, &mut found, &mut 0);
    }
    found
}

/// Walks along a path and collects the directory of every link, and of its target.
fn follow(path: &Path, found: &mut BTreeSet<PathBuf>, links: &mut usize) {
    let mut here = PathBuf::new();
    let mut rest = path.components();
    while let Some(component) = rest.next() {
        if component == Component::ParentDir {
            here.pop();
            continue;
        }
        let parent = here.clone();
        here.push(component);
        let Ok(target) = fs::read_link(&here) else { continue };
        *links += 1;
        if *links > LINKS_MAX {
            return;
        }
        let end = parent.join(target).join(rest.as_path());
        found.insert(parent);
        found.extend(end.parent().map(Path::to_owned));
        return follow(&end, found, links);
    }
}
