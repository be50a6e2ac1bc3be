//! Reading files: bounded, and with errors that name the file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tidegate::policy::document::BYTES_MAX;

/// Why a file cannot be read, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    path: PathBuf,
    why: String,
    is_missing: bool,
}

impl Unreadable {
    pub(crate) fn new(path: &Path, why: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), why: why.to_string(), is_missing: false }
    }

    /// Whether there is no such file.
    pub(crate) const fn is_missing(&self) -> bool {
        self.is_missing
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for Unreadable {}

/// The text of a file, if it is no larger than a document may be.
///
/// # Errors
/// It is not there, not for us, too large or not text.
pub fn read(path: &Path) -> Result<String, Unreadable> {
    String::from_utf8(read_bytes(path)?).map_err(|error| {
        Unreadable::new(path, format_args!("it is not text: {}", error.utf8_error()))
    })
}

/// All of a file, likewise.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, Unreadable> {
    read_open(path, open(path)?)
}

/// A file, to be looked at before it is read.
pub(crate) fn open(path: &Path) -> Result<File, Unreadable> {
    File::open(path).map_err(|error| Unreadable {
        is_missing: error.kind() == io::ErrorKind::NotFound,
        ..Unreadable::new(path, error)
    })
}

/// Whether a path leads to a pipe or the like, which says what it says only once.
pub(crate) fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// All of a file that is open; its path is for errors. Never reads more than is allowed.
pub(crate) fn read_open(path: &Path, file: File) -> Result<Vec<u8>, Unreadable> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let read = file.take(bound).read_to_end(&mut bytes);
    read.map_err(|error| Unreadable::new(path, error))?;
    if bytes.len() > BYTES_MAX {
        return Err(Unreadable::new(path, "it is larger than 1 MiB"));
    }
    Ok(bytes)
}

/// The environment, as far as it is text.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_1_mib_is_read_however_much_there_is() {
        let error = read_bytes(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /dev/zero: it is larger than 1 MiB");
    }

    #[test]
    fn only_a_file_that_is_not_there_is_missing() {
        assert!(read(Path::new("no/such/file")).unwrap_err().is_missing());
        assert!(!read(Path::new("/")).unwrap_err().is_missing());
    }

    #[test]
    fn what_is_not_text_is_no_text_but_has_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"a\xff").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("it is not text"));
        assert_eq!(read_bytes(&path).unwrap(), b"a\xff");
    }
}
