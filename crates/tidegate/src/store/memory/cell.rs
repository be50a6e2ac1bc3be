//! A slot in memory: four words, of which the third is its lock.
//!
//! Whoever charges a key that is in its slot does not hold its segment. It makes the head say that the slot is
//! locked, and then looks whether the segment's number is what it was when the key was found: if so,
//! whoever takes the segment from now on finds the slot locked and waits, and else the head is put back.
//! Whoever holds a segment changes the number first and then looks at the slot. So one of the two always
//! sees the other, and what the holder has read stays true but for locks that come and go: it replaces a
//! head only by comparing it.
//!
//! While a slot is not moved, an equal head means equal meaning: what is owed may differ within one
//! instant, and is a word by itself.

use super::slot::Words;
use crate::key::Key;
use crate::sync::{AtomicU64, Ordering, wait};

pub(super) const CELL_WORDS: usize = 4;

/// A slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell<'p>(pub(super) &'p [AtomicU64; CELL_WORDS]);

impl Cell<'_> {
    /// Whose it is. Whoever does not hold the segment checks afterwards that it has not changed.
    #[inline]
    pub(super) fn key(self) -> Key {
        let [high, low, ..] = self.0;
        let word = |word: &AtomicU64| u128::from(word.load(Ordering::Relaxed));
        Key(word(high) << 64 | word(low))
    }

    /// Whether it may be that of a key: by half of it, so that nearly always it is.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "half of a key")]
    pub(super) fn may_hold(self, Key(key): Key) -> bool {
        let [high, ..] = self.0;
        high.load(Ordering::Relaxed) == (key >> 64) as u64
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        Words { head: self.head().load(Ordering::Relaxed), body: 0 }.is_empty()
    }

    /// What it says, both words as they were at one instant. Waits while somebody charges it.
    #[inline]
    pub(super) fn words(self) -> Words {
        let mut spins = 0;
        loop {
            let words = self.seen();
            if !words.is_locked() && self.head().load(Ordering::Relaxed) == words.head {
                return words;
            }
            wait(&mut spins);
        }
    }

    /// What it says, maybe not both words as they were at one instant. Nothing is answered from it before
    /// it was [locked](Self::lock) so, which compares them.
    #[inline(always)]
    pub(super) fn seen(self) -> Words {
        let head = self.head().load(Ordering::SeqCst);
        Words { head, body: self.body().load(Ordering::Acquire) }
    }

    /// Replaces what was seen, if it is still so, without holding the segment; `is_yet` says whether
    /// that has its number yet, and `before` is done when nothing can come between any more.
    #[inline]
    pub(super) fn replace(
        self,
        seen: Words,
        words: Words,
        is_yet: impl FnOnce() -> bool,
        before: impl FnOnce(),
    ) -> bool {
        let is_locked = self.lock(seen, is_yet);
        if is_locked {
            before();
            self.unlock(words);
        }
        is_locked
    }

    /// Locks it as it was seen, without holding the segment; `is_yet` says whether that has its number
    /// yet. False where something has changed. Whoever has locked it waits for nothing, and soon
    /// [says what it says](Self::unlock).
    #[inline(always)]
    pub(super) fn lock(self, seen: Words, is_yet: impl FnOnce() -> bool) -> bool {
        debug_assert!(!seen.is_empty(), "whoever holds the segment writes to what is empty");
        let (head, locked) = (self.head(), seen.locked().head);
        if head.compare_exchange(seen.head, locked, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return false;
        }
        let is_as_seen = is_yet() && self.body().load(Ordering::Relaxed) == seen.body;
        if !is_as_seen {
            head.store(seen.head, Ordering::Release);
        }
        is_as_seen
    }

    /// Lets go of what was [locked](Self::lock): it says what it said then, or something new.
    #[inline(always)]
    pub(super) fn unlock(self, words: Words) {
        self.body().store(words.body, Ordering::Release);
        self.head().store(words.head, Ordering::Release);
    }

    /// Writes what it says now. Only whoever holds the segment does.
    #[inline]
    pub(super) fn set(self, words: Words) {
        self.body().store(words.body, Ordering::Release);
        self.set_head(words.head);
    }

    /// Puts a key in where there is none. Only whoever holds the segment does.
    #[allow(clippy::cast_possible_truncation, reason = "a key is written as its two halves")]
    pub(super) fn put(self, Key(key): Key, words: Words) {
        let [high, low, ..] = self.0;
        high.store((key >> 64) as u64, Ordering::Relaxed);
        low.store(key as u64, Ordering::Relaxed);
        self.body().store(words.body, Ordering::Release);
        self.head().store(words.head, Ordering::Release);
    }

    /// Empties it. Only whoever holds the segment does.
    pub(super) fn vacate(self) {
        if !self.is_empty() {
            self.set_head(Words::EMPTY.head);
        }
    }

    /// Replaces the head, as soon as nobody has locked it.
    #[inline]
    fn set_head(self, to: u64) {
        loop {
            let from = self.words().head;
            let replaced =
                self.head().compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
            if replaced.is_ok() {
                return;
            }
        }
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        let [_, _, head, _] = self.0;
        head
    }

    #[inline]
    fn body(&self) -> &AtomicU64 {
        let [_, _, _, body] = self.0;
        body
    }
}
