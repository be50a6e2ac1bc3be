//! Where the slots of a table are: pages that segments take and give back.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::shelf::Shelf;
use super::slot::Words;
use crate::key::Key;

/// How many slots a page has: twenty lines of a cache, of two slots each.
pub(super) const PAGE_SLOTS: usize = 40;
const SLOT_WORDS: usize = 4;

/// All pages of a table. They are never given back to the machine, so that whoever still reads a page
/// that has changed hands reads old words, never foreign memory.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Shelf<Page>,
    made: AtomicU32,
    free: Mutex<Vec<u32>>,
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Page([AtomicU64; PAGE_SLOTS * SLOT_WORDS]);

impl Default for Page {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; PAGE_SLOTS * SLOT_WORDS])
    }
}

impl Pages {
    /// The page of a number; zero is none.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Page> {
        self.pages.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// A page that nobody has; `None` where there can be no more.
    pub(super) fn take(&self) -> Option<u32> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if free.is_some() {
            return free;
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed).checked_add(1)?;
        self.pages.make(usize::try_from(number).ok()? - 1)?;
        Some(number)
    }

    pub(super) fn give_back(&self, number: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }
}

impl Page {
    /// The key and the words of a slot. Whoever does not hold the segment checks afterwards that it
    /// has not changed.
    #[inline]
    pub(super) fn read(&self, slot: usize) -> Option<(Key, Words)> {
        let [high, low, head, body] = self.0.get(slot * SLOT_WORDS..)?.first_chunk()?;
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let key = Key(u128::from(word(high)) << 64 | u128::from(word(low)));
        Some((key, Words { head: word(head), body: word(body) }))
    }

    #[inline]
    pub(super) fn write_words(&self, slot: usize, words: Words) {
        if let Some([_, _, head, body]) =
            self.0.get(slot * SLOT_WORDS..).and_then(|rest| rest.first_chunk())
        {
            head.store(words.head, Ordering::Relaxed);
            body.store(words.body, Ordering::Relaxed);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "a key is written as its two halves")]
    pub(super) fn write(&self, slot: usize, Key(key): Key, words: Words) {
        if let Some([high, low, ..]) =
            self.0.get(slot * SLOT_WORDS..).and_then(|rest| rest.first_chunk::<SLOT_WORDS>())
        {
            high.store((key >> 64) as u64, Ordering::Relaxed);
            low.store(key as u64, Ordering::Relaxed);
            self.write_words(slot, words);
        }
    }
}
