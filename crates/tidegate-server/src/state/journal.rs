//! The writing side of one journal: a log of changes, and a new snapshot now and then.
//!
//! A new snapshot begins with a new log, so that changes during its writing are in that log. The whole
//! snapshot is renamed over the earlier one, and then the logs before the new one are removed. A crash
//! at any step leaves files that recovery can read. A small file notes the newest log before a change is
//! written there, so that recovery misses a log that somebody has deleted.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::path::PathBuf;

use serde::Serialize;
use tidegate::clock::Now;

use super::file_names::FileNames;
use super::ownership::{open_writable, replace};
use super::record_format::{FileHeader, FileRole, RecordWriter};

/// A new snapshot is due once the logs are this many times as long as the snapshot,
const LOGS_PER_SNAPSHOT: u64 = 4;
/// and at least this long,
const LOGS_BYTES_MIN: u64 = 8 << 20;
/// or once there are more logs than this: each start after a crash begins one.
const LOGS_MAX: usize = 8;

/// A snapshot is synced after this many bytes, so that the sync at its end is short: no change is saved
/// during that.
const SNAPSHOT_SYNC_BYTES: u64 = 4 << 20;

/// Where a journal continues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Position {
    pub(super) has_snapshot: bool,
    /// The newest log is noted, or that there is none.
    pub(super) has_newest: bool,
    pub(super) snapshot_bytes: u64,
    /// The bytes of the logs since the snapshot, and their number.
    pub(super) logged: (u64, usize),
    /// The number of the next log.
    pub(super) next: u64,
    /// How many bytes of the log before that count.
    pub(super) previous_bytes: u64,
}

/// Writes changes to a log, and snapshots.
pub(crate) struct Journal<T> {
    names: FileNames,
    fingerprint: u64,
    run: u64,
    position: Position,
    log: Option<RecordWriter<File>>,
    /// A change is missing. Only a new snapshot repairs that.
    broken: bool,
    /// A snapshot that repairs it is being written.
    repairing: bool,
    written_bytes: u64,
    of: PhantomData<T>,
}

/// An unfinished snapshot.
pub(super) struct Snapshot {
    to: RecordWriter<File>,
    unfinished: PathBuf,
    number: u64,
    records: u64,
}

impl Snapshot {
    /// Adds a record; true if that waited for the disk.
    pub(super) fn record(&mut self, at: Now, record: &impl Serialize) -> io::Result<bool> {
        self.records += 1;
        self.to.record(at, record)?;
        let is_due = self.to.bytes() - self.to.synced() >= SNAPSHOT_SYNC_BYTES;
        if is_due {
            self.to.sync(File::sync_data)?;
        }
        Ok(is_due)
    }
}

impl<T: Serialize> Journal<T> {
    pub(super) fn new(names: FileNames, fingerprint: u64, position: Position) -> Self {
        let mut journal = Self {
            names,
            fingerprint,
            run: fastrand::u64(..),
            position,
            log: None,
            broken: false,
            repairing: false,
            written_bytes: 0,
            of: PhantomData,
        };
        // A crash may have left one.
        journal.abandon_snapshot();
        journal
    }

    pub(super) const fn names(&self) -> &FileNames {
        &self.names
    }

