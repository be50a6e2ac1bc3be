//! A slot: four atomic words, two for the key and two for its state. The third word is also the slot's lock.
//!
//! A charge to a state that fits the slot does not lock the segment. It locks the slot (the header says
//! "locked") and then compares the segment's version with the one from before the lookup. If the version is
//! unchanged, a later segment lock finds the slot locked and waits; else the charge puts the header back. The
//! holder of a segment changes the version first and reads slots afterwards, so that one of the two always
//! observes the other. What the holder has read stays valid, except that slot locks come and go. So the holder
//! replaces a header only by compare-and-exchange.
//!
//! While a key stays in its slot, an equal header means an equal state, except for the payload: two charges
//! within one microsecond leave the same header.

use super::packed_state::PackedState;
use crate::key::Key;
use crate::sync::{AtomicU64, Ordering, wait};

pub(super) const SLOT_WORDS: usize = 4;

/// The words of a slot: upper half of the key, lower half of the key, header, payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'p>(pub(super) &'p [AtomicU64; SLOT_WORDS]);

impl Slot<'_> {
    /// The key in the slot. A caller that does not hold the segment validates the version afterwards.
    #[inline]
    pub(super) fn key(self) -> Key {
        let [high, low, ..] = self.0;
        let word = |word: &AtomicU64| u128::from(word.load(Ordering::Relaxed));
        Key(word(high) << 64 | word(low))
    }

    /// True if the upper half of the key matches, which nearly always means that the whole key does.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "half of a key")]
    pub(super) fn may_hold(self, Key(key): Key) -> bool {
        let [high, ..] = self.0;
        high.load(Ordering::Relaxed) == (key >> 64) as u64
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        PackedState { header: self.header().load(Ordering::Relaxed), payload: 0 }.is_empty()
    }

    /// The state, header and payload of one instant. Waits while the slot is locked.
    #[inline]
    pub(super) fn state(self) -> PackedState {
        let mut spins = 0;
        loop {
            let header = self.header().load(Ordering::SeqCst);
            let state = PackedState { header, payload: self.payload().load(Ordering::Acquire) };
            if !state.is_locked() && self.header().load(Ordering::Relaxed) == header {
                return state;
            }
            wait(&mut spins);
        }
    }

    /// Locks the slot if its state is `expected` and `is_unchanged` confirms the segment's version. The holder of
    /// a slot lock waits for nothing and soon [unlocks](Self::unlock) the slot.
    #[inline(always)]
    pub(super) fn try_lock(
        self,
        expected: PackedState,
        is_unchanged: impl FnOnce() -> bool,
    ) -> bool {
        debug_assert!(!expected.is_empty(), "only the holder of the segment fills an empty slot");
        let (header, locked) = (self.header(), expected.locked().header);
        let exchanged =
            header.compare_exchange(expected.header, locked, Ordering::SeqCst, Ordering::Relaxed);
        if exchanged.is_err() {
            return false;
        }
        let is_as_expected =
            is_unchanged() && self.payload().load(Ordering::Relaxed) == expected.payload;
        if !is_as_expected {
            header.store(expected.header, Ordering::Release);
        }
        is_as_expected
    }

    /// Unlocks the slot, with this state.
    #[inline(always)]
    pub(super) fn unlock(self, state: PackedState) {
        self.payload().store(state.payload, Ordering::Release);
        self.header().store(state.header, Ordering::Release);
    }

    /// Replaces the state. Only the holder of the segment may.
    #[inline]
    pub(super) fn set_state(self, state: PackedState) {
        self.payload().store(state.payload, Ordering::Release);
        self.exchange_header(state.header);
    }

    /// Writes a key into an empty slot. Only the holder of the segment may.
    #[allow(clippy::cast_possible_truncation, reason = "a key is written as its two halves")]
    pub(super) fn fill(self, Key(key): Key, state: PackedState) {
        let [high, low, ..] = self.0;
        high.store((key >> 64) as u64, Ordering::Relaxed);
        low.store(key as u64, Ordering::Relaxed);
        self.unlock(state);
    }

    /// Empties the slot. The key's words stay. Only the holder of the segment may.
    pub(super) fn clear(self) {
        if !self.is_empty() {
            self.exchange_header(PackedState::EMPTY.header);
        }
    }

    /// Replaces the header as soon as nobody has locked the slot.
    #[inline]
    fn exchange_header(self, to: u64) {
        loop {
            let from = self.state().header;
            let exchanged =
                self.header().compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
            if exchanged.is_ok() {
                return;
            }
        }
    }

    #[inline]
    fn header(&self) -> &AtomicU64 {
        let [_, _, header, _] = self.0;
        header
    }

    #[inline]
    fn payload(&self) -> &AtomicU64 {
        let [_, _, _, payload] = self.0;
        payload
    }
}
