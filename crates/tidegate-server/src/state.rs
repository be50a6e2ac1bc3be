//! The state directory: what outlives the process.
//!
//! A snapshot is written beside the old one and takes its place in one step, so that there is always
//! a whole one. One that is torn, foreign or from a newer release is refused before any of it is
//! used: counters that are half right would be worse than none.

mod format;

use std::fmt::Display;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tidegate::HashKey;
use tidegate::clock::Now;
use tidegate::marks::{Mark, Marks};
use tidegate::store::{Imported, Memory, SavedKey};

use format::{BadSnapshot, Content, Header, Preamble, Reader, Writer};

const SNAPSHOT: &str = "counters";
const MARKS: &str = "marks";
const LOCK: &str = "lock";

/// A directory that this process alone uses.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    /// The lock is held for as long as the file is open.
    _lock: File,
}

/// Why a state directory cannot be used: which file, what was found, and what to do.
#[derive(Debug)]
pub(crate) struct StateError(String);

impl std::fmt::Display for StateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StateError {}

impl StateDir {
    /// Opens a state directory, and makes it if it is not there, for this user alone.
    ///
    /// # Errors
    /// It cannot be made or written to, or another process uses it.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let at = path.display();
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
            StateError(format!("cannot make the state directory {at}: {error}"))
        })?;
        let lock = writable().truncate(false).open(path.join(LOCK)).map_err(|error| {
            StateError(format!("cannot write to the state directory {at}: {error}"))
        })?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StateError(format!(
                "the state directory {at} is in use by another process; give each its own"
            ))),
            Err(TryLockError::Error(error)) => {
                Err(StateError(format!("cannot lock the state directory {at}: {error}")))
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Saves every key of a store that means something; returns how many. `now` must be read from
    /// the clock that the store ran on.
    ///
    /// # Errors
    /// It cannot be written. The snapshot from before is untouched.
    pub(crate) fn save(
        &self,
        store: &Memory,
        secret: &HashKey,
        now: Now,
    ) -> Result<u64, StateError> {
        let mut keys = 0;
        let write = |file: &mut File| {
            let mut writer = Writer::begin(BufWriter::new(file))?;
            writer.preamble(&Preamble { saved_at: now, fingerprint: secret.fingerprint() })?;
            for saved in store.export(now) {
                writer.key(&saved)?;
                keys += 1;
            }
            writer.finish()
        };
        self.replace(SNAPSHOT, write).map_err(|error| {
            let path = self.path.join(SNAPSHOT);
            StateError(format!("cannot save the counters to {}: {error}", path.display()))
        })?;
        Ok(keys)
    }

    /// Puts the saved keys back into a store whose limits have been announced; `None` where nothing
    /// was ever saved. `now` must be read from the clock that the store will run on.
    ///
    /// # Errors
    /// The snapshot cannot be read or used. The store is as it was, unless the disk itself failed
    /// after the whole snapshot had been read once without fault.
    pub(crate) fn load(
        &self,
        store: &Memory,
        secret: &HashKey,
        now: Now,
    ) -> Result<Option<Imported>, StateError> {
        let Some((path, file)) = self.saved(SNAPSHOT)? else { return Ok(None) };
        load_from(&file, store, secret, now)
            .map(Some)
            .map_err(|why| refused(&path, &why, why.advice()))
    }

    /// Saves all bans, flags and factors; returns how many.
    ///
    /// # Errors
    /// They cannot be written. Those from before are untouched.
    pub(crate) fn save_marks(
        &self,
        marks: &Marks,
        secret: &HashKey,
        now: Now,
    ) -> Result<u64, StateError> {
        let mut count = 0;
        let write = |file: &mut File| {
            let mut writer = Writer::begin(BufWriter::new(file))?;
            writer.preamble(&Preamble { saved_at: now, fingerprint: secret.fingerprint() })?;
            for mark in marks.export(now) {
                writer.mark(&mark)?;
                count += 1;
            }
            writer.finish()
        };
        self.replace(MARKS, write).map_err(|error| {
            let path = self.path.join(MARKS);
            StateError(format!("cannot save bans and flags to {}: {error}", path.display()))
        })?;
        Ok(count)
    }

    /// Takes saved marks back; returns how many still hold.
    ///
    /// # Errors
    /// They cannot be read or used. None of them is taken then.
    pub(crate) fn load_marks(&self, marks: &Marks, now: Now) -> Result<usize, StateError> {
        let Some((path, file)) = self.saved(MARKS)? else { return Ok(0) };
        let read = || -> Result<Vec<Mark>, BadSnapshot> {
            let header = verified(&file)?;
            body::<Mark>(&file, &header)?.1.collect()
        };
        let saved = read().map_err(|why| refused(&path, &why, why.advice()))?;
        Ok(marks.import(saved, now))
    }

    /// A file of this directory; `None` where it was never written.
    fn saved(&self, name: &str) -> Result<Option<(PathBuf, File)>, StateError> {
        let path = self.path.join(name);
        match File::open(&path) {
            Ok(file) => Ok(Some((path, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refused(&path, &error, "make it readable")),
        }
    }

    /// Writes a file beside the one of this name and puts it in its place, durably.
    pub(crate) fn replace(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let (path, temporary) = (self.path.join(name), self.path.join(format!("{name}.tmp")));
        let mut file = writable().truncate(true).open(&temporary)?;
        write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        File::open(&self.path)?.sync_all()
    }
}

fn writable() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

fn refused(path: &Path, why: &impl Display, advice: &str) -> StateError {
    StateError(format!("cannot use what was saved in {}: {why}; {advice}", path.display()))
}

fn load_from(
    file: &File,
    store: &Memory,
    secret: &HashKey,
    now: Now,
) -> Result<Imported, BadSnapshot> {
    let header = verified(file)?;
    // Once for nothing, so that whatever is wrong is found before the first key is used.
    let (preamble, keys) = body::<SavedKey>(file, &header)?;
    if preamble.fingerprint != secret.fingerprint() {
        return Err(BadSnapshot::OtherSecret);
    }
    keys.into_iter().try_for_each(|key| key.map(drop))?;
    let (preamble, keys) = body::<SavedKey>(file, &header)?;
    let mut failed = None;
    let keys = keys.map_while(|key| key.map_err(|error| failed = Some(error)).ok());
    let imported = store.import(preamble.saved_at, keys, now);
    failed.map_or(Ok(imported), Err)
}

/// The header of a file whose body is as it says.
fn verified(mut file: &File) -> Result<Header, BadSnapshot> {
    let header = Header::read(&mut file)?;
    header.check(BufReader::new(file), file.metadata()?.len())?;
    Ok(header)
}

/// What stands behind the preamble of a file.
type Frames<'f, T> = Reader<BufReader<io::Take<&'f File>>, T>;

fn body<'f, T: Content>(
    mut file: &'f File,
    header: &Header,
) -> Result<(Preamble, Frames<'f, T>), BadSnapshot> {
    file.seek(SeekFrom::Start(Header::BYTES))?;
    Reader::begin(BufReader::new(file.take(header.body_bytes)))
}

#[cfg(test)]
mod tests;
