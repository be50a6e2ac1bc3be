//! What files say, and the directories through which they are reached.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// Further than this no file is read but for its end, where databases say when they were made.
const BYTES_MAX: u64 = 16 << 20;
const END_BYTES: u64 = 64 << 10;
/// As many links as Linux follows.
const LINKS_MAX: usize = 40;

/// What a file says; `None` while it cannot be read.
type Content = Option<(u64, [u8; 32])>;

/// What was found at each path at one time.
pub(super) type Look = Vec<Content>;

/// What was last told of each file.
#[derive(Debug)]
pub(super) struct Seen {
    paths: Vec<PathBuf>,
    told: Look,
}

impl Seen {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        let told = paths.iter().map(|path| content(path)).collect();
        Self { paths, told }
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    pub(super) fn look(&self) -> Look {
        self.paths.iter().map(|path| content(path)).collect()
    }

    /// Whether a file says something else than was last told.
    pub(super) fn differs(&self, look: &Look) -> bool {
        self.told.iter().zip(look).any(|(told, found)| differ(told, found))
    }

    /// Takes what was found as told, and says whether it is news.
    pub(super) fn remember(&mut self, look: Look) -> bool {
        let is_news = self.differs(&look);
        for (told, found) in self.told.iter_mut().zip(look) {
            if differ(told, &found) {
                *told = found;
            }
        }
        is_news
    }
}

/// A file that is gone for now says nothing new: whoever replaces one may delete it first.
fn differ(told: &Content, found: &Content) -> bool {
    found.is_some() && found != told
}

fn content(path: &Path) -> Content {
    let read = || -> io::Result<(u64, [u8; 32])> {
        // Whoever looks into a pipe takes what it says, or waits until it says something.
        if !fs::metadata(path)?.is_file() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut file = File::open(path)?;
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

/// Every directory in which a change may change what a path leads to: that of the path itself, and
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

/// Walks along a path and notes the directory of every link, and where the links end up.
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
