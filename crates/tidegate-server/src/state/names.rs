//! How the files of a journal are called, and what is said of one that cannot be used.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::StateError;
use super::format::BadFile;

/// The names of the files of one journal: `counters`, `counters.log.7`.
#[derive(Clone, Debug)]
pub(super) struct Names {
    directory: PathBuf,
    /// What is in them.
    pub(super) of: &'static str,
    /// What a start is without them.
    without: &'static str,
}

impl Names {
    pub(super) fn counters(directory: &Path) -> Self {
        let (directory, without) = (directory.to_owned(), "with empty counters");
        Self { directory, of: "counters", without }
    }

    pub(super) fn marks(directory: &Path) -> Self {
        let (directory, without) = (directory.to_owned(), "without bans, flags and factors");
        Self { directory, of: "marks", without }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn base(&self) -> PathBuf {
        self.directory.join(self.of)
    }

    pub(super) fn log(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{}.log.{number}", self.of))
    }

    /// What a file is called until it is whole.
    pub(super) fn unfinished(&self, role: &str) -> PathBuf {
        self.directory.join(format!("{}{role}.tmp", self.of))
    }

    /// The numbers of the logs that are there, in order.
    pub(super) fn logs(&self) -> Result<Vec<u64>, StateError> {
        self.log_numbers().map_err(|error| {
            let at = self.directory.display();
            StateError(format!("cannot read the state directory {at}: {error}"))
        })
    }

    pub(super) fn log_numbers(&self) -> io::Result<Vec<u64>> {
        let (mut numbers, prefix) = (Vec::new(), format!("{}.log.", self.of));
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(&prefix));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Why a file cannot be used, and what to do.
    pub(super) fn refused(&self, path: &Path, why: &BadFile) -> StateError {
        let (of, without) = (self.of, self.without);
        let away = format!("move {of} and {of}.log.* away to start {without}");
        let advice = match why {
            BadFile::Io(_) => format!("try again, or {away}"),
            BadFile::OtherVersion(_) => format!("use the release that wrote it, or {away}"),
            BadFile::OtherSecret => format!("use the hash key that it was saved with, or {away}"),
            _ => away,
        };
        let path = path.display();
        StateError(format!("cannot use what was saved in {path}: {why}; {advice}"))
    }

    pub(super) fn unwritable(&self, error: &io::Error) -> StateError {
        let (of, at) = (self.of, self.directory.display());
        StateError(format!("cannot save {of} to the state directory {at}: {error}"))
    }
}
