//! Saving the keys of a memory store, and putting them back after a restart.
//!
//! Steady time has another origin in every process. Saved instants stay as they were, together with
//! one reading of both clocks; when they come back, they are moved so that exactly the downtime, as
//! the wall clock saw it, has passed. Windows of the wall clock need no such thing.

use std::sync::atomic::Ordering;
use std::vec;

use serde::{Deserialize, Serialize};

use super::{Memory, Shard, Slot, Table, lock};
use crate::algorithm::Ledger;
use crate::clock::Now;
use crate::key::Key;

/// How many keys are copied out while a shard is held.
pub(super) const PAGE_KEYS: usize = 256;

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
pub struct Imported {
    /// They are back.
    pub restored: usize,
    /// They mean nothing any more: buckets are full, windows are over.
    pub meaningless: usize,
    /// Their limit is not there any more.
    pub strangers: usize,
}

impl Memory {
    /// Every key that means something at this moment, a few at a time: no shard is held for long,
    /// and none while the caller has an item in hand. What changes meanwhile is saved as it is when
    /// its turn comes.
    #[must_use]
    pub fn export(&self, now: Now) -> Export<'_> {
        let (keys, page) = (Vec::new().into_iter(), Vec::new().into_iter());
        Export { store: self, now, next_shard: 0, shard: 0, keys, page }
    }

    /// Puts keys back that were exported at `saved_at`, as if only the downtime had passed since; a
    /// wall clock that went back counts as none. Keys of limits that nobody has announced are left
    /// out, and so are keys that mean nothing by now; where a limit's share is too small, the keys
    /// stay that mean something for longest. A key that is there already keeps its state.
    pub fn import(
        &self,
        saved_at: Now,
        saved: impl IntoIterator<Item = SavedKey>,
        now: Now,
    ) -> Imported {
        let (share, announced) = (self.share(), lock(&self.announced).clone());
        let shift_us = shift_us(saved_at, now);
        let mut imported = Imported::default();
        for saved in saved {
            if !announced.contains(&saved.family) {
                imported.strangers += 1;
                continue;
            }
            let (family, key) = (saved.family, saved.key);
            let slot = saved.slot(shift_us);
            let now_us = slot.ledger.time_us(now);
            if slot.meaningless_at_us <= now_us {
                imported.meaningless += 1;
                continue;
            }
            let mut shard = lock(&self.shards[Self::shard_of(family)]);
            let table = shard.table(family);
            let evicted = table.restore(key, slot, now_us, share);
            self.evicted.fetch_add(evicted, Ordering::Relaxed);
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
    fn slot(self, shift_us: i64) -> Slot {
        let Self { born_us, charged_us, mut ledger, .. } = self;
        let shift_us = if ledger.uses_wall_clock() { 0 } else { shift_us };
        ledger.shift(shift_us);
        Slot {
            meaningless_at_us: ledger.meaningless_at_us().unwrap_or(u64::MAX),
            charged_us: charged_us.saturating_add_signed(shift_us),
            ..Slot::new(ledger, born_us.saturating_add_signed(shift_us))
        }
    }
}

impl Shard {
    /// A key as it is; `None` if it means nothing.
    pub(super) fn saved(&self, family: u64, key: Key, now: Now) -> Option<SavedKey> {
        let slot = self.tables.get(&family)?.slots.get(&key)?;
        let means_something = slot.meaningless_at_us > slot.ledger.time_us(now);
        means_something.then(|| SavedKey {
            family,
            key,
            born_us: slot.born_us,
            charged_us: slot.charged_us,
            ledger: slot.ledger.clone(),
        })
    }
}

impl Ledger {
    /// The clock that the key runs on.
    pub(super) fn time_us(&self, now: Now) -> u64 {
        if self.uses_wall_clock() { now.unix_us } else { now.steady_us }
    }
}

impl Table {
    /// Puts a key back, if it is not there; returns how many live keys had to go.
    fn restore(&mut self, key: Key, slot: Slot, now_us: u64, share: usize) -> u64 {
        self.latest_us = now_us;
        if !self.slots.contains_key(&key) {
            self.noted.note(key);
            self.insert(key, slot);
        }
        self.shrink_to(share)
    }
}

/// The keys of a store, one after the other.
#[derive(Debug)]
pub struct Export<'s> {
    store: &'s Memory,
    now: Now,
    next_shard: usize,
    /// The shard that `keys` are of.
    shard: usize,
    keys: vec::IntoIter<(u64, Key)>,
    page: vec::IntoIter<SavedKey>,
}

impl Iterator for Export<'_> {
    type Item = SavedKey;

    fn next(&mut self) -> Option<SavedKey> {
        loop {
            if let Some(saved) = self.page.next() {
                return Some(saved);
            }
            if self.keys.as_slice().is_empty() {
                self.open_shard()?;
            }
            self.turn_page();
        }
    }
}

impl Export<'_> {
    /// Notes the keys of the next shard; `None` behind the last.
    fn open_shard(&mut self) -> Option<()> {
        let shard = lock(self.store.shards.get(self.next_shard)?);
        let keys_of = |(family, table): (&u64, &Table)| {
            let family = *family;
            table.slots.keys().map(move |key| (family, *key)).collect::<Vec<_>>()
        };
        self.keys = shard.tables.iter().flat_map(keys_of).collect::<Vec<_>>().into_iter();
        self.shard = self.next_shard;
        self.next_shard += 1;
        Some(())
    }

    /// Copies the next few keys that mean something.
    fn turn_page(&mut self) {
        let Some(shard) = self.store.shards.get(self.shard) else { return };
        let shard = lock(shard);
        let page = self
            .keys
            .by_ref()
            .take(PAGE_KEYS)
            .filter_map(|(family, key)| shard.saved(family, key, self.now));
        self.page = page.collect::<Vec<_>>().into_iter();
    }
}

#[cfg(test)]
mod tests;
