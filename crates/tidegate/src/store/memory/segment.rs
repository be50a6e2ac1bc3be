//! A segment: some two hundred keys under one lock, which readers do not take.
//!
//! The lock is a number that is odd while somebody writes. A reader notes it, reads what it needs
//! (every word is atomic, so that nothing is ever torn within a word), and looks at the number again:
//! if it has not changed, all of that was true at once. A writer that has read so may take the lock
//! from that very number, and then knows that what it read still holds.
//!
//! Keys are found through a small index of tags. Slots are dense: the last one moves into a gap.

mod held;
mod side;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) use held::Held;
use side::Side;

use super::pages::{PAGE_SLOTS, Page, Pages};
use super::slot::Words;
use crate::key::Key;

const PAGES: usize = 14;
/// The most keys of a segment.
pub(super) const SLOTS_MAX: usize = PAGES * PAGE_SLOTS;
const INDEX: usize = 256;
/// How often whoever waits looks again before it lets others run.
const SPINS: u32 = 128;

/// Some keys of a table. What a reader needs first is in the first line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Segment {
    /// Odd while it is held.
    version: AtomicU32,
    len: AtomicU8,
    /// How many bits of their hash its keys have in common.
    depth: AtomicU8,
    /// The slot that is looked at next for keys that mean nothing.
    hand: AtomicU8,
    /// Whether a slot may be marked as changed.
    changed: AtomicBool,
    pages: [AtomicU32; PAGES],
    /// A tag and a slot, counted from one; zero is empty. Keys stand at or behind the place that
    /// their hash says.
    index: [AtomicU16; INDEX],
    /// Records that do not fit a slot; only whoever holds the segment locks it.
    side: Mutex<Side>,
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            version: AtomicU32::new(0),
            len: AtomicU8::new(0),
            depth: AtomicU8::new(0),
            hand: AtomicU8::new(0),
            changed: AtomicBool::new(false),
            pages: [const { AtomicU32::new(0) }; PAGES],
            index: [const { AtomicU16::new(0) }; INDEX],
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

    pub(super) fn len(&self) -> usize {
        usize::from(self.len.load(Ordering::Relaxed))
    }

    /// Whether keys of this hash belong to the segment of this number, as far as it has been split.
    pub(super) fn owns(&self, number: usize, hash: u64) -> bool {
        let bits = self.depth();
        hash & !(u64::MAX.checked_shl(bits).unwrap_or(0)) == number as u64
    }

    pub(super) fn depth(&self) -> u32 {
        u32::from(self.depth.load(Ordering::Relaxed))
    }

    /// Looks for a key.
    #[inline]
    pub(super) fn find<'p>(&self, pages: &'p Pages, key: Key, hash: u64) -> Option<Found<'p>> {
        let (tag, home) = (tag_of(hash), home_of(hash));
        for step in 0..INDEX {
            let entry = self.index[(home + step) % INDEX].load(Ordering::Relaxed);
            if entry == 0 {
                return None;
            }
            if entry >> 8 == tag {
                let slot = slot_of(entry);
                if let Some(page) = self.page_of(pages, slot)
                    && let Some((found, words)) = page.read(slot % PAGE_SLOTS)
                    && found == key
                {
                    return Some(Found { slot, words, page });
                }
            }
        }
        None
    }

    /// The key and the words of a slot.
    pub(super) fn read(&self, pages: &Pages, slot: usize) -> Option<(Key, Words)> {
        self.page_of(pages, slot)?.read(slot % PAGE_SLOTS)
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
pub(super) fn hash_of(Key(key): Key) -> u64 {
    (((key >> 64) as u64).rotate_left(29) ^ key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn tag_of(hash: u64) -> u16 {
    u16::from(hash.to_be_bytes()[0])
}

fn home_of(hash: u64) -> usize {
    usize::from(hash.to_be_bytes()[1])
}

fn slot_of(entry: u16) -> usize {
    usize::from(entry & 0xff).wrapping_sub(1)
}

fn wait(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
