//! What is in a state directory: a base, and the logs that were written after it.
//!
//! All of it is read once and checked before the first record is used. What a crash left unfinished
//! at the end of the newest log is cut off: nobody was told that it is saved. Anything else that is
//! not as it was written is refused.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::marker::PhantomData;
use std::path::PathBuf;

use memchr::memmem::Finder;
use serde::de::DeserializeOwned;
use tidegate::clock::Now;

use super::StateError;
use super::format::{BLOCK, BadFile, Preamble, Reader, Role};
use super::names::Names;

/// How much of a broken log is searched at once.
const SEARCHED_BYTES: usize = 1 << 20;

/// The files of one journal, in the order in which they were written, each of them checked.
pub(super) struct Found<T> {
    files: Vec<Checked>,
    /// What was cut off the newest log, if anything was.
    pub(super) cut: Option<Cut>,
    of: PhantomData<T>,
}

/// The end of a log, which a crash left unfinished.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

struct Checked {
    path: PathBuf,
    file: File,
    preamble: Preamble,
    /// How many of its bytes count.
    end: u64,
    /// The clocks when the last of it was written.
    last: Now,
}

impl<T: DeserializeOwned> Found<T> {
    /// Reads and checks everything. Where a fingerprint is given, all must have been saved under it.
    pub(super) fn look(names: &Names, fingerprint: Option<u64>) -> Result<Self, StateError> {
        let (mut found, mut numbers) = (Self::nothing(), names.logs()?);
        let Some(base) = open(names, names.base(), Role::Base, fingerprint)? else {
            return match numbers.first() {
                None => Ok(found),
                Some(_) => Err(names.refused(&names.base(), &BadFile::Missing)),
            };
        };
        let first = base.preamble.number;
        found.files.push(check_base::<T>(names, base)?);
        // Those before it are only there because nobody came to remove them.
        numbers.retain(|number| *number >= first);
        let mut logs = Vec::new();
        for number in (first..).take(numbers.len()) {
            let path = names.log(number);
            match open(names, path.clone(), Role::Log, fingerprint)? {
                Some(log) if log.preamble.number == number => logs.push(log),
                Some(_) => return Err(names.refused(&path, &other_place())),
                None => return Err(names.refused(&path, &BadFile::Missing)),
            }
        }
        let bounds: Vec<Option<u64>> = (1..=logs.len())
            .map(|next| logs.get(next).map(|log| log.preamble.previous_bytes))
            .collect();
        for (log, bound) in logs.into_iter().zip(bounds) {
            let path = log.path.clone();
            let (checked, cut) =
                check_log::<T>(log, bound).map_err(|why| names.refused(&path, &why))?;
            found.cut = cut;
            found.files.push(checked);
        }
        Ok(found)
    }

    const fn nothing() -> Self {
        Self { files: Vec::new(), cut: None, of: PhantomData }
    }

    /// Whether anything was ever saved.
    pub(super) const fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The number of the next log, and how many bytes of the one before it count.
    pub(super) fn next(&self) -> (u64, u64) {
        match self.files.last() {
            None => (0, 0),
            Some(last) if last.preamble.role == Role::Base => (last.preamble.number, 0),
            Some(last) => (last.preamble.number + 1, last.end),
        }
    }

    /// How long the base is.
    pub(super) fn base_bytes(&self) -> u64 {
        self.files.first().map_or(0, |base| base.end)
    }

    /// How long the logs are together, and how many.
    pub(super) fn logged(&self) -> (u64, usize) {
        let logs = self.files.get(1..).unwrap_or_default();
        (logs.iter().map(|log| log.end).sum(), logs.len())
    }

    /// Gives all records in the order in which they were written, some at a time, each with the clocks
    /// under which its instants are as old as they are `now`.
    pub(super) fn replay(
        self,
        names: &Names,
        now: Now,
        mut replay: impl FnMut(Now, Vec<T>),
    ) -> Result<(), StateError> {
        let saved_at = saved_at(&self.files, now);
        for (checked, saved_at) in self.files.into_iter().zip(saved_at) {
            let Checked { path, file, end, .. } = checked;
            let mut give = || -> Result<(), BadFile> {
                let (_, mut reader) = Reader::begin(from_start(&file)?)?;
                while reader.position() < end && reader.next_block()?.is_some() {
                    replay(saved_at, reader.records()?.1);
                }
                Ok(())
            };
            give().map_err(|why| names.refused(&path, &why))?;
        }
        Ok(())
    }
}

struct Opened {
    path: PathBuf,
    file: File,
    preamble: Preamble,
}

/// Opens a file; `None` where it is not there.
fn open(
    names: &Names,
    path: PathBuf,
    role: Role,
    fingerprint: Option<u64>,
) -> Result<Option<Opened>, StateError> {
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(names.refused(&path, &BadFile::Io(error))),
    };
    let read = || -> Result<Preamble, BadFile> {
        let (preamble, _) = Reader::begin(from_start(&file)?)?;
        if preamble.role != role || preamble.of != names.of {
            return Err(other_place());
        }
        if fingerprint.is_some_and(|fingerprint| fingerprint != preamble.fingerprint) {
            return Err(BadFile::OtherSecret);
        }
        Ok(preamble)
    };
    let preamble = read().map_err(|why| names.refused(&path, &why))?;
    Ok(Some(Opened { path, file, preamble }))
}

