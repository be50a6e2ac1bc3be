//! A locked segment: everything that changes which keys it has.

use arrayvec::ArrayVec;

use super::{KEYS_MAX, LookupHit, PAGES, Segment, hash_of, keys_max, placement_of};
use crate::key::Key;
use crate::store::memory::packed_state::PackedState;
use crate::store::memory::pages::{PAGE_SLOTS, Pages};
use crate::store::memory::record::Record;
use crate::store::memory::slot::Slot;
use crate::sync::{Ordering, fence};

/// All keys of a segment.
pub(in super::super) type KeyList = ArrayVec<(Key, PackedState), KEYS_MAX>;

/// The lock of a segment. Nobody else adds, moves or removes keys until the guard is dropped.
#[derive(Debug)]
pub(in super::super) struct SegmentGuard<'s> {
    segment: &'s Segment,
    /// The version from before the lock.
    version: u32,
}

impl Drop for SegmentGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.segment.lock.unlock(self.version);
    }
}

impl std::ops::Deref for SegmentGuard<'_> {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        self.segment
    }
}

impl<'s> SegmentGuard<'s> {
    #[inline]
    pub(super) fn new(segment: &'s Segment, version: u32) -> Self {
        Self { segment, version }
    }

    /// True if this is the guard of that segment.
    pub(in super::super) fn is_of(&self, segment: &Segment) -> bool {
        std::ptr::eq(self.segment, segment)
    }

    /// Replaces the state of a key.
    #[inline]
    pub(in super::super) fn set_state(&self, hit: LookupHit<'_>, state: PackedState) {
        hit.slot.set_state(state);
        self.note_dirty(state);
    }

    /// Inserts a new key; false if the segment is full.
    pub(in super::super) fn insert(&self, pages: &Pages, key: Key, state: PackedState) -> bool {
        let len = self.len();
        if len >= keys_max(self.page_count()) && !self.add_page(pages) {
            return false;
        }
        let is_placed = self.place(pages, key, state);
        self.set_len(len + usize::from(is_placed));
        is_placed
    }

    /// Removes a key, and its record from the overflow.
    pub(in super::super) fn remove(&self, pages: &Pages, index: usize) {
        let Some((_, state)) = self.read_slot(pages, index) else { return };
        self.vacate(pages, index);
        self.set_len(self.len() - 1);
        self.discard_overflow(state);
    }

    /// Appends all keys, in no order. The list is too large to be returned by value.
    pub(in super::super) fn read_keys(&self, pages: &Pages, keys: &mut KeyList) {
        for slot in self.slots(pages).filter(|slot| !slot.is_empty()) {
            if !keys.is_full() {
                keys.push((slot.key(), slot.state()));
            }
        }
    }

    /// Replaces all keys by these, and takes as many pages as they need.
    pub(in super::super) fn replace_all(&self, pages: &Pages, keys: &[(Key, PackedState)]) {
        let wanted = (1..PAGES).find(|count| keys_max(*count) > keys.len()).unwrap_or(PAGES);
        self.clear(pages);
        // Beyond some 670 million keys no page is left, and keys without a slot are dropped.
        self.resize(pages, wanted);
        let fitting = keys.iter().take(keys_max(self.page_count()));
        let placed = fitting.filter(|(key, state)| self.place(pages, *key, *state)).count();
        self.set_len(placed);
    }

    /// Removes all keys, and returns all pages. The records in the overflow stay.
    pub(in super::super) fn remove_all(&self, pages: &Pages) {
        self.clear(pages);
        self.resize(pages, 0);
        self.set_len(0);
    }

    /// Returns pages that stand empty. Half a page stays free, so that it is not taken again at once.
    pub(in super::super) fn return_pages(&self, pages: &Pages) {
        let count = self.page_count();
        if count > 1 && self.len() + PAGE_SLOTS / 2 < keys_max(count - 1) {
            let mut keys = KeyList::new();
            self.read_keys(pages, &mut keys);
            self.replace_all(pages, &keys);
        }
    }

    /// Adds a record to the overflow; returns its index.
    pub(in super::super) fn add_overflow(&self, record: Record) -> usize {
        self.overflow().add(record)
    }

    /// Takes the record of a state out of the overflow, if it stands there.
    pub(in super::super) fn take_overflow(&self, state: PackedState) -> Option<Record> {
        let index = state.overflow_index()?;
        self.overflow().take(index)
    }

    /// As [`take_overflow`](Self::take_overflow), where nobody needs the record.
    pub(in super::super) fn discard_overflow(&self, state: PackedState) {
        drop(self.take_overflow(state));
    }

    /// Reads or changes a record in the overflow.
    pub(in super::super) fn with_overflow<T>(
        &self,
        index: usize,
        act: impl FnOnce(&mut Record) -> T,
    ) -> Option<T> {
        self.overflow().get_mut(index).map(act)
    }

    pub(in super::super) fn set_depth(&self, bits: u32) {
        self.depth.store(u8::try_from(bits).unwrap_or(u8::MAX), Ordering::Relaxed);
    }

    /// The slots of a key's candidate lines.
    pub(in super::super) fn candidate_slots(
        &self,
        key: Key,
    ) -> impl Iterator<Item = usize> + use<> {
        placement_of(hash_of(key), self.page_count()).slots()
    }

    /// The next slot in turn for an eviction or a sweep, if there is any slot.
    pub(in super::super) fn next_slot(&self) -> Option<usize> {
        let slots = u16::try_from(self.slot_count()).ok()?;
        let slot = self.hand.load(Ordering::Relaxed).checked_rem(slots)?;
        self.hand.store(slot + 1, Ordering::Relaxed);
        Some(usize::from(slot))
    }

    /// True if a slot may be dirty; clears the flag.
    pub(in super::super) fn take_dirty(&self) -> bool {
        self.is_dirty.swap(false, Ordering::Relaxed)
    }

    fn set_len(&self, len: usize) {
        self.len.store(u16::try_from(len).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    /// Takes another page, and places all keys anew; false if the segment has all its pages.
    fn add_page(&self, pages: &Pages) -> bool {
        let page_count = self.page_count();
        if page_count >= PAGES {
            return false;
        }
        let mut keys = KeyList::new();
        self.read_keys(pages, &mut keys);
        self.clear(pages);
        let is_larger = self.resize(pages, page_count + 1);
        for (key, state) in &keys {
            // All of them had a slot before.
            self.place(pages, *key, *state);
        }
        is_larger
    }

    /// Takes or returns pages until there are as many as wanted. All slots are empty.
    fn resize(&self, pages: &Pages, wanted: usize) -> bool {
        let mut count = self.page_count();
        while count < wanted.min(PAGES)
            && let Some(page) = pages.take()
        {
            self.pages[count].store(page, Ordering::Relaxed);
            count += 1;
        }
        // A reader may still read a returned page for this segment. The fence makes sure that a reader who sees what
        // the next owner writes there also sees this segment's version change, and looks again.
        fence(Ordering::Release);
        while count > wanted {
            count -= 1;
            pages.give_back(self.pages[count].swap(0, Ordering::Relaxed));
        }
        self.page_count.store(u8::try_from(count).unwrap_or(0), Ordering::Relaxed);
        count == wanted
    }

    fn clear(&self, pages: &Pages) {
        self.slots(pages).for_each(Slot::clear);
    }

    fn slots<'p>(&self, pages: &'p Pages) -> impl Iterator<Item = Slot<'p>> {
        let pages = (0..self.page_count()).filter_map(|number| self.page(pages, number));
        pages.flat_map(|page| page.as_flattened()).map(Slot)
    }
}
