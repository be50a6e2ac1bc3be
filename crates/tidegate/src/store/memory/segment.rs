//! A segment: a few hundred keys under one lock, which readers do not take.
//!
//! The lock is a number that is odd while somebody writes. A reader notes it, reads what it needs
//! (every word is atomic, so that nothing is ever torn within a word), and looks at the number again:
//! if it has not changed, all keys are where they were. A writer that has read so may take the lock
//! from that very number. A key that is charged in its slot needs no such lock: see
//! [`cell`](super::cell).
//!
//! A key stands in one of two lines that its hash says (see [`home`]), or else, where no room can be made
//! there, behind the first of them: all slots are a ring. When they are nearly full, a page is added and
//! all keys are placed anew.

mod held;
mod home;
mod placing;
mod side;

use std::sync::PoisonError;

pub(super) use held::{Held, Keys};
pub(super) use home::Home;
use home::{Spot, spot_of};
use side::Side;

use super::cell::Cell;
use super::pages::{PAGE_SLOTS, Page, Pages};
use super::slot::Words;
use super::version::Version;
use crate::key::Key;
use crate::prefetch::prefetch;
use crate::sync::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Mutex, MutexGuard, Ordering, wait};

const PAGES: usize = 8;
/// The most keys of a segment.
pub(super) const KEYS_MAX: usize = slots_filled(PAGES);

/// Some keys of a table. All of it is in one line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Segment {
    /// Odd while it is held.
    version: Version,
    /// How many keys there are.
    len: AtomicU16,
    /// How many bits of their hash they have in common.
    depth: AtomicU8,
    /// How many pages are in use.
    used: AtomicU8,
    pages: [AtomicU32; PAGES],
    /// The slot that is looked at next for a key that can go.
    hand: AtomicU16,
    /// Whether a slot may be marked as changed.
    changed: AtomicBool,
    /// Records that do not fit a slot; only whoever holds the segment locks it.
    side: Mutex<Side>,
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            version: Version::default(),
            len: AtomicU16::new(0),
            depth: AtomicU8::new(0),
            used: AtomicU8::new(0),
            pages: [const { AtomicU32::new(0) }; PAGES],
            hand: AtomicU16::new(0),
            changed: AtomicBool::new(false),
            side: Mutex::default(),
        }
    }
}

/// A key that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'p> {
    pub(super) cell: Cell<'p>,
    pub(super) words: Words,
}

impl Found<'_> {
    /// Lets go of a key that was [locked](Segment::lock), and says what it said.
    pub(super) fn release(self) {
        self.cell.unlock(self.words);
    }
}

impl Segment {
    /// The number to compare with when all is read. Waits while somebody writes.
    #[inline]
    pub(super) fn version(&self) -> u32 {
        self.version.read()
    }

    /// Whether everything that was read since is true.
    #[inline]
    pub(super) fn is_still(&self, version: u32) -> bool {
        self.version.is_still(version)
    }