fn check_base<T: DeserializeOwned>(names: &Names, base: Opened) -> Result<Checked, StateError> {
    let Opened { path, file, preamble } = base;
    let check = || -> Result<(u64, Now), BadFile> {
        let (_, mut reader) = Reader::begin(from_start(&file)?)?;
        loop {
            let torn = BadFile::Torn { bytes: reader.position() };
            reader.next_block()?.ok_or(torn)?;
            let (at, records) = reader.records::<T>()?;
            if records.is_empty() {
                let end = reader.position();
                return match file.metadata()?.len() {
                    bytes if bytes == end => Ok((end, at)),
                    _ => Err(BadFile::Malformed(format!("it goes on after its end at byte {end}"))),
                };
            }
        }
    };
    let (end, last) = check().map_err(|why| names.refused(&path, &why))?;
    Ok(Checked { path, file, preamble, end, last })
}

/// Checks a log up to where the one after it says that it counts; the newest as far as it goes.
fn check_log<T: DeserializeOwned>(
    log: Opened,
    bound: Option<u64>,
) -> Result<(Checked, Option<Cut>), BadFile> {
    let Opened { path, file, preamble } = log;
    let (_, mut reader) = Reader::begin(from_start(&file)?)?;
    let (mut last, mut cut) = (preamble.at, None);
    while bound.is_none_or(|bound| reader.position() < bound) {
        match reader.next_block() {
            Ok(Some(_)) => last = reader.records::<T>()?.0,
            Ok(None) if bound.is_none() => break,
            Ok(None) => return Err(BadFile::Torn { bytes: reader.position() }),
            Err(BadFile::Torn { .. } | BadFile::Damaged { .. })
                if bound.is_none() && !was_synced(&file, reader.position())? =>
            {
                let bytes = file.metadata()?.len().saturating_sub(reader.position());
                cut = Some(Cut { path: path.clone(), bytes });
                break;
            }
            Err(why) => return Err(why),
        }
    }
    let end = reader.position();
    Ok((Checked { path, file, preamble, end, last }, cut))
}

/// Whether some block behind this place says that the place was on the disk before it was written.
fn was_synced(mut file: &File, place: u64) -> Result<bool, BadFile> {
    let finder = Finder::new(&BLOCK);
    let (mut from, mut window) = (place + 1, Vec::new());
    loop {
        file.seek(SeekFrom::Start(from))?;
        window.clear();
        file.take(SEARCHED_BYTES as u64).read_to_end(&mut window)?;
        for found in finder.find_iter(&window) {
            let at = from + found as u64;
            file.seek(SeekFrom::Start(at))?;
            let mut reader = Reader::at(BufReader::new(file), at);
            if reader.next_block().is_ok_and(|synced| synced.is_some_and(|synced| synced > place)) {
                return Ok(true);
            }
        }
        if window.len() < SEARCHED_BYTES {
            return Ok(false);
        }
        // The last bytes may be the beginning of what is searched for.
        from += (window.len() - (BLOCK.len() - 1)) as u64;
    }
}

fn from_start(mut file: &File) -> io::Result<BufReader<&File>> {
    file.seek(SeekFrom::Start(0))?;
    Ok(BufReader::new(file))
}

fn other_place() -> BadFile {
    BadFile::Malformed("it is a file of Tidegate's that belongs elsewhere".to_owned())
}

/// For each file the clocks that its records are to be restored by. Within one process the steady
/// clock tells how much time has passed, and between two of them the wall clock.
fn saved_at(files: &[Checked], now: Now) -> Vec<Now> {
    let mut runs: Vec<(u64, Now, Now)> = Vec::new();
    for file in files {
        let Preamble { run, at, .. } = file.preamble;
        let last = if file.last.steady_us >= at.steady_us { file.last } else { at };
        match runs.last_mut() {
            Some((known, _, until)) if *known == run => {
                if last.steady_us >= until.steady_us {
                    *until = last;
                }
            }
            _ => runs.push((run, at, last)),
        }
    }
    let (mut passed_us, mut next_unix_us) = (0_u64, now.unix_us);
    let mut saved: Vec<(u64, Now)> = Vec::new();
    for (run, first, last) in runs.into_iter().rev() {
        passed_us = passed_us.saturating_add(next_unix_us.saturating_sub(last.unix_us));
        let unix_us = now.unix_us.saturating_sub(passed_us);
        saved.push((run, Now { steady_us: last.steady_us, unix_us }));
        passed_us = passed_us.saturating_add(last.steady_us.saturating_sub(first.steady_us));
        next_unix_us = first.unix_us;
    }
    let of = |file: &Checked| {
        let known = saved.iter().find(|(run, _)| *run == file.preamble.run);
        known.map_or(now, |(_, saved_at)| *saved_at)
    };
    files.iter().map(of).collect()
}
