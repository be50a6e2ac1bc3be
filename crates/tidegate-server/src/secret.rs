//! The secret that hashes keys: from a file of the operator, else from the state directory, else
//! random for this process.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tidegate::HashKey;

use crate::error::StartError;
use crate::files::{self, FileError};
use crate::state::StateDir;

const FILE: &str = "hash-key";
const OTHERS_MAY_WRITE: u32 = 0o002;

/// The secret in `file`. Without a file: that of the state directory, which is made if it is missing.
/// Without either: a random one.
///
/// # Errors
/// A file cannot be read or made, holds no secret, or anybody may write to it.
pub(crate) fn hash_key(
    file: Option<&Path>,
    state_dir: Option<&StateDir>,
) -> Result<HashKey, StartError> {
    match (file, state_dir) {
        (Some(path), _) => {
            parse(&read(path).map_err(|error| unreadable(&error))?, path).map(HashKey::new)
        }
        (None, Some(state_dir)) => read_or_make(state_dir).map(HashKey::new),
        (None, None) => Ok(HashKey::random()),
    }
}

fn read_or_make(state_dir: &StateDir) -> Result<[u8; 16], StartError> {
    let path = state_dir.path().join(FILE);
    match state_dir.open_file(FILE) {
        Ok(file) => {
            parse(&files::read_open(&path, file).map_err(|error| unreadable(&error))?, &path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let secret = random().map_err(|error| cannot("make", &path, &error))?;
            let write = |file: &mut File| writeln!(file, "{:032x}", u128::from_be_bytes(secret));
            state_dir.replace(FILE, write).map_err(|error| cannot("write", &path, &error))?;
            Ok(secret)
        }
        Err(error) => Err(unreadable(&FileError::new(&path, error))),
    }
}

fn random() -> io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let filled = provider.secure_random.fill(&mut secret);
    filled.map_err(|_| io::Error::other("the system gives no random bytes"))?;
    Ok(secret)
}

fn unreadable(error: &FileError) -> StartError {
    StartError::new(format!("the hash key: {error}"))
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> StartError {
    StartError::new(format!("cannot {verb} the hash key {}: {error}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let file = files::open(path)?;
    let metadata = file.metadata().map_err(|error| FileError::new(path, error))?;
    if metadata.permissions().mode() & OTHERS_MAY_WRITE != 0 {
        let detail = "anybody may write to it; take that away with `chmod o-w`";
        return Err(FileError::new(path, detail));
    }
    files::read_open(path, file)
}

fn parse(found: &[u8], path: &Path) -> Result<[u8; 16], StartError> {
    let refused = |what: &str| {
        let at = path.display();
        StartError::new(format!(
            "found {what} in the hash key {at}, expected 32 hexadecimal digits or 16 raw bytes; `openssl rand -hex 16` makes one"
        ))
    };
    let text = found.trim_ascii();
    let all_digits = text.iter().all(u8::is_ascii_hexdigit);
    match (<[u8; 16]>::try_from(found), text.len()) {
        (_, 32) if all_digits => {
            let digits = str::from_utf8(text).ok();
            let value = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
            value.map(u128::to_be_bytes).ok_or_else(|| refused("something else"))
        }
        // Half a secret written in digits, not a whole one in bytes.
        (_, 16) if all_digits => Err(refused("16 hexadecimal digits")),
        (Ok(raw), _) => Ok(raw),
        (Err(_), _) => Err(refused(&format!("{} bytes", found.len()))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn hash_key_of(content: &[u8]) -> Result<u64, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let found = hash_key(Some(&path), None);
        found.map(|key| key.fingerprint()).map_err(|error| error.to_string())
    }

    #[test]
    fn digits_and_raw_bytes_are_one_secret() {
        let secret: [u8; 16] = *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";
        let expected = Ok(HashKey::new(secret).fingerprint());
        assert_eq!(hash_key_of(&secret), expected);
        assert_eq!(hash_key_of(b"00112233445566778899AABBccddeeff\n"), expected);
    }

    #[test]
    fn anything_else_is_refused_with_what_was_found() {
        for (content, found) in [
            (&b""[..], "found 0 bytes"),
            (b"secret\n", "found 7 bytes"),
            (b"0011223344556677\n", "found 16 hexadecimal digits"),
            (b"0011223344556677", "found 16 hexadecimal digits"),
            (b"00112233445566778899aabbccddeefg", "found 32 bytes"),
            (&[7; 300], "found 300 bytes"),
        ] {
            let message = hash_key_of(content).unwrap_err();
            assert!(message.contains(found), "{message}");
        }
    }

    #[test]
    fn a_file_that_anybody_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, [1; 16]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o602)).unwrap();
        let message = hash_key(Some(&path), None).unwrap_err().to_string();
        assert!(message.contains("anybody may write"), "{message}");
    }

    #[test]
    fn the_state_directory_keeps_the_secret_that_it_made() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = StateDir::open(&dir.path().join("state")).unwrap();
        let first = hash_key(None, Some(&state_dir)).unwrap().fingerprint();
        assert_eq!(hash_key(None, Some(&state_dir)).unwrap().fingerprint(), first);
        let mode = fs::metadata(state_dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = StateDir::open(&dir.path().join("other")).unwrap();
        assert_ne!(hash_key(None, Some(&other)).unwrap().fingerprint(), first);
    }
}
