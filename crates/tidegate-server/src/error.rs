//! Why the daemon does not start, or does not reload.

use std::fmt;

/// What is wrong, and what was expected, for people.
#[derive(Debug)]
pub struct StartError(String);

impl StartError {
    pub(crate) fn new(detail: impl fmt::Display) -> Self {
        Self(detail.to_string())
    }
}

impl From<std::io::Error> for StartError {
    fn from(error: std::io::Error) -> Self {
        Self::new(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}
