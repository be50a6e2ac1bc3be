//! The memory of a store's slots: pages that segments take and return.

use std::sync::PoisonError;

use super::chunks::Chunks;
use super::slot::{SLOT_WORDS, Slot};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, zeroed};

/// How many cache lines a page has.
pub(super) const PAGE_LINES: usize = 32;
/// How many slots a cache line has.
pub(super) const LINE_SLOTS: usize = 2;
pub(super) const PAGE_SLOTS: usize = PAGE_LINES * LINE_SLOTS;
/// How many words a cache line has.
const LINE_WORDS: usize = 8;
const PAGE_WORDS: usize = PAGE_SLOTS * SLOT_WORDS;
/// How many pages a chunk has: many, so that there are few chunks. Fewer under shuttle, whose words are larger.
const CHUNK_PAGES: usize = if cfg!(shuttle) { 16 } else { 1_024 };
/// The words of a chunk's pages, and some more, so that the first page can begin at a cache line.
const CHUNK_WORDS: usize = CHUNK_PAGES * PAGE_WORDS + LINE_WORDS;

/// All pages of a store. Their memory is never freed: a reader of a page that has changed hands reads outdated
/// words, never foreign memory.
#[derive(Debug, Default)]
pub(super) struct Pages {
    chunks: Chunks<Chunk>,
    /// How many pages exist. No page has the number zero.
    created: AtomicU32,
    free: Mutex<Vec<u32>>,
}

/// Some pages. The operating system zeroes them on first use, so that creating a chunk takes no time.
#[derive(Debug)]
struct Chunk {
    words: Box<[AtomicU64; CHUNK_WORDS]>,
    /// The first word at the beginning of a cache line.
    first: usize,
}

impl Default for Chunk {
    fn default() -> Self {
        let words = zeroed::<CHUNK_WORDS>();
        let first = words.as_ptr().align_offset(LINE_WORDS * size_of::<u64>()) % LINE_WORDS;
        Self { words, first }
    }
}

/// The slots of a cache line, each with its words.
pub(super) type Line = [[AtomicU64; SLOT_WORDS]; LINE_SLOTS];
pub(super) type Page = [Line; PAGE_LINES];

impl Pages {
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Page> {
        let number = number as usize;
        let chunk = self.chunks.get(number / CHUNK_PAGES)?;
        let first = chunk.first % LINE_WORDS + number % CHUNK_PAGES * PAGE_WORDS;
        let words = chunk.words.get(first..)?.first_chunk::<PAGE_WORDS>()?;
        words.as_chunks().0.as_chunks().0.first_chunk()
    }

    /// Takes a free page with empty slots; `None` if there can be no more pages.
    pub(super) fn take(&self) -> Option<u32> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if free.is_some() {
            return free;
        }
        let next = |created: u32| {
            let number = created.checked_add(1)?;
            self.chunks.get_or_create(number as usize / CHUNK_PAGES).map(|_| number)
        };
        next(self.created.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?)
    }

    /// Returns a page, whose slots are empty.
    pub(super) fn give_back(&self, number: u32) {
        debug_assert!(
            self.get(number)
                .is_none_or(|page| page.as_flattened().iter().all(|slot| Slot(slot).is_empty())),
            "the next owner expects empty slots"
        );
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }
}

#[cfg(test)]
impl Pages {
    /// How many pages exist.
    pub(super) fn created(&self) -> u32 {
        self.created.load(Ordering::Relaxed)
    }
}
