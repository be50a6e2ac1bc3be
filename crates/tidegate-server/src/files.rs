//! Reading files: bounded, and with errors that name the file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tidegate::engine::policy::document::BYTES_MAX;

/// Why a file cannot be read. The message names the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    path: PathBuf,
    why: String,
    is_missing: bool,
}

impl FileError {
    pub(crate) fn new(path: &Path, why: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), why: why.to_string(), is_missing: false }
    }

    /// True if there is no such file.
    pub(crate) const fn is_missing(&self) -> bool {
        self.is_missing
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for FileError {}

/// Reads the text of a file that is no larger than a document may be.
///
/// # Errors
/// The file is missing, unreadable, too large or not text.
pub fn read(path: &Path) -> Result<String, FileError> {
    String::from_utf8(read_bytes(path)?).map_err(|error| {
        FileError::new(path, format_args!("it is not text: {}", error.utf8_error()))
    })
}

/// Reads the bytes of such a file.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    read_open(path, open(path)?)
}

/// Opens a file, so that its metadata can be checked before it is read.
pub(crate) fn open(path: &Path) -> Result<File, FileError> {
    File::open(path).map_err(|error| FileError {
        is_missing: error.kind() == io::ErrorKind::NotFound,
        ..FileError::new(path, error)
    })
}

/// True for a pipe and the like, which can be read only once.
pub(crate) fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Reads an open file up to the bound; its path is for errors.
pub(crate) fn read_open(path: &Path, file: File) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let read = file.take(bound).read_to_end(&mut bytes);
    read.map_err(|error| FileError::new(path, error))?;
    if bytes.len() > BYTES_MAX {
        return Err(FileError::new(path, "it is larger than 1 MiB"));
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
