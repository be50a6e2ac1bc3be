//! Every file and folder that ARCHITECTURE.md names exists.

use std::fs;
use std::path::Path;

use crate::markdown::root;

#[test]
fn every_file_that_the_architecture_names_exists() {
    let mut files = Vec::new();
    list_files(&root().join("crates"), &mut files);
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let names: Vec<&str> =
        text.split('`').skip(1).step_by(2).filter(|name| is_path(name)).collect();
    assert!(names.len() > 100, "{names:?}");
    let missing: Vec<&str> = names.into_iter().filter(|name| !exists(name, &files)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist: {missing:?}");
}

fn is_path(name: &str) -> bool {
    let ends = ["/", ".rs", ".lua", ".json", ".yaml"];
    !name.contains(char::is_whitespace) && ends.iter().any(|end| name.ends_with(end))
}

/// The document names files below the `src` folder of a crate, so the end of a path must match.
fn exists(name: &str, files: &[String]) -> bool {
    let end = format!("/{name}");
    let is_match = |file: &String| {
        if name.ends_with('/') { file.contains(&end) } else { file.ends_with(&end) }
    };
    files.iter().any(is_match)
}

fn list_files(folder: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list_files(&path, files);
        } else {
            files.push(path.to_string_lossy().into_owned());
        }
    }
}