    /// Takes the lock if nothing has changed since.
    #[inline]
    pub(super) fn hold_from(&self, version: u32) -> Option<Held<'_>> {
        self.version.hold_from(version).then(|| Held::new(self, version))
    }

    /// Takes the lock, and waits for it.
    pub(super) fn hold(&self) -> Held<'_> {
        let mut spins = 0;
        loop {
            if let Some(held) = self.hold_from(self.version()) {
                return held;
            }
            wait(&mut spins);
        }
    }

    /// Takes the lock if nobody has it.
    pub(super) fn try_hold(&self) -> Option<Held<'_>> {
        let version = self.version.peek();
        if version.is_multiple_of(2) { self.hold_from(version) } else { None }
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        usize::from(self.len.load(Ordering::Relaxed))
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> usize {
        self.used() * PAGE_SLOTS
    }

    /// Whether keys of this hash belong to the segment of this number, as far as it has been split.
    #[inline]
    pub(super) fn owns(&self, number: usize, hash: u64) -> bool {
        hash & !(u64::MAX.wrapping_shl(self.depth())) == number as u64
    }

    pub(super) fn depth(&self) -> u32 {
        u32::from(self.depth.load(Ordering::Relaxed))
    }

    /// Looks for a key. Its slot may have been emptied since it was seen to hold it, so that what was read
    /// last decides.
    #[inline(always)]
    pub(super) fn find<'p>(&self, pages: &'p Pages, key: Key, hash: u64) -> Option<Found<'p>> {
        let home = self.home(pages, hash)?;
        let cell = home.cell_of(key).or_else(|| self.cell_behind(pages, key, hash))?;
        Some(Found { cell, words: cell.words() }).filter(|found| !found.words.is_empty())
    }

    /// Asks for what is behind the lines in which a key of a hash nearly always stands.
    #[inline]
    pub(super) fn prefetch_behind(&self, pages: &Pages, hash: u64) {
        let Spot { page, lines: [line, _] } = spot_of(hash, self.used());
        let Some(page) = self.page(pages, page) else { return };
        page.iter().skip(line + 1).take(2).for_each(prefetch);
    }

    /// The lines in which a key of a hash nearly always stands.
    #[inline(always)]
    pub(super) fn home<'p>(&self, pages: &'p Pages, hash: u64) -> Option<Home<'p>> {
        let Spot { page, lines: [line, other] } = spot_of(hash, self.used());
        let page = self.page(pages, page)?;
        Some(Home([&page[line], &page[other]]))
    }

    /// The slot of a key that was not found at once: at home, if half of it is that of another's there, or
    /// behind, up to the first that is empty.
    #[cold]
    fn cell_behind<'p>(&self, pages: &'p Pages, key: Key, hash: u64) -> Option<Cell<'p>> {
        let is_it = |cell: &Cell<'p>| cell.key() == key && !cell.is_empty();
        if let Some(cell) = self.home(pages, hash)?.cells().find(is_it) {
            return Some(cell);
        }
        let mut taken = self.ring(pages, hash).take_while(|cell| !cell.is_empty());
        taken.find(|cell| cell.key() == key)
    }

    /// All slots from the first line of a key on, and round.
    fn ring<'p>(&self, pages: &'p Pages, hash: u64) -> impl Iterator<Item = Cell<'p>> {
        let used = self.used();
        let Spot { page: first, lines: [line, _] } = spot_of(hash, used);
        // The page that it begins in comes last again.
        let lines = (0..=used).map_while(move |turn| {
            let page = self.page(pages, (first + turn).checked_rem(used)?)?;
            page.get(if turn == 0 { line } else { 0 }..)
        });
        lines.flatten().flatten().map(Cell)
    }

    /// Replaces what was seen of a key, if it is to say something else, and says whether nothing has changed
    /// since. The segment is not held.
    #[inline(always)]
    pub(super) fn follow(&self, version: u32, found: Found<'_>, words: Option<Words>) -> bool {
        match words {
            Some(words) => self.replace(version, found, words),
            None => self.is_still(version),
        }
    }

    /// Replaces what was seen of a key without holding the segment, if nothing has changed since; says
    /// whether that is so.
    #[inline(always)]
    pub(super) fn replace(&self, version: u32, found: Found<'_>, words: Words) -> bool {
        let is_yet = || self.version.is_yet(version);
        found.cell.replace(found.words, words, is_yet, || self.note_change(words))
    }

    /// Locks a key without holding the segment, if nothing has changed since it was seen.
    #[inline(always)]
    pub(super) fn lock(&self, version: u32, found: Found<'_>) -> bool {
        found.cell.lock(found.words, || self.version.is_yet(version))
    }

    /// Lets go of a key that was [locked](Self::lock), which says this now.
    #[inline(always)]
    pub(super) fn unlock(&self, found: Found<'_>, words: Words) {
        self.note_change(words);
        found.cell.unlock(words);
    }

    /// The key and the words of a slot, if it holds one.
    pub(super) fn read(&self, pages: &Pages, slot: usize) -> Option<(Key, Words)> {
        let cell = self.cell(pages, slot).filter(|cell| !cell.is_empty())?;
        Some((cell.key(), cell.words()))
    }

    #[inline]
    fn cell<'p>(&self, pages: &'p Pages, slot: usize) -> Option<Cell<'p>> {
        self.page(pages, slot / PAGE_SLOTS)?.as_flattened().get(slot % PAGE_SLOTS).map(Cell)
    }

    /// One of its pages. No hash and no slot names one beyond the last, and it is not looked at again.
    #[inline]
    fn page<'p>(&self, pages: &'p Pages, number: usize) -> Option<&'p Page> {
        debug_assert!(number < PAGES, "it has no more");
        pages.get(self.pages[number % PAGES].load(Ordering::Relaxed))
    }

    #[inline]
    fn used(&self) -> usize {
        usize::from(self.used.load(Ordering::Relaxed))
    }

    /// Notes that a slot is marked as changed, if it is. Nearly always that is known.
    #[inline]
    fn note_change(&self, words: Words) {
        if words.is_changed() && !self.changed.load(Ordering::Relaxed) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    fn side(&self) -> MutexGuard<'_, Side> {
        self.side.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What says where a key stands in a table: half of it. Keys are keyed hashes, whose bits are all even there.
#[allow(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
#[inline]
pub(super) const fn hash_of(Key(key): Key) -> u64 {
    (key >> 64) as u64
}

/// The slot behind one, in the ring.
#[inline]
const fn next(slot: usize, slots: usize) -> usize {
    if slot + 1 < slots { slot + 1 } else { 0 }
}

/// How far it is from a slot to another, in the ring.
#[inline]
const fn distance(from: usize, to: usize, slots: usize) -> usize {
    if to >= from { to - from } else { to + slots - from }
}

/// How many keys so many pages have room for: more, and they would be looked for too long.
const fn slots_filled(pages: usize) -> usize {
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
