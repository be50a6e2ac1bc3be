//! Recovery at the start: the snapshot of a journal, and the logs that were written after it.
//!
//! All files are read and checked before the first record is used. An unfinished end of the newest log
//! is cut off: a crash left it, and nothing there was reported as saved. Any other damage is refused.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use memchr::memmem::Finder;
use serde::de::DeserializeOwned;
use tidegate::clock::Now;

use super::file_names::FileNames;
use super::journal::Position;
use super::ownership::open_own;
use super::record_format::{BLOCK, FileFault, FileHeader, FileRole, RecordReader};
use crate::error::StartError;

/// How much of a broken log is searched at once.
const SEARCHED_BYTES: usize = 1 << 20;

/// The checked files of one journal, in the order in which they were written.
pub(super) struct Recovery<T> {
    files: Vec<RecoveredFile>,
    /// The cut end of the newest log, if there is one.
    pub(super) torn: Option<TornTail>,
    /// What the directory says of the newest log; nothing in one of an earlier release.
    newest: Option<u64>,
    records: PhantomData<T>,
}

/// The end of a log, which a crash left unfinished.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TornTail {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

impl<T: DeserializeOwned> Recovery<T> {
    /// Reads and checks all files. With a fingerprint, they must have been saved under its secret.
    pub(super) fn read(names: &FileNames, fingerprint: Option<u64>) -> Result<Self, StartError> {
        let refuse = |path: &Path, fault| names.refuse(path, &fault);
        let open = |path: PathBuf, role| {
            let opened = RecoveredFile::open(names, &path, role, fingerprint);
            opened.map_err(|fault| refuse(&path, fault))
        };
        let mut numbers = names.log_numbers()?;
        let newest = open(names.newest(), FileRole::Newest)?.map(|newest| newest.header.number);
        let Some(mut snapshot) = open(names.snapshot(), FileRole::Snapshot)? else {
            return match (numbers.first(), newest) {
                (None, None) => {
                    Ok(Self { files: Vec::new(), torn: None, newest, records: PhantomData })
                }
                _ => Err(refuse(&names.snapshot(), FileFault::Missing)),
            };
        };
        snapshot.check_snapshot::<T>().map_err(|fault| refuse(&snapshot.path, fault))?;
        let first = snapshot.header.number;
        let mut files = vec![snapshot];
        // Older logs are useless. A crash came before their removal.
        numbers.retain(|number| *number >= first);
        // A crash may have come before the newest log was noted.
        let end = first.saturating_add(numbers.len() as u64).max(newest.unwrap_or(0));
        for number in first..end {
            match open(names.log(number), FileRole::Log)? {
                Some(log) if log.header.number == number => files.push(log),
                Some(log) => return Err(refuse(&log.path, misplaced())),
                None => return Err(refuse(&names.log(number), FileFault::Missing)),
            }
        }
        // Each log says how many bytes of the log before it count.
        let ends = files.iter().skip(2).map(|log| Some(log.header.previous_bytes)).chain([None]);
        let (ends, mut torn) = (ends.collect::<Vec<_>>(), None);
        for (log, end) in files.iter_mut().skip(1).zip(ends) {
            torn = log.check_log::<T>(end).map_err(|fault| refuse(&log.path, fault))?;
        }
        Ok(Self { files, torn, newest, records: PhantomData })
    }

    /// Where the journal continues.
    pub(super) fn position(&self) -> Position {
        let Some((snapshot, logs)) = self.files.split_first() else { return Position::default() };
        let (next, previous_bytes) = match logs.last() {
            None => (snapshot.header.number, 0),
            Some(last) => (last.header.number + 1, last.end),
        };
        let logged = (logs.iter().map(|log| log.end).sum(), logs.len());
        Position {
            has_snapshot: true,
            has_newest: self.newest.is_some(),
            snapshot_bytes: snapshot.end,
            logged,
            next,
            previous_bytes,
        }
    }

    /// Gives all records in the order in which they were written, some at a time. The clocks beside
    /// them make every instant as old as it is `now`.
    pub(super) fn replay(
        self,
        names: &FileNames,
        now: Now,
        mut replay: impl FnMut(Now, Vec<T>),
    ) -> Result<(), StartError> {
        for (file, saved_at) in self.files.iter().zip(saved_clocks(&self.files, now)) {
            let replayed = file.replay(|records| replay(saved_at, records));
            replayed.map_err(|fault| names.refuse(&file.path, &fault))?;
        }
        Ok(())
    }
}

struct RecoveredFile {
    path: PathBuf,
    file: File,
    header: FileHeader,
    /// How many of its bytes count; known once the file is checked.
    end: u64,
    /// The clocks of its last block.
    last: Now,
}

