//! Reading files: bounded, without ever waiting for a writer, and with errors that name the file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_setfl};
use tidegate::engine::policy::document::BYTES_MAX;

/// Why a file cannot be read. The message names the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    path: PathBuf,
    why: String,
}

impl FileError {
    pub(crate) fn new(path: &Path, why: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), why: why.to_string() }
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

/// Opens a file, so that its metadata can be checked before it is read. Anything but a file is refused
/// at once, and a pipe unless this process [inherited](is_pipe) it: a pipe may never have a writer.
pub(crate) fn open(path: &Path) -> Result<File, FileError> {
    let refuse = |error: io::Error| FileError::new(path, error);
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(refuse)?;
    let kind = file.metadata().map_err(refuse)?.file_type();
    if kind.is_fifo() && is_inherited(path) {
        // Its writer may not be done yet.
        fcntl_setfl(&file, OFlags::empty()).map_err(|error| refuse(error.into()))?;
        return Ok(file);
    }
    check_kind(kind).map_err(refuse)?;
    Ok(file)
}

/// Refuses what is no file.
pub(crate) fn check_kind(kind: FileType) -> io::Result<()> {
    let found = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!("it is {found}, expected a file")))
}

/// True for a pipe that this process was started with, which can be read only once.
pub(crate) fn is_pipe(path: &Path) -> bool {
    is_inherited(path) && fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

/// True for the name of an open file of this process.
fn is_inherited(path: &Path) -> bool {
    let folders = ["/dev/fd", "/proc/self/fd"];
    path == Path::new("/dev/stdin") || folders.iter().any(|folder| path.starts_with(folder))
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

/// Makes a pipe with a name, which nobody writes to.
#[cfg(test)]
pub(crate) fn make_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_1_mib_is_read_however_much_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read_bytes(&path).unwrap_err().to_string();
        assert!(error.ends_with("/file: it is larger than 1 MiB"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, socket) = (dir.path().join("fifo"), dir.path().join("socket"));
        make_fifo(&fifo);
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, found) in [
            (&*fifo, "it is a pipe, expected a file"),
            (dir.path(), "it is a directory, expected a file"),
            (&*socket, "No such device or address"),
            (Path::new("/dev/zero"), "it is a device, expected a file"),
        ] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains(found), "{error}");
            assert!(!is_pipe(path));
        }
    }

    #[test]
    fn a_pipe_of_this_process_is_read_to_the_end_of_its_writer() {
        use std::io::Write as _;
        use std::os::fd::AsRawFd as _;
        let (reader, mut writer) = io::pipe().unwrap();
        let path = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        assert!(is_pipe(&path));
        let reading = std::thread::spawn(move || read(&path));
        for part in ["one ", "two"] {
            writer.write_all(part.as_bytes()).unwrap();
        }
        drop(writer);
        assert_eq!(reading.join().unwrap().unwrap(), "one two");
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
