//! Inserting keys, and evicting others where the store is full: of the table that has borrowed most.
//!
//! Expired keys go first. If every key is live, the key with the lowest rank goes and is counted: the one that has
//! used least of its limit, or of those the one that expires first. A small table compares all keys, a large one some
//! of them. So an eviction never takes a key that has reached its limit while others were used once.

use super::Table;
use crate::clock::Now;
use crate::key::Key;
use crate::plan::LEVELS_MAX;
use crate::store::memory::packed_state::PackedState;
use crate::store::memory::segment::{Segment, SegmentGuard};
use crate::sync::Ordering;

/// How long an expired key stays, because it may well come again, and how many slots an insertion sweeps in turn,
/// beside its candidate slots.
const SWEEP: (u64, usize) = (60_000_000, 0);
/// The same if the store is nearly full.
const SWEEP_NEARLY_FULL: (u64, usize) = (500_000, 4);
/// How many slots of a segment an eviction looks at, if there are several segments.
const COMPARED: usize = 24;
/// How many keys an eviction compares at least. A segment with fewer keys belongs to a table that had many more once.
/// Then the eviction looks at other segments too, or its first key might be the one of highest rank.
const COMPARED_MIN: usize = 8;
/// How many other segments an eviction looks at.
const NEIGHBOURS: usize = 64;
/// How many keys a caller evicts for others at most: twice those of a plan, because an earlier caller may have found
/// none.
const SETTLED: usize = 2 * LEVELS_MAX;

/// How important a key is. An expired key is worth nothing; a live one the more, the nearer it is to its limit and
/// the longer it stays there. The expiry of a bucket says both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionRank {
    /// One more than how much of its limit is used, of 255; zero if the key is expired.
    fullness: u16,
    expires_us: u64,
}

impl Table {
    /// Inserts a new key. If the store is full and this table has borrowed most, another key goes. If another table has,
    /// that one gives up a key when the caller [holds no segment](Self::settle).
    pub(in super::super) fn insert(
        &self,
        guard: &SegmentGuard<'_>,
        key: Key,
        state: PackedState,
        now_us: u64,
    ) {
        if self.pool.add(&self.usage) == 0 {
            self.uses_wall_clock.store(is_of_wall_clock(guard, state), Ordering::Relaxed);
        }
        if !self.pool.is_over() {
            self.sweep_expired(guard, key, now_us);
        } else if self.pool.larger_borrower(&self.usage).is_none() {
            self.evict(Some(guard), now_us);
            // An earlier insertion may have found no key to evict.
            if self.pool.is_over() {
                self.evict(Some(guard), now_us);
            }
        }
        let state = state.with_dirty(self.is_journaling());
        if guard.insert(&self.pool.pages, key, state) {
            return;
        }
        // The segment is full before its turn to be split has come.
        self.evict(Some(guard), now_us);
        if !guard.insert(&self.pool.pages, key, state) {
            guard.discard_overflow(state);
            self.pool.subtract(&self.usage, 1);
        }
    }

    /// Inserts a saved key. If the store is full, another key goes: of this table the one of lowest rank, which may be
    /// this one.
    pub(in super::super) fn insert_saved(
        &self,
        guard: &SegmentGuard<'_>,
        key: Key,
        state: PackedState,
        now_us: u64,
    ) {
        let gives_up = self.pool.is_full() && self.pool.larger_borrower(&self.usage).is_none();
        let lowest = if gives_up { self.lowest_ranked(guard, now_us) } else { None };
        if lowest.is_some_and(|(lowest, _)| self.rank(guard, state, now_us) < lowest) {
            guard.discard_overflow(state);
            self.pool.evicted.fetch_add(1, Ordering::Relaxed);
        } else {
            self.insert(guard, key, state, now_us);
        }
    }

    /// Evicts keys of the tables that have borrowed most, while the store has too many. The caller holds no segment.
    pub(super) fn settle(&self, now: Now) {
        for _ in 0..SETTLED {
            if !self.pool.is_over() {
                return;
            }
            match self.pool.larger_borrower(&self.usage) {
                Some(borrower) => borrower.give_up(now),
                None => self.give_up(now),
            }
        }
    }

    /// Evicts a key, and returns memory that the table does not need any more.
    fn give_up(&self, now: Now) {
        let is_wall = self.uses_wall_clock.load(Ordering::Relaxed);
        self.evict(None, if is_wall { now.unix_us } else { now.steady_us });
        self.shrink();
    }

    /// Removes expired keys where a new key is going to stand: those slots are in the cache.
    fn sweep_expired(&self, guard: &SegmentGuard<'_>, key: Key, now_us: u64) {
        let (stays_us, others) = if self.pool.is_nearly_full() { SWEEP_NEARLY_FULL } else { SWEEP };
        let others = (0..others).filter_map(|_| guard.next_slot());
        for index in guard.candidate_slots(key).chain(others) {
            let Some((_, state)) = guard.read_slot(&self.pool.pages, index) else { continue };
            // No key expires before its last charge, and the expiry takes longer to compute.
            let is_over = |us: u64| us.saturating_add(stays_us) <= now_us;
            if is_over(state.at_us()) && is_over(state.expires_us(&self.specs)) {
                self.evict_slot(guard, index, now_us);
            }
        }
    }

    /// Evicts the key of lowest rank, from the segment that the caller holds or from another.
    fn evict(&self, held: Option<&SegmentGuard<'_>>, now_us: u64) {
        let mut lowest = held.and_then(|guard| self.lowest_ranked(guard, now_us));
        let (mut elsewhere, mut compared) = (None, held.map_or(0, |guard| guard.len()));
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
        if let (Some((_, index)), Some(guard)) = (lowest, elsewhere.as_ref().or(held)) {
            self.evict_slot(guard, index, now_us);
            guard.return_pages(&self.pool.pages);
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
            let Some((_, state)) = guard.read_slot(&self.pool.pages, index) else { continue };
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
        let Some((key, state)) = guard.read_slot(&self.pool.pages, index) else { return };
        // Nobody misses the keys of a limit that is gone.
        let is_live = state.expires_us(&self.specs) > now_us && !self.is_retired();
        if is_live {
            self.pool.evicted.fetch_add(1, Ordering::Relaxed);
        }
        // The journal may know an older state of a dirty key, which lasts longer.
        if is_live || state.is_dirty() {
            self.note_eviction(key);
        }
        self.remove_slot(guard, index);
    }
}

/// True if the times of a new state are of the wall clock.
fn is_of_wall_clock(guard: &SegmentGuard<'_>, state: PackedState) -> bool {
    match state.overflow_index() {
        Some(index) => guard.with_overflow(index, |record| record.ledger.uses_wall_clock()),
        None => Some(state.uses_wall_clock()),
    }
    .unwrap_or(false)
}
