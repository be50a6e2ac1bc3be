//! Which keys of a memory store have changed, for whoever writes them down while they change.
//!
//! A slot is marked when its key is charged or corrected, and read when its turn comes: one that
//! changes a thousand times between two looks is written once, as it is by then. A key that is reset or
//! evicted is noted beside its table, and so is one that loses its meaning and makes room before anybody
//! was told of its last change. A key that only loses its meaning with time is not noted; whoever reads
//! it later finds that out by itself.
//!
//! In a flood more keys make room than there is room to note. Then those beyond are not told of, and come
//! back to whoever reads what was told, as they last were and within the share of their limit, where those
//! that mean least go again. One that is reset never does.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::vec;

use serde::{Deserialize, Serialize};

use super::table::Table;
use super::{ImportSummary, Memory, SavedKey};
use crate::clock::Now;
use crate::fold::Folded;
use crate::key::Key;
use crate::sync::Ordering;

/// At least so many keys that made room are noted until somebody looks.
pub(super) const GONE_MIN: usize = 65_536;

/// Keys that are gone.
pub(super) type Gone = HashSet<Key, Folded>;

/// What became of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SavedChange {
    /// It is this now.
    Set(SavedKey),
    /// It is as one that was never charged: it was reset, evicted, or given all back.
    Removed {
        /// The limit that it was of.
        family: u64,
        /// Which key.
        key: Key,
    },
}

impl Memory {
    /// Notes the keys that change from now on, for [`changes`](Self::changes). A store whose changes
    /// nobody tracks does not pay for it.
    pub fn track_changes(&self) {
        self.tracked.store(true, Ordering::Relaxed);
    }

    /// Whether more keys were reset since the last call than there is room to note, so that the
    /// [`changes`](Self::changes) do not tell all: then everything must be taken from
    /// [`export`](Self::export), once, and changes from its beginning on.
    #[must_use]
    pub fn lost_track(&self) -> bool {
        self.lost.swap(false, Ordering::Relaxed)
    }

    /// Every key that changed since it was last given here, once, as it is at its turn, a few at a
    /// time: no segment is held for long, and none while the caller has an item in hand. What changes
    /// meanwhile comes the next time. Whoever stops before the end must take everything from
    /// [`export`](Self::export), as what was not given is not noted any more.
    #[must_use]
    pub fn changes(&self, now: Now) -> Changes<'_> {
        let gone = std::mem::take(&mut *self.gone.lock().unwrap_or_else(PoisonError::into_inner));
        let removed = gone.into_iter().map(|(family, key)| SavedChange::Removed { family, key });
        let page = removed.collect::<Vec<_>>().into_iter();
        Changes { store: self, now, tables: self.tables(), next: None, page }
    }

    /// Puts keys back as [`import`](Self::import) does, in the order in which they were written: what
    /// comes later takes the place of what was there. `saved_at` is of the clock that they were
    /// written under.
    pub fn replay(
        &self,
        saved_at: Now,
        changes: impl IntoIterator<Item = SavedChange>,
        now: Now,
    ) -> ImportSummary {
        let saved = changes.into_iter().filter_map(|change| match change {
            SavedChange::Set(saved) => {
                self.forget(saved.family, saved.key);
                Some(saved)
            }
            SavedChange::Removed { family, key } => {
                self.forget(family, key);
                None
            }
        });
        self.import(saved_at, saved, now)
    }

    fn forget(&self, family: u64, key: Key) {
        let Some(table) = self.table(family) else { return };
        let held = table.hold(key);
        if let Some(found) = table.find(&held, key) {
            table.remove(&held, found);
        }
    }

    /// Notes the keys of a limit that is gone.
    pub(super) fn note_all(&self, family: u64, table: &Table) {
        if self.tracked.load(Ordering::Relaxed) {
            let mut keys = table.take_gone();
            keys.extend(table.all_keys());
            let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = gone.len() + keys.len() <= self.max_keys.max(GONE_MIN);
            if fits && !table.has_untold() {
                gone.extend(keys.into_iter().map(|key| (family, key)));
            } else {
                *gone = Vec::new();
                self.lost.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// The keys that have changed, one after the other.
#[derive(Debug)]
pub struct Changes<'s> {
    store: &'s Memory,
    now: Now,
    /// The limits that are left, the present one last.
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
            if !self.store.tracked.load(Ordering::Relaxed) {
                return None;
            }
            self.turn_page()?;
        }
    }
}

impl Changes<'_> {
    /// Takes the keys that are gone from the next limit, and then what is marked in each of its
    /// segments; `None` behind the last.
    fn turn_page(&mut self) -> Option<()> {
        let (family, table) = self.tables.last()?;
        let Some(position) = self.next else {
            self.page = table.gone(*family).into_iter();
            self.next = Some(0);
            return Some(());
        };
        let (page, behind) = table.changed(*family, position, self.now);
        self.page = page.into_iter();
        self.next = behind;
        if behind.is_none() {
            self.tables.pop();
        }
        Some(())
    }
}

impl Table {
    /// The keys that are gone. Those that have come again are told of behind them, as they are by then.
    fn gone(&self, family: u64) -> Vec<SavedChange> {
        let removed = |key| {
            self.mark(&self.hold(key), key, true);
            SavedChange::Removed { family, key }
        };
        self.take_gone().into_iter().map(removed).collect()
    }

    /// The keys of a segment that are marked, as they are now; where the next segment begins.
    fn changed(&self, family: u64, position: u64, now: Now) -> (Vec<SavedChange>, Option<u64>) {
        let (held, behind) = self.hold_at(position);
        if !held.was_changed() {
            return (Vec::new(), behind);
        }
        let marked = self.keys_of(&held).filter(|(_, words)| words.is_changed());
        let changes = marked.filter_map(|(key, words)| {
            self.mark(&held, key, false);
            let record = self.record(&held, words)?;
            let means_something = record.end_us() > record.time_us(now);
            Some(if means_something {
                SavedChange::Set(SavedKey::new(family, key, record))
            } else {
                SavedChange::Removed { family, key }
            })
        });
        (changes.collect(), behind)
    }
}

#[cfg(test)]
mod tests;
