//! A segment: a few hundred keys under one [seqlock](super::seqlock), which readers do not take.
//!
//! A reader notes the version, reads atomic words, and validates the version. Then every key was where the reader
//! saw it. A writer that has read so takes the lock from that very version. A charge to a state that fits its slot
//! locks the [slot](super::slot) alone.
//!
//! A key stands in one of its two candidate lines, or else behind the first of them: all slots form a ring, which is
//! probed linearly (see [`placement`]). When the slots are nearly full, the segment takes another page and places
//! all keys anew.

mod guard;
mod overflow;
mod placement;

use std::sync::PoisonError;

pub(super) use guard::{KeyList, SegmentGuard};
use overflow::Overflow;
use placement::{CandidateLines, Placement, placement_of};

use super::packed_state::PackedState;
use super::pages::{PAGE_SLOTS, Page, Pages};
use super::seqlock::SeqLock;
use super::slot::Slot;
use crate::key::Key;
use crate::sync::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Mutex, MutexGuard, Ordering, wait};

const PAGES: usize = 8;
/// The most keys of a segment.
pub(super) const KEYS_MAX: usize = keys_max(PAGES);

/// Some keys of a table. All fields share one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Segment {
    lock: SeqLock,
    /// How many keys there are.
    len: AtomicU16,
    /// How many low bits of their hashes all keys have in common.
    depth: AtomicU8,
    /// How many pages the segment has.
    page_count: AtomicU8,
    pages: [AtomicU32; PAGES],
    /// The slot that the next eviction or sweep looks at.
    hand: AtomicU16,
    /// Set where a slot may be dirty.
    is_dirty: AtomicBool,
    /// Only the holder of the segment locks the overflow.
    overflow: Mutex<Overflow>,
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            lock: SeqLock::default(),
            len: AtomicU16::new(0),
            depth: AtomicU8::new(0),
            page_count: AtomicU8::new(0),
            pages: [const { AtomicU32::new(0) }; PAGES],
            hand: AtomicU16::new(0),
            is_dirty: AtomicBool::new(false),
            overflow: Mutex::default(),
        }
    }
}

/// A key's slot, and the state that a lookup read there.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookupHit<'p> {
    pub(super) slot: Slot<'p>,
    pub(super) state: PackedState,
}

impl LookupHit<'_> {
    /// True if the slot still has this state.
    pub(super) fn is_current(&self) -> bool {
        self.slot.state() == self.state
    }

    /// Unlocks a slot that was [locked](Segment::try_lock_slot), with the state from before.
    pub(super) fn unlock_unchanged(self) {
        self.slot.unlock(self.state);
    }
}

impl Segment {
    /// The version to validate against after reading. Waits while a writer holds the segment.
    #[inline]
    pub(super) fn version(&self) -> u32 {
        self.lock.read()
    }

    /// True if nothing has changed since this version, so that every read in between is valid.
    #[inline]
    pub(super) fn is_unchanged(&self, version: u32) -> bool {
        self.lock.is_unchanged(version)
    }