    /// The bytes that were written since the last call.
    pub(super) fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.written_bytes)
    }

    /// True if no change is missing.
    pub(super) const fn is_whole(&self) -> bool {
        !self.broken
    }

    /// True if it is of use to append changes.
    pub(super) const fn accepts(&self) -> bool {
        !self.broken || self.repairing
    }

    /// True if a new snapshot is due.
    pub(super) fn wants_snapshot(&self) -> bool {
        let (bytes, logs) = self.position.logged;
        let outgrown = bytes > LOGS_BYTES_MIN.max(self.position.snapshot_bytes * LOGS_PER_SNAPSHOT);
        self.broken || outgrown || logs > LOGS_MAX
    }

    /// Appends changes and syncs them to the disk; returns their number. Without changes nothing is
    /// written. After an error a snapshot is due.
    pub(super) fn append(&mut self, now: Now, changes: impl Iterator<Item = T>) -> io::Result<u64> {
        let appended = self.try_append(now, changes);
        if appended.is_err() {
            if let Some(log) = &self.log {
                // A full disk needs the space. A log that stays longer does no harm.
                _ = log.to().set_len(log.synced());
            }
            self.end_log();
            self.mark_broken();
        }
        appended
    }

    /// A change is missing: a new snapshot is due, and one that is being written does not repair it.
    pub(super) const fn mark_broken(&mut self) {
        (self.broken, self.repairing) = (true, false);
    }

    /// Begins a snapshot, and a new log for the changes from now on.
    pub(super) fn begin_snapshot(&mut self, now: Now) -> io::Result<Snapshot> {
        self.end_log();
        let snapshot = self.open_snapshot(now, self.names.unfinished(""))?;
        self.repairing = true;
        Ok(snapshot)
    }

    /// Replaces the earlier snapshot; returns the number of records.
    pub(super) fn finish_snapshot(&mut self, now: Now, mut snapshot: Snapshot) -> io::Result<u64> {
        self.place_snapshot(now, &mut snapshot)?;
        let log = self.log.as_ref().map(RecordWriter::bytes);
        self.position.logged = (log.unwrap_or_default(), usize::from(log.is_some()));
        // Unless a change went missing meanwhile.
        self.broken &= !self.repairing;
        self.repairing = false;
        self.remove_logs_before(snapshot.number);
        Ok(snapshot.records)
    }

    /// Removes an unfinished snapshot.
    pub(super) fn abandon_snapshot(&mut self) {
        self.repairing = false;
        _ = fs::remove_file(self.names.unfinished(""));
    }

    fn open_snapshot(&self, now: Now, unfinished: PathBuf) -> io::Result<Snapshot> {
        let header = self.header(FileRole::Snapshot, now);
        let to = RecordWriter::begin(open_writable(&unfinished, true)?, &header)?;
        Ok(Snapshot { to, unfinished, number: header.number, records: 0 })
    }

    /// Renames a finished snapshot into place.
    fn place_snapshot(&mut self, now: Now, snapshot: &mut Snapshot) -> io::Result<()> {
        snapshot.to.end(now)?;
        snapshot.to.sync(File::sync_all)?;
        fs::rename(&snapshot.unfinished, self.names.snapshot())?;
        // Even if the directory cannot be synced: an empty snapshot must not replace this one.
        self.position.has_snapshot = true;
        self.sync_directory()?;
        self.written_bytes += snapshot.to.bytes();
        self.position.snapshot_bytes = snapshot.to.bytes();
        if self.position.has_newest { Ok(()) } else { self.note_newest(now, snapshot.number) }
    }

    fn try_append(&mut self, now: Now, changes: impl Iterator<Item = T>) -> io::Result<u64> {
        let mut records = 0;
        for change in changes {
            if self.log.is_none() {
                self.begin_log(now)?;
            }
            if let Some(log) = &mut self.log {
                log.record(now, &change)?;
                records += 1;
            }
        }
        if let (Some(log), true) = (&mut self.log, records > 0) {
            let before = log.synced();
            log.sync(File::sync_data)?;
            self.written_bytes += log.bytes() - before;
            self.position.logged.0 += log.bytes() - before;
        }
        Ok(records)
    }

    /// Makes the next log. Its header is on the disk before the first change.
    fn begin_log(&mut self, now: Now) -> io::Result<()> {
        if !self.position.has_snapshot {
            // An empty one, under another name than the one that may be in the making.
            let mut snapshot = self.open_snapshot(now, self.names.unfinished(".first"))?;
            self.place_snapshot(now, &mut snapshot)?;
        }
        let (unfinished, header) = (self.names.unfinished(".log"), self.header(FileRole::Log, now));
        let mut log = RecordWriter::begin(open_writable(&unfinished, true)?, &header)?;
        log.sync(File::sync_all)?;
        fs::rename(&unfinished, self.names.log(header.number))?;
        self.sync_directory()?;
        self.note_newest(now, header.number + 1)?;
        self.written_bytes += log.bytes();
        self.position.logged.0 += log.bytes();
        self.position.logged.1 += 1;
        self.log = Some(log);
        Ok(())
    }

    /// Notes that the logs before this number are on the disk.
    fn note_newest(&mut self, now: Now, number: u64) -> io::Result<()> {
        let header = FileHeader { number, ..self.header(FileRole::Newest, now) };
        let mut newest = Vec::new();
        RecordWriter::begin(&mut newest, &header)?;
        replace(&self.names.newest(), |file| file.write_all(&newest))?;
        self.written_bytes += newest.len() as u64;
        self.position.has_newest = true;
        Ok(())
    }

    /// Ends the log. The next one says that only its synced bytes count.
    fn end_log(&mut self) {
        if let Some(log) = self.log.take() {
            self.position.next += 1;
            self.position.previous_bytes = log.synced();
        }
    }

    fn header(&self, role: FileRole, at: Now) -> FileHeader {
        FileHeader {
            role,
            of: self.names.of.to_owned(),
            number: self.position.next,
            previous_bytes: self.position.previous_bytes,
            run: self.run,
            at,
            fingerprint: self.fingerprint,
        }
    }

    /// Logs that cannot be removed do no harm; the next snapshot tries again.
    fn remove_logs_before(&self, number: u64) {
        let logs = self.names.log_numbers().unwrap_or_default();
        for log in logs.into_iter().take_while(|log| *log < number) {
            _ = fs::remove_file(self.names.log(log));
        }
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(self.names.directory())?.sync_all()
    }
}
