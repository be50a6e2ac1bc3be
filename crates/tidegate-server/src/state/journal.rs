//! Writing one journal: a log that is appended to, and now and then a new base in its place.
//!
//! A base is begun with a new log, so that whatever changes while it is written is in that log, and
//! takes the place of the earlier base when it is whole. Until then the earlier one and all logs since
//! are there; after that, the logs before the new one are of no use, and are removed. A crash at any
//! step leaves something that loads.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use serde::Serialize;
use tidegate::clock::Now;

use super::format::{Preamble, Role, Writer};
use super::names::Names;

/// A new base is due once the logs are this many times as long as the base,
const LOGS_PER_BASE: u64 = 4;
/// and at least this long,
const LOGS_BYTES_MIN: u64 = 8 << 20;
/// or once there are so many of them: each start that follows a crash begins one.
const LOGS_MAX: usize = 8;

/// How much of a base is written before it is synced: no more is left to wait for at its end, while no
/// change is saved.
const BASE_SYNC_BYTES: u64 = 4 << 20;

/// Where a journal goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Position {
    pub(super) has_base: bool,
    pub(super) base_bytes: u64,
    /// How long the logs since the base are, and how many.
    pub(super) logged: (u64, usize),
    /// The number of the next log.
    pub(super) next: u64,
    /// How many bytes of the log before that count.
    pub(super) previous_bytes: u64,
}

/// Writes what changes, and everything now and then.
pub(crate) struct Journal<T> {
    names: Names,
    fingerprint: u64,
    run: u64,
    position: Position,
    log: Option<Writer<File>>,
    /// Something is missing that only a base can make good,
    broken: bool,
    /// which is being written.
    mending: bool,
    written_bytes: u64,
    of: PhantomData<T>,
}

/// A base that is being written.
pub(super) struct Base {
    to: Writer<File>,
    unfinished: PathBuf,
    number: u64,
    records: u64,
}

impl Base {
    /// Adds a record; says whether it has waited for the disk.
    pub(super) fn record(&mut self, at: Now, record: &impl Serialize) -> io::Result<bool> {
        self.records += 1;
        self.to.record(at, record)?;
        let is_due = self.to.bytes() - self.to.synced() >= BASE_SYNC_BYTES;
        if is_due {
            self.to.sync(File::sync_data)?;
        }
        Ok(is_due)
    }
}

impl<T: Serialize> Journal<T> {
    pub(super) fn new(names: Names, fingerprint: u64, position: Position) -> Self {
        let run = fastrand::u64(..);
        Self {
            names,
            fingerprint,
            run,
            position,
            log: None,
            broken: false,
            mending: false,
            written_bytes: 0,
            of: PhantomData,
        }
    }

    pub(super) const fn names(&self) -> &Names {
        &self.names
    }

    /// How many bytes were written since this was last asked.
    pub(super) fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.written_bytes)
    }

    /// Whether everything that was given is in it.
    pub(super) const fn is_whole(&self) -> bool {
        !self.broken
    }

    /// Whether it is of use to append to it.
    pub(super) const fn accepts(&self) -> bool {
        !self.broken || self.mending
    }

    /// Whether a new base should be written.
    pub(super) fn wants_base(&self) -> bool {
        let (bytes, logs) = self.position.logged;
        let outgrown = bytes > LOGS_BYTES_MIN.max(self.position.base_bytes * LOGS_PER_BASE);
        self.broken || outgrown || logs > LOGS_MAX
    }

    /// Appends what has changed, and sees that it is on the disk; returns how much that was. Where
    /// nothing has, nothing is written. After an error a base must be written.
    pub(super) fn append(&mut self, now: Now, changes: impl Iterator<Item = T>) -> io::Result<u64> {
        let appended = self.try_append(now, changes);
        if appended.is_err() {
            if let Some(log) = &self.log {
                // A full disk needs the room; a log that is left longer does no harm.
                _ = log.to().set_len(log.synced());
            }
            self.end_log();
            self.lack();
        }
        appended
    }

    /// Something has changed that was not given: a base must be written, and one that is under way
    /// does not make it good.
    pub(super) const fn lack(&mut self) {
        (self.broken, self.mending) = (true, false);
    }

    /// Begins a base, and a new log with it: whatever changes from now on belongs there.
    pub(super) fn begin_base(&mut self, now: Now) -> io::Result<Base> {
        self.end_log();
        let base = self.open_base(now, self.names.unfinished(""))?;
        self.mending = true;
        Ok(base)
    }

    /// Puts a base in the place of the one before it; returns how many records it has.
    pub(super) fn finish_base(&mut self, now: Now, mut base: Base) -> io::Result<u64> {
        self.place_base(now, &mut base)?;
        let log = self.log.as_ref().map(Writer::bytes);
        self.position.logged = (log.unwrap_or_default(), usize::from(log.is_some()));
        // Unless something went missing meanwhile.
        self.broken &= !self.mending;
        self.mending = false;
        self.remove_logs_before(base.number);
        Ok(base.records)
    }

    /// A base that cannot be finished leaves nothing behind.
    pub(super) fn abandon_base(&mut self) {
        self.mending = false;
        _ = fs::remove_file(self.names.unfinished(""));
    }

    fn open_base(&self, now: Now, unfinished: PathBuf) -> io::Result<Base> {
        let preamble = self.preamble(Role::Base, now);
        let to = Writer::begin(create(&unfinished)?, &preamble)?;
        Ok(Base { to, unfinished, number: preamble.number, records: 0 })
    }

    /// Makes a base the one that there is.
    fn place_base(&mut self, now: Now, base: &mut Base) -> io::Result<()> {
        base.to.end(now)?;
        base.to.sync(File::sync_all)?;
        fs::rename(&base.unfinished, self.names.base())?;
        // Even where the directory cannot be synced: an empty base must not take its place.
        self.position.has_base = true;
        self.sync_directory()?;
        self.written_bytes += base.to.bytes();
        self.position.base_bytes = base.to.bytes();
        Ok(())
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

    /// Makes the next log, whole and on the disk before anything is in it.
    fn begin_log(&mut self, now: Now) -> io::Result<()> {
        if !self.position.has_base {
            // An empty one beside the one that may be under way, which it does not stand for.
            let mut base = self.open_base(now, self.names.unfinished(".first"))?;
            self.place_base(now, &mut base)?;
        }
        let (unfinished, preamble) = (self.names.unfinished(".log"), self.preamble(Role::Log, now));
        let mut log = Writer::begin(create(&unfinished)?, &preamble)?;
        log.sync(File::sync_all)?;
        fs::rename(&unfinished, self.names.log(preamble.number))?;
        self.sync_directory()?;
        self.written_bytes += log.bytes();
        self.position.logged.0 += log.bytes();
        self.position.logged.1 += 1;
        self.log = Some(log);
        Ok(())
    }

    /// What was not synced by now does not count: the next log says so.
    fn end_log(&mut self) {
        if let Some(log) = self.log.take() {
            self.position.next += 1;
            self.position.previous_bytes = log.synced();
        }
    }

    fn preamble(&self, role: Role, at: Now) -> Preamble {
        Preamble {
            role,
            of: self.names.of.to_owned(),
            number: self.position.next,
            previous_bytes: self.position.previous_bytes,
            run: self.run,
            at,
            fingerprint: self.fingerprint,
        }
    }

    /// Those that cannot be removed do no harm, and are tried again with the next base.
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

/// A new file, for this user alone.
fn create(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}
