//! Inserting keys, and evicting others where the limit's share of the store is full.
//!
//! Expired keys go first. If every key is live, the key with the lowest rank goes and is counted: the one that has
//! used least of its limit, or of those the one that expires first. A small table compares all keys, a large one some
//! of them. So an eviction never takes a key that has reached its limit while others were used once.

use super::Table;
use crate::key::Key;
use crate::store::memory::packed_state::PackedState;
use crate::store::memory::segment::{Segment, SegmentGuard};
use crate::sync::Ordering;

/// How long an expired key stays, because it may well come again, and how many slots an insertion sweeps in turn,
/// beside its candidate slots.
const SWEEP: (u64, usize) = (60_000_000, 0);
/// The same if the table is nearly full.
const SWEEP_NEARLY_FULL: (u64, usize) = (500_000, 4);
/// How many slots of a segment an eviction looks at, if there are several segments.
const COMPARED: usize = 24;
/// How many keys an eviction compares at least. A segment with fewer keys belongs to a table that had many more once.
/// Then the eviction looks at other segments too, or its first key might be the one of highest rank.
const COMPARED_MIN: usize = 8;
/// How many other segments an eviction looks at.
const NEIGHBOURS: usize = 64;

/// How important a key is. An expired key is worth nothing; a live one the more, the nearer it is to its limit and
/// the longer it stays there. The expiry of a bucket says both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionRank {
    /// One more than how much of its limit is used, of 255; zero if the key is expired.
    fullness: u16,
    expires_us: u64,
}

