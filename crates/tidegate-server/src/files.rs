//! Reading files: bounded, and with errors that name the file.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use tidegate::policy::document::BYTES_MAX;

/// Why a file cannot be read, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

/// The text of a file, if it is no larger than a document may be. Never reads more than that.
///
/// # Errors
/// It is not there, not for us, too large or not text.
pub fn read(path: &Path) -> Result<String, Unreadable> {
    let cannot = |why: &dyn Display| Unreadable(format!("cannot read {}: {why}", path.display()));
    let file = File::open(path).map_err(|error| cannot(&error))?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    if bytes.len() > BYTES_MAX {
        return Err(cannot(&"it is larger than 1 MiB"));
    }
    let text = String::from_utf8(bytes);
    text.map_err(|error| cannot(&format!("it is not text: {}", error.utf8_error())))
}

/// The environment, as far as it is text.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
