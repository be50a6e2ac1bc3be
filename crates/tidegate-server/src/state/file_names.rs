//! The names of a journal's files, and the message about one that cannot be used.

use std::fs;
use std::path::{Path, PathBuf};

use super::record_format::FileFault;
use crate::error::StartError;

/// The names of the files of one journal: `counters`, `counters.log.7`.
#[derive(Clone, Debug)]
pub(super) struct FileNames {
    directory: PathBuf,
    /// What the files hold.
    pub(super) of: &'static str,
    /// How the daemon starts without them.
    without: &'static str,
}

impl FileNames {
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

    pub(super) fn snapshot(&self) -> PathBuf {
        self.directory.join(self.of)
    }

    pub(super) fn log(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{}.log.{number}", self.of))
    }

    /// The file that says which logs there must be.
    pub(super) fn newest(&self) -> PathBuf {
        self.directory.join(format!("{}.newest", self.of))
    }

    /// The name of a file until it is whole.
    pub(super) fn unfinished(&self, role: &str) -> PathBuf {
        self.directory.join(format!("{}{role}.tmp", self.of))
    }

    /// The numbers of the existing logs, in order.
    pub(super) fn log_numbers(&self) -> Result<Vec<u64>, StartError> {
        let unreadable = |error| {
            let at = self.directory.display();
            StartError::new(format!("cannot read the state directory {at}: {error}"))
        };
        let (mut numbers, prefix) = (Vec::new(), format!("{}.log.", self.of));
        for entry in fs::read_dir(&self.directory).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(&prefix));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Says why a file cannot be used, and what to do.
    pub(super) fn refuse(&self, path: &Path, why: &FileFault) -> StartError {
        let (of, without) = (self.of, self.without);
        let away = format!("move {of} and {of}.* away to start {without}");
        let advice = match why {
            FileFault::Io(_) => format!("mend that, or {away}"),
            FileFault::Missing => format!("put it back, or {away}"),
            FileFault::OtherVersion(_) => format!("use the release that wrote it, or {away}"),
            FileFault::OtherSecret => format!("use the hash key that it was saved with, or {away}"),
            _ => away,
        };
        let path = path.display();
        StartError::new(format!("cannot use what was saved in {path}: {why}; {advice}"))
    }
}