impl Table {
    /// Inserts a new key. If the table is full, another key goes.
    pub(in super::super) fn insert(
        &self,
        guard: &SegmentGuard<'_>,
        key: Key,
        state: PackedState,
        now_us: u64,
    ) {
        self.last_insert_us.store(now_us, Ordering::Relaxed);
        let max_keys = self.max_keys();
        if self.keys.fetch_add(1, Ordering::Relaxed) < max_keys {
            self.sweep_expired(guard, key, now_us);
        } else {
            self.evict(guard, now_us);
            // An earlier insertion may have found no key to evict.
            if self.keys() > max_keys {
                self.evict(guard, now_us);
            }
        }
        let state = state.with_dirty(self.is_journaling());
        if guard.insert(&self.pages, key, state) {
            return;
        }
        // The segment is full before its turn to be split has come.
        self.evict(guard, now_us);
        if !guard.insert(&self.pages, key, state) {
            guard.discard_overflow(state);
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Inserts a saved key. If the table is full, the key of lowest rank goes, which may be this one.
    pub(in super::super) fn insert_saved(
        &self,
        guard: &SegmentGuard<'_>,
        key: Key,
        state: PackedState,
        now_us: u64,
    ) {
        let is_full = self.keys() >= self.max_keys();
        let lowest = if is_full { self.lowest_ranked(guard, now_us) } else { None };
        if lowest.is_some_and(|(lowest, _)| self.rank(guard, state, now_us) < lowest) {
            guard.discard_overflow(state);
            self.counters.evicted.fetch_add(1, Ordering::Relaxed);
        } else {
            self.insert(guard, key, state, now_us);
        }
    }

    /// Sets how many keys there may be. If there are more, those of lowest rank go at once.
    pub(in super::super) fn set_max_keys(&self, max_keys: usize) {
        self.max_keys.store(max_keys, Ordering::Relaxed);
        let excess = self.keys().saturating_sub(max_keys);
        if excess == 0 {
            return;
        }
        let now_us = self.last_insert_us.load(Ordering::Relaxed);
        let mut ranks: Vec<EvictionRank> = Vec::with_capacity(self.keys());
        for guard in self.lock_each() {
            ranks.extend(self.keys_of(&guard).map(|(_, state)| self.rank(&guard, state, now_us)));
        }
        if ranks.is_empty() {
            return;
        }
        let last = excess.min(ranks.len()) - 1;
        let (_, &mut highest, _) = ranks.select_nth_unstable(last);
        let lower = ranks.iter().filter(|rank| **rank < highest).count();
        let mut ties = excess.saturating_sub(lower);
        for guard in self.lock_each() {
            for (key, state) in self.keys_of(&guard) {
                let rank = self.rank(&guard, state, now_us);
                let is_tie = rank == highest && ties > 0;
                ties -= usize::from(is_tie);
                let hit = self.find(&guard, key).filter(|_| rank < highest || is_tie);
                if let Some(index) = hit.and_then(|hit| guard.index_of(&self.pages, hit)) {
                    self.evict_slot(&guard, index, now_us);
                }
            }
            // Returns the pages that the segment does not need any more.
            let mut keys = super::KeyList::new();
            guard.read_keys(&self.pages, &mut keys);
            guard.replace_all(&self.pages, &keys);
        }
    }

    /// Removes expired keys where a new key is going to stand: those slots are in the cache.
    fn sweep_expired(&self, guard: &SegmentGuard<'_>, key: Key, now_us: u64) {
        let max_keys = self.max_keys();
        let is_nearly_full = self.keys() > max_keys - max_keys / 8;
        let (stays_us, others) = if is_nearly_full { SWEEP_NEARLY_FULL } else { SWEEP };
        let others = (0..others).filter_map(|_| guard.next_slot());
        for index in guard.candidate_slots(key).chain(others) {
            let Some((_, state)) = guard.read_slot(&self.pages, index) else { continue };
            // No key expires before its last charge, and the expiry takes longer to compute.
            let is_over = |us: u64| us.saturating_add(stays_us) <= now_us;
            if is_over(state.at_us()) && is_over(state.expires_us(&self.specs)) {
                self.evict_slot(guard, index, now_us);
            }
        }
    }

    /// Evicts the key of lowest rank, from this segment or from another.
    fn evict(&self, guard: &SegmentGuard<'_>, now_us: u64) {
        let (mut lowest, mut elsewhere) = (self.lowest_ranked(guard, now_us), None);
        let mut compared = guard.len();
        let mut neighbours = self.neighbours();
        while compared < COMPARED_MIN
            && let Some(segment) = neighbours.next()
        {
            // Never waits: the holder of that segment may be waiting for this one.
            let Some(other) = segment.try_lock() else { continue };
            compared += other.len();
            let lowest_there = self.lowest_ranked(&other, now_us);
            if lowest_there.is_some() && (lowest.is_none() || lowest_there < lowest) {
                (lowest, elsewhere) = (lowest_there, Some(other));
            }
        }
        if let Some((_, index)) = lowest {
            self.evict_slot(elsewhere.as_ref().unwrap_or(guard), index, now_us);
        }
    }

    /// Some segments with keys, from where the last eviction stopped.
    fn neighbours(&self) -> impl Iterator<Item = &Segment> {
        let count = self.segment_count.load(Ordering::Relaxed);
        let start = self.eviction_cursor.load(Ordering::Relaxed);
        let segment = move |offset| {
            let number = (start + offset) % count;
            let segment = self.segment_at(number).filter(|segment| segment.len() > 0)?;
            self.eviction_cursor.store(number + 1, Ordering::Relaxed);
            Some(segment)
        };
        (0..count).filter_map(segment).take(NEIGHBOURS)
    }

    /// The key of lowest rank in a segment, and its slot. A table of many segments compares only some keys.
    fn lowest_ranked(
        &self,
        guard: &SegmentGuard<'_>,
        now_us: u64,
    ) -> Option<(EvictionRank, usize)> {
        let compares_all = self.segment_count.load(Ordering::Relaxed) == 1;
        let (mut lowest, mut compared) = (None, 0);
        for turn in 0..guard.slot_count() {
            if !compares_all && turn >= COMPARED && compared >= COMPARED_MIN {
                break;
            }
            let Some(index) = guard.next_slot() else { break };
            let Some((_, state)) = guard.read_slot(&self.pages, index) else { continue };
            let ranked = (self.rank(guard, state, now_us), index);
            lowest =
                Some(lowest.map_or(ranked, |lowest: (EvictionRank, usize)| lowest.min(ranked)));
            compared += 1;
        }
        lowest
    }

    fn rank(&self, guard: &SegmentGuard<'_>, state: PackedState, now_us: u64) -> EvictionRank {
        let expires_us = state.expires_us(&self.specs);
        if expires_us <= now_us {
            return EvictionRank { fullness: 0, expires_us };
        }
        let fullness = match state.overflow_index() {
            Some(index) => guard.with_overflow(index, |record| record.ledger.fullness(now_us)),
            None => state.fullness(&self.specs, now_us),
        };
        EvictionRank { fullness: 1 + u16::from(fullness.unwrap_or(0)), expires_us }
    }

    /// Removes a key to make room, which counts if the key is live.
    fn evict_slot(&self, guard: &SegmentGuard<'_>, index: usize, now_us: u64) {
        let Some((key, state)) = guard.read_slot(&self.pages, index) else { return };
        let is_live = state.expires_us(&self.specs) > now_us;
        if is_live {
            self.counters.evicted.fetch_add(1, Ordering::Relaxed);
        }
        // The journal may know an older state of a dirty key, which lasts longer.
        if is_live || state.is_dirty() {
            self.note_eviction(key);
        }
        self.remove_slot(guard, index);
    }
}
