//! A segment that is held: what may be done to it.

use std::sync::atomic::{Ordering, fence};

use super::{Found, INDEX, PAGE_SLOTS, SLOTS_MAX, Segment, hash_of, home_of, slot_of, tag_of};
use crate::key::Key;
use crate::store::memory::pages::Pages;
use crate::store::memory::record::Record;
use crate::store::memory::slot::Words;

/// A segment that nobody else writes to until this is dropped.
#[derive(Debug)]
pub(in super::super) struct Held<'s> {
    segment: &'s Segment,
    /// The number that it had before.
    version: u32,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.segment.version.store(self.version.wrapping_add(2), Ordering::Release);
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        self.segment
    }
}

impl<'s> Held<'s> {
    pub(super) fn new(segment: &'s Segment, version: u32) -> Self {
        // What is written from here on is not seen before the number is odd.
        fence(Ordering::Release);
        Self { segment, version }
    }

    /// Writes the words of a key that is there.
    #[inline]
    pub(in super::super) fn set(&self, found: Found<'_>, words: Words) {
        found.page.write_words(found.slot % PAGE_SLOTS, words);
        if words.is_changed() {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    /// Puts a key in that is not there; false where there is no room.
    pub(in super::super) fn insert(&self, pages: &Pages, key: Key, words: Words) -> bool {
        let slot = self.len();
        if slot >= SLOTS_MAX {
            return false;
        }
        if slot.is_multiple_of(PAGE_SLOTS) {
            let Some(page) = pages.take() else { return false };
            self.pages[slot / PAGE_SLOTS].store(page, Ordering::Relaxed);
        }
        if let Some(page) = self.page_of(pages, slot) {
            page.write(slot % PAGE_SLOTS, key, words);
        }
        if words.is_changed() {
            self.changed.store(true, Ordering::Relaxed);
        }
        self.set_len(slot + 1);
        self.link(hash_of(key), slot);
        true
    }

    /// Lets a key go; returns its record, if it is kept in full.
    pub(in super::super) fn remove(&self, pages: &Pages, slot: usize) -> Option<Record> {
        let (key, words) = self.read(pages, slot)?;
        self.unlink(pages, hash_of(key), slot);
        let last = self.len() - 1;
        if slot != last
            && let Some((key, words)) = self.read(pages, last)
            && let Some(entry) = self.entry_of(hash_of(key), last)
        {
            if let Some(page) = self.page_of(pages, slot) {
                page.write(slot % PAGE_SLOTS, key, words);
            }
            self.index[entry].store(entry_for(hash_of(key), slot), Ordering::Relaxed);
        }
        self.set_len(last);
        if last.is_multiple_of(PAGE_SLOTS) {
            pages.give_back(self.pages[last / PAGE_SLOTS].swap(0, Ordering::Relaxed));
        }
        self.side().take(words.place()?)
    }

    /// Keeps a record in full; returns what its slot says.
    pub(in super::super) fn keep(&self, record: Record) -> Words {
        let end_us = record.end_us();
        Words::boxed(self.side().put(record), end_us)
    }

    /// Takes a record out that is kept in full.
    pub(in super::super) fn take(&self, place: usize) -> Option<Record> {
        self.side().take(place)
    }

    /// Looks at a record that is kept in full.
    pub(in super::super) fn look<T>(
        &self,
        place: usize,
        look: impl FnOnce(&mut Record) -> T,
    ) -> Option<T> {
        self.side().get(place).map(look)
    }

    pub(in super::super) fn set_depth(&self, bits: u32) {
        self.depth.store(u8::try_from(bits).unwrap_or(u8::MAX), Ordering::Relaxed);
    }

    /// The next slot to be looked at in passing, if there is any.
    pub(in super::super) fn next_slot(&self) -> Option<usize> {
        let len = self.len.load(Ordering::Relaxed);
        let slot = self.hand.load(Ordering::Relaxed).checked_rem(len)?;
        self.hand.store(slot + 1, Ordering::Relaxed);
        Some(usize::from(slot))
    }

    /// Whether a slot may be marked as changed; from now on none is.
    pub(in super::super) fn was_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    fn set_len(&self, len: usize) {
        // A segment has fewer slots than a byte can count.
        self.len.store(u8::try_from(len).unwrap_or(u8::MAX), Ordering::Relaxed);
    }

    fn link(&self, hash: u64, slot: usize) {
        let home = home_of(hash);
        let is_free = |entry: &usize| self.index[*entry].load(Ordering::Relaxed) == 0;
        // There are more entries than slots.
        if let Some(entry) = (0..INDEX).map(|step| (home + step) % INDEX).find(is_free) {
            self.index[entry].store(entry_for(hash, slot), Ordering::Relaxed);
        }
    }

    /// Where the index names a slot.
    fn entry_of(&self, hash: u64, slot: usize) -> Option<usize> {
        let (home, entry) = (home_of(hash), entry_for(hash, slot));
        let is = |at: &usize| self.index[*at].load(Ordering::Relaxed) == entry;
        (0..INDEX).map(|step| (home + step) % INDEX).find(is)
    }

    /// Takes a slot out of the index, and moves up what stands behind it only because of it.
    fn unlink(&self, pages: &Pages, hash: u64, slot: usize) {
        let Some(mut gap) = self.entry_of(hash, slot) else { return };
        let mut at = gap;
        loop {
            at = (at + 1) % INDEX;
            let entry = self.index[at].load(Ordering::Relaxed);
            // There are more entries than slots: some are empty.
            if entry == 0 {
                break;
            }
            let Some((key, _)) = self.read(pages, slot_of(entry)) else { break };
            let way = |from: usize| (at + INDEX - from) % INDEX;
            if way(home_of(hash_of(key))) >= way(gap) {
                self.index[gap].store(entry, Ordering::Relaxed);
                gap = at;
            }
        }
        self.index[gap].store(0, Ordering::Relaxed);
    }
}

fn entry_for(hash: u64, slot: usize) -> u16 {
    tag_of(hash) << 8 | u16::try_from(slot + 1).unwrap_or(0)
}
