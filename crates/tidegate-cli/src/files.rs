//! Reading files: bounded, and with errors that name the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use tidegate::policy::document::BYTES_MAX;

use crate::command::Error;

/// The text of a file, at most a little more than a policy may have, so that one that is too large
/// is still refused by name.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let file = File::open(path).map_err(cannot)?;
    let mut text = String::new();
    let limit = u64::try_from(BYTES_MAX)?.saturating_add(1);
    file.take(limit).read_to_string(&mut text).map_err(cannot)?;
    Ok(text)
}

/// The environment, as far as it is text.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
