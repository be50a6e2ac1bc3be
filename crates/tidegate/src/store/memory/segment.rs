//! A segment: a few hundred keys under one lock, which readers do not take.
//!
//! The lock is a number that is odd while somebody writes. A reader notes it, reads what it needs
//! (every word is atomic, so that nothing is ever torn within a word), and looks at the number again:
//! if it has not changed, all of that was true at once. A writer that has read so may take the lock
//! from that very number, and then knows that what it read still holds.
//!
//! The slots are a ring. A key stands at the place that its hash says or, where that is taken, at the
//! next free one. When they are nearly full, a page is added and all keys are placed anew.

mod held;
mod side;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) use held::{Held, Keys};
use side::Side;

use super::pages::{PAGE_SLOTS, Page, Pages};
use super::slot::Words;
use crate::key::Key;

const PAGES: usize = 13;
/// The most keys of a segment.
pub(super) const KEYS_MAX: usize = slots_filled(PAGES);
/// How often whoever waits looks again before it lets others run.
const SPINS: u32 = 128;

/// Some keys of a table. What a reader needs is in the first line, and stays in this order.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Segment {
    /// Odd while it is held.
    version: AtomicU32,
    /// How many keys there are.
    len: AtomicU16,
    /// How many bits of their hash they have in common.
    depth: AtomicU8,
    /// How many pages are in use.
    used: AtomicU8,
    pages: [AtomicU32; PAGES],
    /// Whether a slot may be marked as changed.
    changed: AtomicBool,
    /// The slot that is looked at next for keys that mean nothing.
    hand: AtomicU16,
    /// Records that do not fit a slot; only whoever holds the segment locks it.
    side: Mutex<Side>,
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            version: AtomicU32::new(0),
            len: AtomicU16::new(0),
            depth: AtomicU8::new(0),
            used: AtomicU8::new(0),
            pages: [const { AtomicU32::new(0) }; PAGES],
            changed: AtomicBool::new(false),
            hand: AtomicU16::new(0),
            side: Mutex::default(),
        }
    }
}

/// A key that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'p> {
    pub(super) slot: usize,
    pub(super) words: Words,
    page: &'p Page,
}

impl Segment {
    /// The number to compare with when all is read. Waits while somebody writes.
    #[inline]
    pub(super) fn version(&self) -> u32 {
        let mut spins = 0;
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                return version;
            }
            wait(&mut spins);
        }
    }

    /// Whether everything that was read since is true.
    #[inline]
    pub(super) fn is_still(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }

    /// Takes the lock if nothing has changed since.
    #[inline]
    pub(super) fn hold_from(&self, version: u32) -> Option<Held<'_>> {
        let exchange = self.version.compare_exchange(
            version,
            version.wrapping_add(1),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        exchange.ok().map(|version| Held::new(self, version))
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
        let version = self.version.load(Ordering::Acquire);
        if version.is_multiple_of(2) { self.hold_from(version) } else { None }
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        usize::from(self.len.load(Ordering::Relaxed))
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> usize {
        usize::from(self.used.load(Ordering::Relaxed)) * PAGE_SLOTS
    }

    /// Whether keys of this hash belong to the segment of this number, as far as it has been split.
    #[inline]
    pub(super) fn owns(&self, number: usize, hash: u64) -> bool {
        hash & !(u64::MAX.wrapping_shl(self.depth())) == number as u64
    }

    pub(super) fn depth(&self) -> u32 {
        u32::from(self.depth.load(Ordering::Relaxed))
    }

    /// Looks for a key.
    #[inline]
    pub(super) fn find<'p>(&self, pages: &'p Pages, key: Key, hash: u64) -> Option<Found<'p>> {
        let slots = self.slots();
        let mut slot = home_of(hash, slots);
        for _ in 0..slots {
            let page = self.page_of(pages, slot)?;
            let (found, words) = page.read(slot % PAGE_SLOTS)?;
            if found == key && !words.is_empty() {
                return Some(Found { slot, words, page });
            }
            if words.is_empty() {
                return None;
            }
            slot = behind(slot, slots);
        }
        None
    }

    #[inline]
    pub(super) fn touch(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn touch_slot(&self, pages: &Pages, hash: u64) -> u64 {
        let slots = self.slots();
        let head = |slot: usize| {
            let page = self.page_of(pages, slot);
            page.and_then(|page| page.read(slot % PAGE_SLOTS)).map_or(0, |(_, words)| words.head)
        };
        let slot = home_of(hash, slots);
        let next = if slot + 2 < slots { slot + 2 } else { 0 };
        head(slot) ^ head(next)
    }

    /// The key and the words of a slot, if it holds one.
    pub(super) fn read(&self, pages: &Pages, slot: usize) -> Option<(Key, Words)> {
        let read = self.page_of(pages, slot)?.read(slot % PAGE_SLOTS)?;
        Some(read).filter(|(_, words)| !words.is_empty())
    }

    #[inline]
    fn page_of<'p>(&self, pages: &'p Pages, slot: usize) -> Option<&'p Page> {
        pages.get(self.pages.get(slot / PAGE_SLOTS)?.load(Ordering::Relaxed))
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

/// Where a key stands if nobody else does: at the beginning of a line, so that few lines are read until
/// it is found. The low bits of a hash have chosen the segment.
#[allow(clippy::cast_possible_truncation, reason = "less than the number of slots")]
#[inline]
fn home_of(hash: u64, slots: usize) -> usize {
    (((hash >> 32) * slots as u64) >> 32) as usize & !1
}

#[inline]
const fn behind(slot: usize, slots: usize) -> usize {
    if slot + 1 < slots { slot + 1 } else { 0 }
}

/// How many keys so many pages have room for: more, and they would be looked for too long.
const fn slots_filled(pages: usize) -> usize {
    pages * PAGE_SLOTS * 17 / 20
}

fn wait(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_needs_is_in_one_line() {
        assert_eq!(std::mem::size_of::<Segment>(), 128);
        assert!(
            std::mem::offset_of!(Segment, side) >= 60 && std::mem::offset_of!(Segment, pages) == 8
        );
    }
}