    /// Locks the segment if nothing has changed since this version.
    #[inline]
    pub(super) fn try_lock_from(&self, version: u32) -> Option<SegmentGuard<'_>> {
        self.lock.try_lock_from(version).then(|| SegmentGuard::new(self, version))
    }

    /// Locks the segment if nobody holds it.
    pub(super) fn try_lock(&self) -> Option<SegmentGuard<'_>> {
        self.lock.try_lock().map(|version| SegmentGuard::new(self, version))
    }

    /// Locks the segment, and waits for it.
    pub(super) fn lock(&self) -> SegmentGuard<'_> {
        let mut spins = 0;
        loop {
            if let Some(guard) = self.try_lock_from(self.version()) {
                return guard;
            }
            wait(&mut spins);
        }
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        usize::from(self.len.load(Ordering::Relaxed))
    }

    /// How many slots there are.
    pub(super) fn slot_count(&self) -> usize {
        self.page_count() * PAGE_SLOTS
    }

    /// True if keys of this hash belong to the segment of this number, however often it was split.
    #[inline]
    pub(super) fn owns(&self, number: usize, hash: u64) -> bool {
        hash & !(u64::MAX.wrapping_shl(self.depth())) == number as u64
    }

    pub(super) fn depth(&self) -> u32 {
        u32::from(self.depth.load(Ordering::Relaxed))
    }

    /// Looks for a key. A slot may be emptied after its key was read, so the state, read last, decides.
    #[inline(always)]
    pub(super) fn find<'p>(&self, pages: &'p Pages, key: Key, hash: u64) -> Option<LookupHit<'p>> {
        let lines = self.candidate_lines(pages, hash)?;
        let slot = lines.find(key).or_else(|| self.probe(pages, key, hash))?;
        Some(LookupHit { slot, state: slot.state() }).filter(|hit| !hit.state.is_empty())
    }

    #[inline(always)]
    pub(super) fn candidate_lines<'p>(
        &self,
        pages: &'p Pages,
        hash: u64,
    ) -> Option<CandidateLines<'p>> {
        let Placement { page, lines: [line, other] } = placement_of(hash, self.page_count());
        let page = self.page(pages, page)?;
        Some(CandidateLines([&page[line], &page[other]]))
    }

    /// The slot of a key that was not found at once: in its candidate lines, behind another key with the same upper
    /// half, or in the ring up to the first empty slot.
    #[cold]
    fn probe<'p>(&self, pages: &'p Pages, key: Key, hash: u64) -> Option<Slot<'p>> {
        let is_match = |slot: &Slot<'p>| slot.key() == key && !slot.is_empty();
        if let Some(slot) = self.candidate_lines(pages, hash)?.slots().find(is_match) {
            return Some(slot);
        }
        let mut taken = self.ring(pages, hash).take_while(|slot| !slot.is_empty());
        taken.find(|slot| slot.key() == key)
    }

    /// All slots in probe order: from the first candidate line on, and round.
    fn ring<'p>(&self, pages: &'p Pages, hash: u64) -> impl Iterator<Item = Slot<'p>> {
        let page_count = self.page_count();
        let Placement { page: first, lines: [line, _] } = placement_of(hash, page_count);
        // The page of the first line comes last again.
        let lines = (0..=page_count).map_while(move |turn| {
            let page = self.page(pages, (first + turn).checked_rem(page_count)?)?;
            page.get(if turn == 0 { line } else { 0 }..)
        });
        lines.flatten().flatten().map(Slot)
    }

    /// Replaces a state without locking the segment; false if something has changed since the lookup. `None`
    /// replaces nothing and only validates.
    #[inline(always)]
    pub(super) fn try_replace(
        &self,
        version: u32,
        hit: LookupHit<'_>,
        state: Option<PackedState>,
    ) -> bool {
        let Some(state) = state else { return self.is_unchanged(version) };
        let is_locked = self.try_lock_slot(version, hit);
        if is_locked {
            self.unlock_slot(hit, state);
        }
        is_locked
    }

    /// Locks a slot without locking the segment; false if something has changed since the lookup.
    #[inline(always)]
    pub(super) fn try_lock_slot(&self, version: u32, hit: LookupHit<'_>) -> bool {
        hit.slot.try_lock(hit.state, || self.lock.is_unchanged_after_slot_lock(version))
    }

    /// Unlocks a slot, with this state.
    #[inline(always)]
    pub(super) fn unlock_slot(&self, hit: LookupHit<'_>, state: PackedState) {
        self.note_dirty(state);
        hit.slot.unlock(state);
    }

    /// The key and the state of a slot, unless it is empty.
    pub(super) fn read_slot(&self, pages: &Pages, index: usize) -> Option<(Key, PackedState)> {
        let slot = self.slot(pages, index).filter(|slot| !slot.is_empty())?;
        Some((slot.key(), slot.state()))
    }

    #[inline]
    fn slot<'p>(&self, pages: &'p Pages, index: usize) -> Option<Slot<'p>> {
        self.page(pages, index / PAGE_SLOTS)?.as_flattened().get(index % PAGE_SLOTS).map(Slot)
    }

    #[inline]
    fn page<'p>(&self, pages: &'p Pages, number: usize) -> Option<&'p Page> {
        debug_assert!(number < PAGES, "no hash and no slot index names a page beyond the last");
        pages.get(self.pages[number % PAGES].load(Ordering::Relaxed))
    }

    #[inline]
    fn page_count(&self) -> usize {
        usize::from(self.page_count.load(Ordering::Relaxed))
    }

    /// Notes that a slot is dirty. The flag is nearly always set already, and then the line stays shared.
    #[inline]
    fn note_dirty(&self, state: PackedState) {
        if state.is_dirty() && !self.is_dirty.load(Ordering::Relaxed) {
            self.is_dirty.store(true, Ordering::Relaxed);
        }
    }

    fn overflow(&self) -> MutexGuard<'_, Overflow> {
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hash that places a key: its upper half. Keys are keyed hashes, whose bits are evenly spread.
#[allow(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
#[inline]
pub(super) const fn hash_of(Key(key): Key) -> u64 {
    (key >> 64) as u64
}

/// How many keys fit so many pages. With more, probes would become long.
const fn keys_max(pages: usize) -> usize {
    pages * PAGE_SLOTS * 17 / 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_one_line() {
        assert_eq!(std::mem::size_of::<Segment>(), 64);
    }
}
