//! Where the slots of a table are: pages that segments take and give back.

use std::sync::PoisonError;

use super::cell::{CELL_WORDS, Cell};
use super::shelf::Shelf;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, zeroed};

/// How many lines of a cache a page has.
pub(super) const PAGE_LINES: usize = 32;
/// How many slots a line has.
pub(super) const LINE_SLOTS: usize = 2;
pub(super) const PAGE_SLOTS: usize = PAGE_LINES * LINE_SLOTS;
/// How many words a line of a cache has.
const LINE_WORDS: usize = 8;
const PAGE_WORDS: usize = PAGE_SLOTS * CELL_WORDS;
/// How many pages a lot has: so many that there are few lots. Fewer where words take more room.
const LOT_PAGES: usize = if cfg!(shuttle) { 16 } else { 1_024 };

/// All pages of a table. They are never given back to the machine, so that whoever still reads a page
/// that has changed hands reads old words, never foreign memory.
#[derive(Debug, Default)]
pub(super) struct Pages {
    lots: Shelf<Lot>,
    /// Page zero is nobody's.
    made: AtomicU32,
    free: Mutex<Vec<u32>>,
}

/// Some pages, zeroed by the machine as they are first written to: making a lot takes no time.
#[derive(Debug)]
struct Lot {
    words: Box<[AtomicU64; LOT_WORDS]>,
    /// Where the first line begins.
    first: usize,
}

/// More than the pages have: room to begin at a line.
const LOT_WORDS: usize = LOT_PAGES * PAGE_WORDS + LINE_WORDS;

impl Default for Lot {
    fn default() -> Self {
        let words = zeroed::<LOT_WORDS>();
        let first = words.as_ptr().align_offset(LINE_WORDS * size_of::<u64>()) % LINE_WORDS;
        Self { words, first }
    }
}

/// The slots of a line, each with its words.
pub(super) type Line = [[AtomicU64; CELL_WORDS]; LINE_SLOTS];
pub(super) type Page = [Line; PAGE_LINES];

impl Pages {
    /// The page of a number.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Page> {
        let number = number as usize;
        let lot = self.lots.get(number / LOT_PAGES)?;
        let first = lot.first % LINE_WORDS + number % LOT_PAGES * PAGE_WORDS;
        let words = lot.words.get(first..)?.first_chunk::<PAGE_WORDS>()?;
        words.as_chunks().0.as_chunks().0.first_chunk()
    }

    /// A page that nobody has, with empty slots; `None` where there can be no more.
    pub(super) fn take(&self) -> Option<u32> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if free.is_some() {
            return free;
        }
        let next = |made: u32| {
            let number = made.checked_add(1)?;
            self.lots.make(number as usize / LOT_PAGES).map(|_| number)
        };
        let made = self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        next(made)
    }

    /// Gives a page back, whose slots are empty.
    pub(super) fn give_back(&self, number: u32) {
        debug_assert!(
            self.get(number)
                .is_none_or(|page| page.as_flattened().iter().all(|slot| Cell(slot).is_empty())),
            "whoever takes it expects it so"
        );
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }
}
