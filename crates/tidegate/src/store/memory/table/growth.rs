//! Growing a table: one segment at a time is split in two. A table that gives back what it has borrowed shrinks the same
//! way: two segments at a time become one.

use super::Table;
use crate::clock::Now;
use crate::key::Key;
use crate::store::memory::segment::{KEYS_MAX, KeyList, SegmentGuard, hash_of};
use crate::sync::Ordering;

/// The first segment is split at this many keys. Until then evictions compare all keys of the table.
const FIRST_SPLIT_AT: usize = 320;
/// How many keys there are for each segment, then. Segments that are not split yet have up to twice as many, and so
/// nearly always fewer than fit.
const KEYS_PER_SEGMENT: usize = 160;
/// How few keys a segment may have while saved keys are imported.
const KEYS_PER_SEGMENT_MIN: usize = 16;
/// A table with fewer keys for each segment shrinks.
const KEYS_PER_SEGMENT_SPARSE: usize = KEYS_PER_SEGMENT / 2;

impl Table {
    /// Splits the next segment if the table has many keys by now, and evicts keys if the store has too many. The caller
    /// holds no segment.
    pub(in super::super) fn grow(&self, now: Now) {
        if self.pool.is_over() {
            self.settle(now);
        }
        let count = self.segment_count.load(Ordering::Relaxed);
        if self.keys() > (count * KEYS_PER_SEGMENT).max(FIRST_SPLIT_AT) {
            self.split_next();
            // Keys that are known to come then stay where they are inserted.
            let is_small = || {
                self.segment_count.load(Ordering::Relaxed) * KEYS_PER_SEGMENT < self.expected_keys
            };
            while is_small() && self.split_next() {}
        }
    }

    /// Splits segments until the segment of a saved key has a free slot. Saved keys come in the order of their former
    /// segments, and fill a segment of a small table long before its turn.
    pub(in super::super) fn grow_for(&self, key: Key) {
        let max_keys = self.pool.max_keys();
        let is_full = || self.lock(key).len() >= KEYS_MAX && !self.pool.is_full();
        // Not for ever, if a file has keys with equal hashes.
        let may_split =
            || self.segment_count.load(Ordering::Relaxed) < max_keys / KEYS_PER_SEGMENT_MIN;
        while is_full() && may_split() && self.split_next() {}
    }

    /// Splits the segment whose turn it is; false if there can be no more segments. The caller holds no segment.
    fn split_next(&self) -> bool {
        // Another thread that is splitting does it for all.
        let Ok(_splitting) = self.splitting.try_lock() else { return true };
        let count = self.segment_count.load(Ordering::Relaxed);
        let bits = count.ilog2();
        let old = self.segment_at(count - (1 << bits));
        let new = self.segments.get_or_create(count / super::CHUNK);
        let new = new.and_then(|chunk| chunk.0.get(count % super::CHUNK));
        let Some((old, new)) = old.zip(new) else { return false };
        let (old, new) = (old.lock(), new.lock());
        for guard in [&old, &new] {
            guard.set_depth(bits + 1);
        }
        self.divide(&old, &new, bits);
        self.segment_count.store(count + 1, Ordering::Release);
        self.segment_power.store(1 << (count + 1).ilog2(), Ordering::Release);
        true
    }

    /// Merges the last segment into the one that it was split from, if the table has few keys by now. The caller holds no
    /// segment.
    pub(super) fn shrink(&self) {
        let Ok(_splitting) = self.splitting.try_lock() else { return };
        let last = self.segment_count.load(Ordering::Relaxed) - 1;
        if last == 0 || self.keys() >= last * KEYS_PER_SEGMENT_SPARSE {
            return;
        }
        let bits = last.ilog2();
        let pair = self.segment_at(last - (1 << bits)).zip(self.segment_at(last));
        // Never waits: a plan that holds one of them may be waiting for the other.
        let Some((old, new)) = pair.and_then(|(old, new)| old.try_lock().zip(new.try_lock()))
        else {
            return;
        };
        if old.len() + new.len() > KEYS_MAX {
            return;
        }
        self.unite(&old, &new);
        old.set_depth(bits);
        // No key belongs to it, though some threads may still look there.
        new.set_depth(0);
        self.segment_count.store(last, Ordering::Release);
        self.segment_power.store(1 << last.ilog2(), Ordering::Release);
    }

    /// Moves all keys of the new segment to the old one.
    fn unite(&self, old: &SegmentGuard<'_>, new: &SegmentGuard<'_>) {
        let (mut keys, mut moved) = (KeyList::new(), KeyList::new());
        old.read_keys(&self.pool.pages, &mut keys);
        new.read_keys(&self.pool.pages, &mut moved);
        for (key, state) in moved {
            let index = new.take_overflow(state).map(|record| old.add_overflow(record));
            keys.push((key, index.map_or(state, |index| state.with_overflow_index(index))));
        }
        new.remove_all(&self.pool.pages);
        old.replace_all(&self.pool.pages, &keys);
    }

    /// Moves the keys whose hash has this bit.
    fn divide(&self, old: &SegmentGuard<'_>, new: &SegmentGuard<'_>, bit: u32) {
        let (mut keys, mut moved) = (KeyList::new(), KeyList::new());
        old.read_keys(&self.pool.pages, &mut keys);
        keys.retain(|(key, state)| {
            let moves = hash_of(*key) >> bit & 1 == 1;
            if moves {
                let record = old.take_overflow(*state);
                let index = record.map(|record| new.add_overflow(record));
                moved.push((*key, index.map_or(*state, |index| state.with_overflow_index(index))));
            }
            !moves
        });
        old.replace_all(&self.pool.pages, &keys);
        new.replace_all(&self.pool.pages, &moved);
    }
}