impl RecoveredFile {
    /// Opens a file and reads its header; `None` if it is missing.
    fn open(
        names: &FileNames,
        path: &Path,
        role: FileRole,
        fingerprint: Option<u64>,
    ) -> Result<Option<Self>, FileFault> {
        let file = match open_own(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let (header, _) = read_from_start(&file)?;
        if header.role != role || header.of != names.of {
            return Err(misplaced());
        }
        if fingerprint.is_some_and(|fingerprint| fingerprint != header.fingerprint) {
            return Err(FileFault::OtherSecret);
        }
        let (path, last) = (path.to_owned(), header.at);
        Ok(Some(Self { path, file, header, end: 0, last }))
    }

    /// Checks a snapshot, which ends with an empty block.
    fn check_snapshot<T: DeserializeOwned>(&mut self) -> Result<(), FileFault> {
        let (_, mut reader) = read_from_start(&self.file)?;
        loop {
            let torn = FileFault::Torn { bytes: reader.position() };
            reader.next_block()?.ok_or(torn)?;
            let (at, records) = reader.records::<T>()?;
            if records.is_empty() {
                (self.end, self.last) = (reader.position(), at);
                break;
            }
        }
        if self.file.metadata()?.len() == self.end {
            return Ok(());
        }
        Err(FileFault::Malformed(format!("it goes on after its end at byte {}", self.end)))
    }

    /// Checks a log up to the end that the next log names; the newest log as far as it goes.
    fn check_log<T: DeserializeOwned>(
        &mut self,
        end: Option<u64>,
    ) -> Result<Option<TornTail>, FileFault> {
        let (_, mut reader) = read_from_start(&self.file)?;
        let mut torn = None;
        while end.is_none_or(|end| reader.position() < end) {
            match reader.next_block() {
                Ok(Some(_)) => self.last = reader.records::<T>()?.0,
                Ok(None) if end.is_none() => break,
                Ok(None) => return Err(FileFault::Torn { bytes: reader.position() }),
                Err(FileFault::Torn { .. } | FileFault::Damaged { .. })
                    if end.is_none() && !was_synced(&self.file, reader.position())? =>
                {
                    let bytes = self.file.metadata()?.len().saturating_sub(reader.position());
                    torn = Some(TornTail { path: self.path.clone(), bytes });
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
        self.end = reader.position();
        Ok(torn)
    }

    fn replay<T: DeserializeOwned>(&self, mut replay: impl FnMut(Vec<T>)) -> Result<(), FileFault> {
        let (_, mut reader) = read_from_start(&self.file)?;
        while reader.position() < self.end && reader.next_block()?.is_some() {
            replay(reader.records()?.1);
        }
        Ok(())
    }
}

/// True if a later block says that this place was on the disk before that block was written.
fn was_synced(mut file: &File, place: u64) -> Result<bool, FileFault> {
    let finder = Finder::new(&BLOCK);
    let (mut from, mut window) = (place + 1, Vec::new());
    loop {
        file.seek(SeekFrom::Start(from))?;
        window.clear();
        file.take(SEARCHED_BYTES as u64).read_to_end(&mut window)?;
        for found in finder.find_iter(&window) {
            let at = from + found as u64;
            file.seek(SeekFrom::Start(at))?;
            let mut reader = RecordReader::at(BufReader::new(file), at);
            if reader.next_block().is_ok_and(|synced| synced.is_some_and(|synced| synced > place)) {
                return Ok(true);
            }
        }
        if window.len() < SEARCHED_BYTES {
            return Ok(false);
        }
        // A block may begin with the last bytes of this window.
        from += (window.len() - (BLOCK.len() - 1)) as u64;
    }
}

type FileReader<'f> = RecordReader<BufReader<&'f File>>;

fn read_from_start(mut file: &File) -> Result<(FileHeader, FileReader<'_>), FileFault> {
    file.seek(SeekFrom::Start(0))?;
    RecordReader::begin(BufReader::new(file))
}

fn misplaced() -> FileFault {
    FileFault::Malformed("it is a file of Tidegate's that belongs elsewhere".to_owned())
}

/// The clocks to restore the records of each file by. Within one process the steady clock measures the
/// time that has passed, and between two processes the wall clock.
fn saved_clocks(files: &[RecoveredFile], now: Now) -> Vec<Now> {
    let mut runs: Vec<(u64, Now, Now)> = Vec::new();
    for file in files {
        let FileHeader { run, at, .. } = file.header;
        let last = if file.last.steady_us >= at.steady_us { file.last } else { at };
        match runs.last_mut() {
            Some((same, _, until)) if *same == run => {
                if last.steady_us >= until.steady_us {
                    *until = last;
                }
            }
            _ => runs.push((run, at, last)),
        }
    }
    let (mut passed_us, mut next_unix_us) = (0_u64, now.unix_us);
    let mut clocks: Vec<(u64, Now)> = Vec::new();
    for (run, first, last) in runs.into_iter().rev() {
        passed_us = passed_us.saturating_add(next_unix_us.saturating_sub(last.unix_us));
        let unix_us = now.unix_us.saturating_sub(passed_us);
        clocks.push((run, Now { steady_us: last.steady_us, unix_us }));
        passed_us = passed_us.saturating_add(last.steady_us.saturating_sub(first.steady_us));
        next_unix_us = first.unix_us;
    }
    let clock_of = |file: &RecoveredFile| {
        let clock = clocks.iter().find(|(run, _)| *run == file.header.run);
        clock.map_or(now, |(_, saved_at)| *saved_at)
    };
    files.iter().map(clock_of).collect()
}
