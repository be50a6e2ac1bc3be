//! A segment: a few hundred keys under one lock, which readers do not take.
//!
//! The lock is a number that is odd while somebody writes. A reader notes it, reads what it needs
//! (every word is atomic, so that nothing is ever torn within a word), and looks at the number again:
//! if it has not changed, all keys are where they were. A writer that has read so may take the lock
//! from that very number. A key that is charged in its slot needs no such lock: see
//! [`cell`](super::cell).
//!
//! The slots are a ring. A key stands at the place that its hash says or, where that is taken, at the
//! next free one; and where that is more than two lines away, keys between make room, as far as they stay
//! within two lines of their own (hopscotch hashing). When they are nearly full, a page is added and
//! all keys are placed anew.

mod held;
mod side;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) use held::{Held, Keys};
use side::Side;

use super::cell::Cell;
use super::pages::{LINE_SLOTS, PAGE_SLOTS, PAIR_SLOTS, Page, Pages, Pair};
use super::slot::Words;
use super::sync::wait;
use super::version::Version;
use crate::key::Key;
use crate::prefetch::prefetch;

const PAGES: usize = 9;
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
    /// The slot that is looked at next for keys that mean nothing.
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

/// Where a key stands if nobody else does: in the first of these slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home<'p>(&'p Pair);

/// The first of four things that are so, by which of them are: looked up, since the instruction for it
/// waits for whatever its register held before.
const FIRST: [u8; 1 << PAIR_SLOTS] = [0, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0];

impl<'p> Home<'p> {
    /// Asks for both lines, without waiting for them.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        let [[one, ..], _, [other, ..], _] = self.0;
        prefetch(one);
        prefetch(other);
    }

    /// The slot of a key, if it is in one of both lines.
    #[inline(always)]
    pub(super) fn cell_of(self, key: Key) -> Option<Cell<'p>> {
        Some(self.candidate(key)).filter(|cell| cell.key() == key)
    }

    /// The first of the slots that nobody has.
    pub(super) fn free(self) -> Option<Cell<'p>> {
        self.0.iter().map(Cell).find(|cell| cell.is_empty())
    }

    /// The slot that a key is in, if it is in one of these. In which of them nobody can guess, so that all
    /// are looked at before anything depends on it; both lines come together.
    #[inline(always)]
    fn candidate(self, key: Key) -> Cell<'p> {
        let may_hold = |slot: usize| usize::from(Cell(&self.0[slot]).may_hold(key)) << slot;
        let which = (0..PAIR_SLOTS).fold(0, |which, slot| which | may_hold(slot));
        Cell(&self.0[usize::from(FIRST[which])])
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

    /// Asks for the two lines behind those in which a key of a hash most likely stands.
    #[inline]
    pub(super) fn prefetch_behind(&self, pages: &Pages, hash: u64) {
        let (number, slot) = home_of(hash, self.used());
        let Some(page) = self.page(pages, number) else { return };
        for cell in page.iter().skip(slot + PAIR_SLOTS).step_by(LINE_SLOTS).take(2) {
            prefetch(cell);
        }
    }

    /// Where a key of a hash stands if nobody else does.
    #[inline(always)]
    pub(super) fn home<'p>(&self, pages: &'p Pages, hash: u64) -> Option<Home<'p>> {
        let (number, slot) = home_of(hash, self.used());
        let pair = pages.pair(self.pages.get(number)?.load(Ordering::Relaxed), slot)?;
        Some(Home(pair))
    }

    /// The slot of a key, looked for from its home to the first that is empty.
    #[cold]
    pub(super) fn cell_behind<'p>(
        &self,
        pages: &'p Pages,
        key: Key,
        hash: u64,
    ) -> Option<Cell<'p>> {
        let used = self.used();
        let (mut number, mut first) = home_of(hash, used);
        // The page that it begins in comes last again.
        for _ in 0..=used {
            for cell in self.page(pages, number)?.get(first..)?.iter().map(Cell) {
                if cell.is_empty() {
                    return None;
                }
                if cell.key() == key {
                    return Some(cell);
                }
            }
            (number, first) = (if number + 1 < used { number + 1 } else { 0 }, 0);
        }
        None
    }

    /// Replaces what was seen of a key without holding the segment, if it is to say something else and
    /// nothing has changed since; says whether that is so.
    #[inline(always)]
    pub(super) fn follow(&self, version: u32, found: Found<'_>, words: Option<Words>) -> bool {
        let Some(words) = words else { return self.is_still(version) };
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
        self.page(pages, slot / PAGE_SLOTS)?.get(slot % PAGE_SLOTS).map(Cell)
    }

    #[inline]
    fn page<'p>(&self, pages: &'p Pages, number: usize) -> Option<&'p Page> {
        pages.get(self.pages.get(number)?.load(Ordering::Relaxed))
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

/// What stands for a key everywhere in a table. Keys are keyed hashes already; this is so that also
/// those that somebody has counted from one are spread.
#[allow(clippy::cast_possible_truncation, reason = "the halves of a hash are hashes")]
#[inline]
pub(super) fn hash_of(Key(key): Key) -> u64 {
    (((key >> 64) as u64).rotate_left(29) ^ key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Where a key stands if nobody else does, as a page and a slot: at the beginning of a line, so that few
/// lines are read until it is found, and not of a page's last, so that the next is there too. The low bits
/// of a hash have chosen the segment.
#[allow(clippy::cast_possible_truncation, reason = "less than the number of pages, and of lines")]
#[inline]
fn home_of(hash: u64, used: usize) -> (usize, usize) {
    let spread = (hash >> 32) * used as u64;
    let line = ((spread & u64::from(u32::MAX)) * (PAGE_SLOTS as u64 / 2 - 1)) >> 32;
    ((spread >> 32) as usize, line as usize * 2)
}

/// The same as a number among all slots.
fn home_slot(key: Key, used: usize) -> usize {
    let (page, slot) = home_of(hash_of(key), used);
    page * PAGE_SLOTS + slot
}

#[inline]
const fn behind(slot: usize, slots: usize) -> usize {
    if slot + 1 < slots { slot + 1 } else { 0 }
}

/// How far a slot is behind another, in the ring.
#[inline]
const fn ahead(from: usize, slot: usize, slots: usize) -> usize {
    if slot >= from { slot - from } else { slot + slots - from }
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
