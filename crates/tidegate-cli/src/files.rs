//! Reading files: bounded, and with errors that name the file.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use tidegate::policy::document::BYTES_MAX;

use crate::command::Error;

/// The text of a file, if it is no larger than a document may be. Never reads more than that.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    let cannot = |why: &dyn Display| format!("cannot read {}: {why}", path.display());
    let file = File::open(path).map_err(|error| cannot(&error))?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(BYTES_MAX)?.saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    if bytes.len() > BYTES_MAX {
        return Err(cannot(&"it is larger than 1 MiB").into());
    }
    let text = String::from_utf8(bytes);
    Ok(text.map_err(|error| cannot(&format!("it is not text: {}", error.utf8_error())))?)
}

/// The environment, as far as it is text.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
