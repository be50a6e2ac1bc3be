//! Saving the keys of a memory store, and restoring them after a restart.
//!
//! Steady time has another origin in every process. Saved instants stay as they were, together with one reading of
//! both clocks. On import they move, so that exactly the downtime, as the wall clock saw it, has passed. Instants of
//! the wall clock stay.

use std::sync::Arc;
use std::vec;

use serde::{Deserialize, Serialize};

use super::Memory;
use super::record::Record;
use super::table::Table;
use crate::algorithm::Ledger;
use crate::clock::Now;
use crate::key::Key;

/// The full state of one key. Its instants are on the clock that it was saved under.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedKey {
    pub(super) family: u64,
    pub(super) key: Key,
    #[serde(rename = "born_us")]
    created_us: u64,
    charged_us: u64,
    pub(super) ledger: Ledger,
}

/// What became of saved keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// How many keys were restored.
    pub restored: usize,
    /// How many keys have expired since: their buckets are full, their windows over.
    pub meaningless: usize,
    /// How many keys belong to a limit that does not exist any more.
    pub strangers: usize,
}

impl Memory {
    /// Every live key, a few at a time: no segment is locked for long, and none while the caller has an item in hand. A
    /// key that changes meanwhile is saved as it is at its turn.
    #[must_use]
    pub fn export(&self, now: Now) -> Export {
        Export { now, tables: self.tables(), next: 0, page: Vec::new().into_iter() }
    }

    /// Restores keys that were exported at `saved_at`, as if only the downtime had passed since; a wall clock that was
    /// set back counts as no downtime. Keys of limits that were not announced are left out, and so are keys that have
    /// expired. If the store is too small, the keys nearest to their limits stay. A key that exists keeps its
    /// state.
    pub fn import(
        &self,
        saved_at: Now,
        saved: impl IntoIterator<Item = SavedKey>,
        now: Now,
    ) -> ImportSummary {
        let limits = self.limits.load_full();
        let shift_us = shift_us(saved_at, now);
        let mut summary = ImportSummary::default();
        for saved in saved {
            let (family, key) = (saved.family, saved.key);
            let Some(table) = limits.tables.get(&family) else {
                summary.strangers += 1;
                continue;
            };
            let record = saved.into_record(shift_us);
            if record.is_live(now) {
                table.import_record(key, record, now);
                summary.restored += 1;
            } else {
                summary.meaningless += 1;
            }
        }
        summary
    }
}

/// By how much steady instants move, so that exactly the downtime has passed since them.
fn shift_us(saved_at: Now, now: Now) -> i64 {
    let downtime_us = now.unix_us.saturating_sub(saved_at.unix_us);
    let then_us = i128::from(saved_at.steady_us) + i128::from(downtime_us);
    let shift_us = i128::from(now.steady_us) - then_us;
    i64::try_from(shift_us).unwrap_or(if shift_us < 0 { i64::MIN } else { i64::MAX })
}

impl SavedKey {
    pub(super) fn new(family: u64, key: Key, record: Record) -> Self {
        let Record { ledger, created_us, charged_us } = record;
        Self { family, key, created_us, charged_us, ledger }
    }

    fn into_record(self, shift_us: i64) -> Record {
        let Self { created_us, charged_us, mut ledger, .. } = self;
        let shift_us = if ledger.uses_wall_clock() { 0 } else { shift_us };
        ledger.shift(shift_us);
        // Zero means unknown, and stays zero.
        let created_us =
            if created_us == 0 { 0 } else { created_us.saturating_add_signed(shift_us).max(1) };
        Record { ledger, created_us, charged_us: charged_us.saturating_add_signed(shift_us) }
    }
}

impl Table {
    /// Restores a key, unless it exists.
    fn import_record(&self, key: Key, record: Record, now: Now) {
        let now_us = record.time_us(now);
        self.grow_for(key);
        let guard = self.lock(key);
        if self.find(&guard, key).is_none() {
            let state = self.pack(&guard, record);
            self.insert_saved(&guard, key, state, now_us);
        }
        drop(guard);
        self.grow(now);
    }
}

/// The keys of a store, one after the other.
#[derive(Debug)]
pub struct Export {
    now: Now,
    /// The remaining limits, the present one last.
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
            self.read_page()?;
        }
    }
}

impl Export {
    /// Copies the live keys of the next segment; `None` behind the last.
    fn read_page(&mut self) -> Option<()> {
        let (family, table) = self.tables.last()?;
        let (guard, behind) = table.lock_at(self.next);
        let page = table.keys_of(&guard).filter_map(|(key, state)| {
            table.with_record(&guard, state, |record| {
                record.is_live(self.now).then(|| SavedKey::new(*family, key, record.clone()))
            })?
        });
        self.page = page.collect::<Vec<_>>().into_iter();
        drop(guard);
        self.next = behind.unwrap_or(0);
        if behind.is_none() {
            self.tables.pop();
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
