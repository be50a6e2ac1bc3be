//! Which keys of a memory store have changed, for a journal that is written while they change.
//!
//! A charge or a correction marks its slot as dirty. The journal reads dirty slots in turn, so that a key which
//! changes a thousand times between two passes is written once. A key that is reset or evicted is noted in the
//! [`RemovalLog`] of its table, and so is an expired dirty key that is swept. A key that only expires is not noted: a
//! reader of the journal finds that out by itself.
//!
//! In a flood more keys are evicted than the log can note. The journal does not learn of the rest. When it is replayed,
//! they come back as the journal last saw them, within the share of their limit, where those of lowest rank go again.
//! A key that was reset never comes back.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::vec;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::table::Table;
use super::{ImportSummary, Memory, SavedKey};
use crate::clock::Now;
use crate::key::Key;
use crate::sync::{AtomicBool, Mutex, Ordering};

/// How many evicted keys of a table are noted at least until the journal reads them.
const REMOVALS_MIN: usize = 65_536;

/// What happened to a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SavedChange {
    /// The key has this state now.
    Set(SavedKey),
    /// The key is as one that was never charged: it was reset, evicted, or all its charges were given back.
    Removed {
        /// The limit of the key.
        family: u64,
        /// The key.
        key: Key,
    },
}

impl Memory {
    /// Notes the keys that change from now on, for [`changes`](Self::changes). A store without a journal does not pay
    /// for it.
    pub fn track_changes(&self) {
        self.pool.is_journaling.store(true, Ordering::Relaxed);
    }

    /// True if more keys were reset since the last call than could be noted, so that the
    /// [`changes`](Self::changes) are incomplete. Then write a new [`export`](Self::export), and changes from its
    /// beginning on.
    #[must_use]
    pub fn lost_track(&self) -> bool {
        self.pool.lost_resets.swap(false, Ordering::Relaxed)
    }

    /// Every key that changed since it was last returned here, once, as it is at its turn, a few at a time: no segment
    /// is locked for long, and none while the caller has an item in hand. Keys that change meanwhile come the next
    /// time. A caller that stops before the end must write a new [`export`](Self::export).
    #[must_use]
    pub fn changes(&self, now: Now) -> Changes<'_> {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = std::mem::take(&mut *removed);
        let removed = removed.into_iter().map(|(family, key)| SavedChange::Removed { family, key });
        let page = removed.collect::<Vec<_>>().into_iter();
        Changes { store: self, now, tables: self.tables(), next: None, page }
    }

    /// Restores keys as [`import`](Self::import) does, in the order in which they were written: a later change
    /// replaces an earlier one. `saved_at` is on the clock that the changes were written under.
    pub fn replay(
        &self,
        saved_at: Now,
        changes: impl IntoIterator<Item = SavedChange>,
        now: Now,
    ) -> ImportSummary {
        let saved = changes.into_iter().filter_map(|change| match change {
            SavedChange::Set(saved) => {
                self.remove_key(saved.family, saved.key);
                Some(saved)
            }
            SavedChange::Removed { family, key } => {
                self.remove_key(family, key);
                None
            }
        });
        self.import(saved_at, saved, now)
    }

    fn remove_key(&self, family: u64, key: Key) {
        let Some(table) = self.table(family) else { return };
        let guard = table.lock(key);
        if let Some(hit) = table.find(&guard, key) {
            table.remove(&guard, hit);
        }
    }

    /// Notes all keys of a limit that is dropped.
    pub(super) fn note_dropped_table(&self, family: u64, table: &Table) {
        if !table.is_journaling() {
            return;
        }
        let mut keys = table.take_removals();
        table.lock_each().for_each(|guard| keys.extend(table.keys_of(&guard).map(|(key, _)| key)));
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = removed.len() + keys.len() <= self.max_keys.max(REMOVALS_MIN);
        if fits && !table.removals.is_incomplete() {
            removed.extend(keys.into_iter().map(|key| (family, key)));
        } else {
            *removed = Vec::new();
            self.pool.lost_resets.store(true, Ordering::Relaxed);
        }
    }
}

