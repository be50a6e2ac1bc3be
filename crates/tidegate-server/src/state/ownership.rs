//! Files and directories that belong to this user alone: nobody else may change what was saved.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::files::check_kind;

/// The permissions of others to write.
const OTHERS_MAY_WRITE: u32 = 0o022;

/// Makes a directory for this user alone. One that exists must belong to this user, and others lose the
/// permission to write to it.
pub(super) fn make_own_directory(path: &Path) -> io::Result<()> {
    if !path.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    }
    let found = fs::metadata(path)?;
    if !found.is_dir() {
        return Err(io::Error::other("it is no directory"));
    }
    if let Some(mended) = check_owner(&found)? {
        fs::set_permissions(path, mended)?;
        let (message, at) = ("others could write to the state directory", path.display());
        tracing::warn!(event = "state_mended", file = %at, "{message}; this is taken from them");
    }
    Ok(())
}

/// Opens a file of this user to be read. Others lose the permission to write to it.
pub(super) fn open_own(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(no_waiting()).open(path)?;
    let found = file.metadata()?;
    check_kind(found.file_type())?;
    if let Some(mended) = check_owner(&found)? {
        file.set_permissions(mended)?;
    }
    Ok(file)
}

/// Opens a file to be written, for this user alone.
pub(super) fn open_writable(path: &Path, truncate: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(truncate).mode(0o600);
    let file = options.custom_flags(no_waiting() | OFlags::NOFOLLOW.bits().cast_signed());
    let file = file.open(path)?;
    check_kind(file.metadata()?.file_type())?;
    Ok(file)
}

/// Writes a file beside the one of this name and renames it over that, durably.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut file = open_writable(temporary.as_ref(), true)?;
    write(&mut file)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

/// A pipe would wait for its other end.
const fn no_waiting() -> i32 {
    OFlags::NONBLOCK.bits().cast_signed()
}

/// Refuses what belongs to another user. Returns the permissions without those of others to write, if
/// others have them.
fn check_owner(found: &Metadata) -> io::Result<Option<Permissions>> {
    let (owner, user) = (found.uid(), geteuid().as_raw());
    if owner != user {
        let what = format!("it belongs to user {owner}, who could change it; this is user {user}");
        return Err(io::Error::other(format!("{what} (`chown {user}` gives it over)")));
    }
    let mode = found.permissions().mode();
    Ok((mode & OTHERS_MAY_WRITE != 0).then(|| Permissions::from_mode(mode & !OTHERS_MAY_WRITE)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;
    use crate::files::make_fifo;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn others_lose_the_permission_to_write_and_keep_that_to_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counters");
        fs::write(&file, "x").unwrap();
        for (before, after) in [(0o777, 0o755), (0o775, 0o755), (0o750, 0o750), (0o700, 0o700)] {
            set_mode(dir.path(), before);
            set_mode(&file, before);
            make_own_directory(dir.path()).unwrap();
            open_own(&file).unwrap();
            assert_eq!((mode(dir.path()), mode(&file)), (after, after), "{before:o}");
        }
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counters");
        fs::write(&file, "x").unwrap();
        if geteuid().is_root() {
            chown(&file, Some(1), None).unwrap();
            chown(dir.path(), Some(1), None).unwrap();
        } else {
            // The root directory is not this user's.
            let error = make_own_directory(Path::new("/")).unwrap_err().to_string();
            return assert!(error.contains("belongs to user 0"), "{error}");
        }
        for refused in [open_own(&file).map(drop), make_own_directory(dir.path())] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("belongs to user 1,"), "{error}");
            assert!(error.contains("`chown 0` gives it over"), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_at_once_and_no_link_is_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        make_fifo(&at("fifo"));
        open_own(&at("fifo")).unwrap_err();
        open_own(dir.path()).unwrap_err();
        open_writable(&at("fifo"), true).unwrap_err();
        make_own_directory(&at("fifo")).unwrap_err();
        fs::write(at("mine"), "kept").unwrap();
        symlink("mine", at("link")).unwrap();
        open_writable(&at("link"), true).unwrap_err();
        assert_eq!(fs::read(at("mine")).unwrap(), b"kept");
    }
}
