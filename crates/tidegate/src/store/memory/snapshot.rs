//! Saving the keys of a memory store, and putting them back after a restart.
//!
//! Steady time has another origin in every process. Saved instants stay as they were, together with
//! one reading of both clocks; when they come back, they are moved so that exactly the downtime, as
//! the wall clock saw it, has passed. Windows of the wall clock need no such thing.

use std::sync::Arc;
use std::vec;

use serde::{Deserialize, Serialize};

use super::Memory;
use super::record::Record;
use super::slot::Words;
use super::table::Table;
use crate::algorithm::Ledger;
use crate::clock::Now;
use crate::key::Key;

/// All that a store knows of one key. Its instants are those of the clock that it was saved under.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedKey {
    pub(super) family: u64,
    pub(super) key: Key,
    born_us: u64,
    charged_us: u64,
    pub(super) ledger: Ledger,
}

/// What became of saved keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// They are back.
    pub restored: usize,
    /// They mean nothing any more: buckets are full, windows are over.
    pub meaningless: usize,
    /// Their limit is not there any more.
    pub strangers: usize,
}

impl Memory {
    /// Every key that means something at this moment, a few at a time: no segment is held for long,
    /// and none while the caller has an item in hand. What changes meanwhile is saved as it is when
    /// its turn comes.
    #[must_use]
    pub fn export(&self, now: Now) -> Export {
        Export { now, tables: self.tables(), next: 0, page: Vec::new().into_iter() }
    }

    /// Puts keys back that were exported at `saved_at`, as if only the downtime had passed since; a
    /// wall clock that went back counts as none. Keys of limits that nobody has announced are left
    /// out, and so are keys that mean nothing by now; where a limit's share is too small, the keys
    /// stay that are nearest to their limits. A key that is there already keeps its state.
    pub fn import(
        &self,
        saved_at: Now,
        saved: impl IntoIterator<Item = SavedKey>,
        now: Now,
    ) -> ImportSummary {
        let families = self.families.load_full();
        let shift_us = shift_us(saved_at, now);
        let mut imported = ImportSummary::default();
        for saved in saved {
            let (family, key) = (saved.family, saved.key);
            let Some(table) =
                families.tables.get(&family).filter(|_| families.announced.contains(&family))
            else {
                imported.strangers += 1;
                continue;
            };
            let record = saved.record(shift_us);
            let now_us = record.time_us(now);
            if record.end_us() <= now_us {
                imported.meaningless += 1;
                continue;
            }
            table.bring_back(key, record, now_us);
            imported.restored += 1;
        }
        imported
    }
}

/// By how much steady instants move, so that the downtime and no more has passed since them.
fn shift_us(saved_at: Now, now: Now) -> i64 {
    let downtime_us = now.unix_us.saturating_sub(saved_at.unix_us);
    let then_us = i128::from(saved_at.steady_us) + i128::from(downtime_us);
    let shift_us = i128::from(now.steady_us) - then_us;
    i64::try_from(shift_us).unwrap_or(if shift_us < 0 { i64::MIN } else { i64::MAX })
}

impl SavedKey {
    pub(super) fn new(family: u64, key: Key, record: Record) -> Self {
        let Record { ledger, born_us, charged_us } = record;
        Self { family, key, born_us, charged_us, ledger }
    }

    fn record(self, shift_us: i64) -> Record {
        let Self { born_us, charged_us, mut ledger, .. } = self;
        let shift_us = if ledger.uses_wall_clock() { 0 } else { shift_us };
        ledger.shift(shift_us);
        // Zero says that nobody knows, and goes on saying so.
        let born_us = if born_us == 0 { 0 } else { born_us.saturating_add_signed(shift_us).max(1) };
        Record { ledger, born_us, charged_us: charged_us.saturating_add_signed(shift_us) }
    }
}

impl Table {
    /// Puts a key back, if it is not there.
    fn bring_back(&self, key: Key, record: Record, now_us: u64) {
        self.widen(key);
        let held = self.hold(key);
        if self.find(&held, key).is_none() {
            let packed = Words::pack_record(&record, &self.specs);
            let words = packed.unwrap_or_else(|| self.keep(&held, record));
            self.restore(&held, key, words, now_us);
        }
        drop(held);
        self.grow();
    }
}

/// The keys of a store, one after the other.
#[derive(Debug)]
pub struct Export {
    now: Now,
    /// The limits that are left, the present one last.
    tables: Vec<(u64, Arc<Table>)>,
    /// Where the next segment of the present limit begins.
    next: u64,
    page: vec::IntoIter<SavedKey>,
}

impl Iterator for Export {
    type Item = SavedKey;

    fn next(&mut self) -> Option<SavedKey> {
        loop {
            if let Some(saved) = self.page.next() {
                return Some(saved);
            }
            self.turn_page()?;
        }
    }
}

impl Export {
    /// Copies the keys of the next segment that mean something; `None` behind the last.
    fn turn_page(&mut self) -> Option<()> {
        let (family, table) = self.tables.last()?;
        let (held, behind) = table.hold_at(self.next);
        let page = table.keys_of(&held).filter_map(|(key, words)| {
            let record = table.record(&held, words)?;
            let means_something = record.end_us() > record.time_us(self.now);
            means_something.then(|| SavedKey::new(*family, key, record))
        });
        self.page = page.collect::<Vec<_>>().into_iter();
        drop(held);
        self.next = behind.unwrap_or(0);
        if behind.is_none() {
            self.tables.pop();
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
