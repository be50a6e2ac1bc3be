//! A segment that is held: what may be done to it.

use std::sync::atomic::{Ordering, fence};

use arrayvec::ArrayVec;

use super::{Found, KEYS_MAX, PAGE_SLOTS, PAGES, Segment, behind, hash_of, home_of, slots_filled};
use crate::key::Key;
use crate::store::memory::pages::Pages;
use crate::store::memory::record::Record;
use crate::store::memory::slot::Words;

/// All keys of a segment.
pub(in super::super) type Keys = ArrayVec<(Key, Words), KEYS_MAX>;

/// A segment that nobody else writes to until this is dropped.
#[derive(Debug)]
pub(in super::super) struct Held<'s> {
    segment: &'s Segment,
    /// The number that it had before.
    version: u32,
}

impl Drop for Held<'_> {
    #[inline]
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
    #[inline]
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
        let (len, used) = (self.len(), self.used());
        if len >= slots_filled(used) && !self.place_anew(pages, used + 1) {
            return false;
        }
        self.place(pages, key, words);
        self.set_len(len + 1);
        true
    }

    /// Lets a key go; returns its record, if it is kept in full.
    pub(in super::super) fn remove(&self, pages: &Pages, slot: usize) -> Option<Record> {
        let (_, words) = self.read(pages, slot)?;
        self.close(pages, slot);
        self.set_len(self.len() - 1);
        self.side().take(words.place()?)
    }

    /// All keys, in no order.
    pub(in super::super) fn keys(&self, pages: &Pages) -> Keys {
        (0..self.slots()).filter_map(|slot| self.read(pages, slot)).take(KEYS_MAX).collect()
    }

    /// Has these keys from now on, and as many pages as they need.
    pub(in super::super) fn replace(&self, pages: &Pages, keys: &[(Key, Words)]) {
        let used = (1..PAGES).find(|used| slots_filled(*used) > keys.len()).unwrap_or(PAGES);
        // There are more numbers for pages than there can be memory, so that there is always one.
        self.use_pages(pages, used);
        self.clear(pages);
        keys.iter().for_each(|(key, words)| self.place(pages, *key, *words));
        self.set_len(keys.len());
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
        let slots = u16::try_from(self.slots()).ok()?;
        let slot = self.hand.load(Ordering::Relaxed).checked_rem(slots)?;
        self.hand.store(slot + 1, Ordering::Relaxed);
        Some(usize::from(slot))
    }

    /// Whether a slot may be marked as changed; from now on none is.
    pub(in super::super) fn was_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    fn used(&self) -> usize {
        usize::from(self.used.load(Ordering::Relaxed))
    }

    fn set_len(&self, len: usize) {
        self.len.store(u16::try_from(len).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    /// Writes a key to the first free slot for it.
    fn place(&self, pages: &Pages, key: Key, words: Words) {
        let slots = self.slots();
        let mut slot = home_of(hash_of(key), slots);
        for _ in 0..slots {
            if self.read(pages, slot).is_none() {
                break;
            }
            slot = behind(slot, slots);
        }
        if let Some(page) = self.page_of(pages, slot) {
            page.write(slot % PAGE_SLOTS, key, words);
        }
        if words.is_changed() {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    /// Empties a slot, and moves up what stands behind it only because of it.
    fn close(&self, pages: &Pages, slot: usize) {
        let slots = self.slots();
        let (mut gap, mut slot) = (slot, slot);
        loop {
            slot = behind(slot, slots);
            // Some slots are always empty.
            let Some((key, words)) = self.read(pages, slot) else { break };
            let way = |from: usize| if slot >= from { slot - from } else { slot + slots - from };
            if way(home_of(hash_of(key), slots)) >= way(gap) {
                self.write(pages, gap, key, words);
                gap = slot;
            }
        }
        self.write(pages, gap, Key(0), Words::EMPTY);
    }

    /// Places all keys anew on so many pages; false where there cannot be so many.
    fn place_anew(&self, pages: &Pages, used: usize) -> bool {
        let keys = self.keys(pages);
        let is_placed = self.use_pages(pages, used);
        if is_placed {
            self.clear(pages);
            keys.iter().for_each(|(key, words)| self.place(pages, *key, *words));
        }
        is_placed
    }

    /// Takes pages, or gives them back, until there are so many.
    fn use_pages(&self, pages: &Pages, wanted: usize) -> bool {
        let mut used = self.used();
        while used < wanted.min(PAGES)
            && let Some(page) = pages.take()
        {
            self.pages[used].store(page, Ordering::Relaxed);
            used += 1;
        }
        // Somebody may still read a page for the segment that gave it back. Whoever sees what is written
        // there from here on then sees that segment's number as it was when it gave it, or later, and
        // looks again.
        fence(Ordering::Release);
        while used > wanted {
            used -= 1;
            pages.give_back(self.pages[used].swap(0, Ordering::Relaxed));
        }
        self.used.store(u8::try_from(used).unwrap_or(0), Ordering::Relaxed);
        used == wanted
    }

    fn clear(&self, pages: &Pages) {
        (0..self.slots()).for_each(|slot| self.write(pages, slot, Key(0), Words::EMPTY));
    }

    fn write(&self, pages: &Pages, slot: usize, key: Key, words: Words) {
        if let Some(page) = self.page_of(pages, slot) {
            page.write(slot % PAGE_SLOTS, key, words);
        }
    }
}
