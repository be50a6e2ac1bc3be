//! A segment that is held: what may be done to it.

use arrayvec::ArrayVec;

use super::{Found, KEYS_MAX, PAGES, Segment, hash_of, slots_filled, spot_of};
use crate::key::Key;
use crate::store::memory::cell::Cell;
use crate::store::memory::pages::Pages;
use crate::store::memory::record::Record;
use crate::store::memory::slot::Words;
use crate::sync::{Ordering, fence};

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
        self.segment.version.let_go(self.version);
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
        Self { segment, version }
    }

    /// Writes the words of a key that is there.
    #[inline]
    pub(in super::super) fn set(&self, found: Found<'_>, words: Words) {
        found.cell.set(words);
        self.note_change(words);
    }

    /// Puts a key in that is not there; false where there is no room.
    pub(in super::super) fn insert(&self, pages: &Pages, key: Key, words: Words) -> bool {
        let (len, used) = (self.len(), self.used());
        if len >= slots_filled(used) && !self.widen(pages) {
            return false;
        }
        let is_placed = self.place(pages, key, words);
        self.set_len(len + usize::from(is_placed));
        is_placed
    }

    /// Lets a key go; returns its record, if it is kept in full.
    pub(in super::super) fn remove(&self, pages: &Pages, slot: usize) -> Option<Record> {
        let (_, words) = self.read(pages, slot)?;
        self.close(pages, slot);
        self.set_len(self.len() - 1);
        self.side().take(words.place()?)
    }

    /// Adds all keys, in no order. Returned, they would be moved, which takes longer than to find them.
    pub(in super::super) fn read_keys(&self, pages: &Pages, keys: &mut Keys) {
        self.each_cell(pages, |cell| {
            if !cell.is_empty() && !keys.is_full() {
                keys.push((cell.key(), cell.words()));
            }
        });
    }

    /// Has these keys from now on, and as many pages as they need.
    pub(in super::super) fn replace_all(&self, pages: &Pages, keys: &[(Key, Words)]) {
        let used = (1..PAGES).find(|used| slots_filled(*used) > keys.len()).unwrap_or(PAGES);
        self.clear(pages);
        // Where there are no more pages, behind some 670 million keys, what has no room is forgotten.
        self.use_pages(pages, used);
        let fitting = keys.iter().take(slots_filled(self.used()));
        let placed = fitting.filter(|(key, words)| self.place(pages, *key, *words)).count();
        self.set_len(placed);
    }

    /// Keeps a record in full; returns where.
    pub(in super::super) fn keep(&self, record: Record) -> usize {
        self.side().put(record)
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

    /// The slots in which a key nearly always stands.
    pub(in super::super) fn slots_at_home(&self, key: Key) -> impl Iterator<Item = usize> + use<> {
        spot_of(hash_of(key), self.used()).slots()
    }

    /// The next slot to be looked at for a key that can go, if there is any.
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

    fn set_len(&self, len: usize) {
        self.len.store(u16::try_from(len).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    /// Takes a page more, and places all keys anew; false where there cannot be so many.
    fn widen(&self, pages: &Pages) -> bool {
        let used = self.used();
        if used >= PAGES {
            return false;
        }
        let mut keys = Keys::new();
        self.read_keys(pages, &mut keys);
        self.clear(pages);
        let is_wider = self.use_pages(pages, used + 1);
        for (key, words) in &keys {
            // All of them had room before.
            self.place(pages, *key, *words);
        }
        is_wider
    }

    /// Takes pages, or gives them back, until there are so many. All slots are empty.
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
        self.each_cell(pages, Cell::vacate);
    }

    /// Does something with every slot, a page at a time.
    fn each_cell<'p>(&self, pages: &'p Pages, mut act: impl FnMut(Cell<'p>)) {
        for page in (0..self.used()).filter_map(|number| self.page(pages, number)) {
            page.as_flattened().iter().map(Cell).for_each(&mut act);
        }
    }
}
