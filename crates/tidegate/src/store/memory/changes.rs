//! Which keys of a memory store have changed, for whoever writes them down while they change.
//!
//! A key is noted when it is charged, corrected, reset or evicted, and read when its turn comes: one
//! that changes a thousand times between two looks is written once, as it is by then. A key that only
//! loses its meaning with time is not noted; whoever reads it later finds that out by itself.

use std::collections::HashSet;
use std::vec;

use serde::{Deserialize, Serialize};

use super::snapshot::PAGE_KEYS;
use super::{Imported, Memory, SavedKey, Shard, Table, lock};
use crate::clock::Now;
use crate::fold::Folded;
use crate::key::Key;

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
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.gone.get_or_insert_default();
            for table in shard.tables.values_mut() {
                table.noted.0.get_or_insert_default();
            }
        }
    }

    /// Every key that changed since it was last given here, once, as it is at its turn, a few at a
    /// time: no shard is held for long, and none while the caller has an item in hand. What changes
    /// meanwhile comes the next time. Whoever stops before the end must take everything from
    /// [`export`](Self::export), as what was not given is not noted any more.
    #[must_use]
    pub fn changes(&self, now: Now) -> Changes<'_> {
        let (keys, page) = (Vec::new().into_iter(), Vec::new().into_iter());
        Changes { store: self, now, next_shard: 0, shard: 0, keys, page }
    }

    /// Puts keys back as [`import`](Self::import) does, in the order in which they were written: what
    /// comes later takes the place of what was there. `saved_at` is of the clock that they were
    /// written under.
    pub fn replay(
        &self,
        saved_at: Now,
        changes: impl IntoIterator<Item = SavedChange>,
        now: Now,
    ) -> Imported {
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
        if let Some(table) = lock(&self.shards[Self::shard_of(family)]).tables.get_mut(&family) {
            table.reset(key);
        }
    }
}

/// The keys that have changed, one after the other.
#[derive(Debug)]
pub struct Changes<'s> {
    store: &'s Memory,
    now: Now,
    next_shard: usize,
    /// The shard that `keys` are of.
    shard: usize,
    keys: vec::IntoIter<(u64, Key)>,
    page: vec::IntoIter<SavedChange>,
}

impl Iterator for Changes<'_> {
    type Item = SavedChange;

    fn next(&mut self) -> Option<SavedChange> {
        loop {
            if let Some(change) = self.page.next() {
                return Some(change);
            }
            if self.keys.as_slice().is_empty() {
                self.open_shard()?;
            }
            self.turn_page();
        }
    }
}

impl Changes<'_> {
    /// Takes what was noted in the next shard; `None` behind the last.
    fn open_shard(&mut self) -> Option<()> {
        let Taken { gone, noted } = lock(self.store.shards.get(self.next_shard)?).take_noted();
        let changed = noted.into_iter().flat_map(|(family, keys)| {
            keys.into_iter().map(move |key| (family, key)).collect::<Vec<_>>()
        });
        self.keys = gone.into_iter().chain(changed).collect::<Vec<_>>().into_iter();
        self.shard = self.next_shard;
        self.next_shard += 1;
        Some(())
    }

    /// Copies the next few keys as they are now.
    fn turn_page(&mut self) {
        let Some(shard) = self.store.shards.get(self.shard) else { return };
        let shard = lock(shard);
        let page = self.keys.by_ref().take(PAGE_KEYS).map(|(family, key)| {
            let removed = SavedChange::Removed { family, key };
            shard.saved(family, key, self.now).map_or(removed, SavedChange::Set)
        });
        self.page = page.collect::<Vec<_>>().into_iter();
    }
}

/// The keys of a limit that have changed, where somebody tracks them.
#[derive(Debug, Default)]
pub(super) struct Noted(Option<Keys>);

type Keys = HashSet<Key, Folded>;

/// What was noted in a shard.
struct Taken {
    /// Keys of limits that are gone.
    gone: Vec<(u64, Key)>,
    /// Keys of each other limit.
    noted: Vec<(u64, Keys)>,
}

impl Noted {
    pub(super) fn note(&mut self, key: Key) {
        if let Some(keys) = &mut self.0 {
            keys.insert(key);
        }
    }
}

impl Shard {
    /// The keys of a limit, of which there may be none yet.
    pub(super) fn table(&mut self, family: u64) -> &mut Table {
        let tracked = self.gone.is_some();
        self.tables.entry(family).or_insert_with(|| Table {
            noted: Noted(tracked.then(HashSet::default)),
            ..Table::default()
        })
    }

    /// Lets go of all keys of other limits.
    pub(super) fn keep_only(&mut self, families: &[u64]) {
        let Self { tables, gone } = self;
        tables.retain(|family, table| {
            let kept = families.contains(family);
            if let (false, Some(gone)) = (kept, gone.as_mut()) {
                let noted = table.noted.0.iter().flatten();
                let removed = noted.filter(|key| !table.slots.contains_key(key));
                gone.extend(table.slots.keys().chain(removed).map(|key| (*family, *key)));
            }
            kept
        });
    }

    /// What was noted since this was last called.
    fn take_noted(&mut self) -> Taken {
        let gone = self.gone.as_mut().map(std::mem::take).unwrap_or_default();
        let noted = |(family, table): (&u64, &mut Table)| {
            let keys = table.noted.0.as_mut()?;
            // As many will change again, and no charge is to wait while a table grows.
            let room = Keys::with_capacity_and_hasher(keys.len(), Folded::default());
            Some((*family, std::mem::replace(keys, room)))
        };
        Taken { gone, noted: self.tables.iter_mut().filter_map(noted).collect() }
    }
}

impl Table {
    /// Forgets a key; whether it was there.
    pub(super) fn reset(&mut self, key: Key) -> bool {
        let removed = self.remove(key);
        if removed {
            self.noted.note(key);
        }
        removed
    }
}

#[cfg(test)]
mod tests;
