//! The committed inputs of a target.

use std::fs;
use std::path::Path;

/// Every file under `corpus/<target>/`, sorted by name, so that a seed means the same everywhere.
///
/// # Panics
/// There is no such file: a target without its corpus would pass without testing anything.
#[must_use]
pub fn corpus(target: &str) -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let files = fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = files.map(|file| file.path()).collect();
    paths.sort();
    let texts: Vec<_> = paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    assert!(!texts.is_empty(), "there is nothing in {}", directory.display());
    texts
}