/// The changed keys, one after the other.
#[derive(Debug)]
pub struct Changes<'s> {
    store: &'s Memory,
    now: Now,
    /// The remaining limits, the present one last.
    tables: Vec<(u64, Arc<Table>)>,
    /// Where the next segment of the present limit begins; `None` before the first.
    next: Option<u64>,
    page: vec::IntoIter<SavedChange>,
}

impl Iterator for Changes<'_> {
    type Item = SavedChange;

    fn next(&mut self) -> Option<SavedChange> {
        loop {
            if let Some(change) = self.page.next() {
                return Some(change);
            }
            if !self.store.pool.is_journaling.load(Ordering::Relaxed) {
                return None;
            }
            self.read_page()?;
        }
    }
}

impl Changes<'_> {
    /// Reads the removals of the next limit, and then the dirty keys of each of its segments; `None` behind the last.
    fn read_page(&mut self) -> Option<()> {
        let (family, table) = self.tables.last()?;
        let Some(position) = self.next else {
            self.page = table.removed_changes(*family).into_iter();
            self.next = Some(0);
            return Some(());
        };
        let (page, behind) = table.dirty_changes(*family, position, self.now);
        self.page = page.into_iter();
        self.next = behind;
        if behind.is_none() {
            self.tables.pop();
        }
        Some(())
    }
}

/// The keys of a table that were removed before they expired. A key may be noted twice.
#[derive(Debug, Default)]
pub(super) struct RemovalLog {
    keys: Mutex<Vec<Key>>,
    /// Set once an eviction could not be noted.
    is_incomplete: AtomicBool,
}

impl RemovalLog {
    /// True if the journal may bring an evicted key back, because it was not told.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Relaxed)
    }

    /// Notes a key; false if there are `max` already.
    fn add(&self, key: Key, max: usize) -> bool {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = keys.len() < max;
        if has_room {
            keys.push(key);
        }
        has_room
    }
}

impl Table {
    /// Notes that a key must not come back, whether it is in the table or not. If the log is full, the journal must
    /// begin anew.
    pub(super) fn note_reset(&self, key: Key) {
        if self.is_journaling() && !self.removals.add(key, 2 * self.evictions_max()) {
            self.pool.lost_resets.store(true, Ordering::Relaxed);
        }
    }

    /// Notes an evicted key. If the log is full, the key may come back: in a flood, that is better than a journal that
    /// begins anew all the time.
    pub(super) fn note_eviction(&self, key: Key) {
        if self.is_journaling() && !self.removals.add(key, self.evictions_max()) {
            self.removals.is_incomplete.store(true, Ordering::Relaxed);
        }
    }

    fn evictions_max(&self) -> usize {
        (self.usage.share() / 4).max(REMOVALS_MIN)
    }

    fn take_removals(&self) -> HashSet<Key, RandomState> {
        let mut keys = self.removals.keys.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *keys).into_iter().collect()
    }

    /// The removed keys. Those that were inserted again are marked as dirty, and so follow with their new state.
    fn removed_changes(&self, family: u64) -> Vec<SavedChange> {
        let removed = |key| {
            self.set_dirty(&self.lock(key), key, true);
            SavedChange::Removed { family, key }
        };
        self.take_removals().into_iter().map(removed).collect()
    }

    /// The dirty keys of a segment as they are now; where the next segment begins.
    fn dirty_changes(
        &self,
        family: u64,
        position: u64,
        now: Now,
    ) -> (Vec<SavedChange>, Option<u64>) {
        let (guard, behind) = self.lock_at(position);
        if !guard.take_dirty() {
            return (Vec::new(), behind);
        }
        let dirty = self.keys_of(&guard).filter(|(_, state)| state.is_dirty());
        let changes = dirty.filter_map(|(key, state)| {
            self.set_dirty(&guard, key, false);
            let saved = self.with_record(&guard, state, |record| {
                record.is_live(now).then(|| SavedKey::new(family, key, record.clone()))
            })?;
            Some(saved.map_or(SavedChange::Removed { family, key }, SavedChange::Set))
        });
        (changes.collect(), behind)
    }
}

#[cfg(test)]
mod tests;
