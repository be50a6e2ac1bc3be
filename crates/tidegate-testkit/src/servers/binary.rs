//! The binary of the servers.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

/// Names another binary than the installed one.
const VARIABLE: &str = "TIDEGATE_TEST_REDIS";
const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

/// The named binary, or the first that is installed.
pub(super) fn find() -> io::Result<PathBuf> {
    match env::var_os(VARIABLE) {
        Some(named) => Ok(named.into()),
        None => find_in(&env::var_os("PATH").unwrap_or_default()),
    }
}

fn find_in(path: &OsStr) -> io::Result<PathBuf> {
    let places = |name| env::split_paths(path).map(move |folder| folder.join(name));
    let found = NAMES.into_iter().flat_map(places).find(|place| place.is_file());
    found.ok_or_else(|| {
        let detail = format!(
            "the tests of the shared store need redis-server: install the package redis-server \
             (or valkey-server), or name a binary in {VARIABLE}"
        );
        io::Error::new(io::ErrorKind::NotFound, detail)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_missing_binary_names_its_package() {
        let empty = tempfile::tempdir().unwrap();
        let missing = find_in(empty.path().as_os_str()).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains("install the package redis-server"), "{missing}");
    }

    #[test]
    fn valkey_serves_where_redis_is_not_installed() {
        let folder = tempfile::tempdir().unwrap();
        let valkey = folder.path().join("valkey-server");
        fs::write(&valkey, "").unwrap();
        assert_eq!(find_in(folder.path().as_os_str()).unwrap(), valkey);
    }
}
