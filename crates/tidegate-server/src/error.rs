//! Why the daemon does not start, or does not reload.

use std::fmt;

use crate::files::FileError;

/// What is wrong, and what was expected, in a sentence.
#[derive(Debug)]
pub struct StartError {
    detail: String,
    is_report: bool,
}

impl StartError {
    pub(crate) fn new(detail: impl fmt::Display) -> Self {
        Self { detail: detail.to_string(), is_report: false }
    }

    /// Problems in files, line by line.
    pub(crate) fn report(problems: impl fmt::Display) -> Self {
        Self { is_report: true, ..Self::new(problems) }
    }

    /// True if every line says that it is an error, and where.
    #[must_use]
    pub const fn is_report(&self) -> bool {
        self.is_report
    }
}

impl From<std::io::Error> for StartError {
    fn from(error: std::io::Error) -> Self {
        Self::new(error)
    }
}

impl From<FileError> for StartError {
    fn from(error: FileError) -> Self {
        Self::new(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for StartError {}
