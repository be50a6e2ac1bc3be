//! The lock-free parts of the memory store, in the orders in which threads may run and see each other's
//! writes: all with up to three switches away from a thread that could go on. The files are those of
//! the store; only the atomics are loom's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]
#![allow(dead_code, reason = "the store uses more of these files")]

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use key::Key;
use packed_state::PackedState;
use seqlock::SeqLock;
use slot::Slot;
use sync::AtomicU64;

#[path = "../../src/store/memory/seqlock.rs"]
mod seqlock;
#[path = "../../src/store/memory/slot.rs"]
mod slot;

mod plans;

mod key {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Key(pub(crate) u128);
}

/// A state whose header counts what its payload counts, so that a test can compare both.
mod packed_state {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PackedState {
        pub(crate) header: u64,
        pub(crate) payload: u64,
    }

    impl PackedState {
        pub(crate) const EMPTY: Self = Self { header: 0, payload: 0 };

        pub(crate) const fn counting(count: u64) -> Self {
            Self { header: count << 3 | 2, payload: count }
        }

        pub(crate) const fn is_empty(self) -> bool {
            self.header & 7 == 0
        }

        pub(crate) const fn locked(self) -> Self {
            Self { header: self.header & !7 | 5, ..self }
        }

        pub(crate) const fn is_locked(self) -> bool {
            self.header & 7 == 5
        }
    }
}

/// loom takes what is sequentially consistent for less than that, but not its fences.
mod sync {
    pub(crate) use loom::sync::atomic::{Ordering, fence};

    macro_rules! atomic {
        ($name:ident, $word:ty) => {
            #[derive(Debug, Default)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(crate) fn load(&self, order: Ordering) -> $word {
                    if order == Ordering::SeqCst {
                        fence(Ordering::SeqCst);
                        return self.0.load(Ordering::Acquire);
                    }
                    self.0.load(order)
                }

                pub(crate) fn store(&self, word: $word, order: Ordering) {
                    self.0.store(word, order);
                }

                pub(crate) fn compare_exchange(
                    &self,
                    from: $word,
                    to: $word,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$word, $word> {
                    assert_eq!(order, Ordering::SeqCst, "both parties must see each other");
                    let exchanged = self.0.compare_exchange(from, to, Ordering::AcqRel, failed);
                    fence(Ordering::SeqCst);
                    exchanged
                }
            }
        };
    }
    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

    pub(crate) fn wait(_: &mut u32) {
        loom::thread::yield_now();
    }
}

const KEY: Key = Key(7 << 64 | 9);
const OTHER: Key = Key(8 << 64 | 9);

/// What a slot says of a key, if it holds it. It may have been emptied since it was seen to hold it, so
/// that what was read last decides.
fn state_of(slot: Slot<'_>, key: Key) -> Option<PackedState> {
    (slot.key() == key).then(|| slot.state()).filter(|state| !state.is_empty())
}

/// A segment of two slots, with one key.
#[derive(Default)]
struct Segment {
    lock: SeqLock,
    slots: [[AtomicU64; 4]; 2],
}

impl Segment {
    fn new() -> Self {
        let segment = Self::default();
        segment.slot(0).fill(KEY, PackedState::counting(0));
        segment
    }

    fn slot(&self, slot: usize) -> Slot<'_> {
        Slot(&self.slots[slot])
    }

    fn find(&self) -> Option<(Slot<'_>, PackedState)> {
        let slots = [self.slot(0), self.slot(1)];
        slots.into_iter().find_map(|slot| Some((slot, state_of(slot, KEY)?)))
    }

    /// Counts one more without holding anything, as a charge does; where it does not find the key, it
    /// makes sure.
    fn charge(&self) {
        self.charge_with(|seen| PackedState::counting(seen.payload + 1));
    }

    /// The same within one instant, so that the header stays as it is.
    fn charge_within_an_instant(&self) {
        self.charge_with(|seen| PackedState { payload: seen.payload + 1, ..seen });
    }

    fn charge_with(&self, more: fn(PackedState) -> PackedState) {
        loop {
            let version = self.lock.read();
            let Some((slot, seen)) = self.find() else { return self.charge_locked() };
            if self.try_replace(version, slot, seen, more(seen)) {
                return;
            }
            thread::yield_now();
        }
    }

    /// Replaces a state without locking the segment, as the store does.
    fn try_replace(
        &self,
        version: u32,
        slot: Slot<'_>,
        seen: PackedState,
        state: PackedState,
    ) -> bool {
        let is_locked = slot.try_lock(seen, || self.lock.is_unchanged_after_slot_lock(version));
        if is_locked {
            slot.unlock(state);
        }
        is_locked
    }

    /// What a reader sees that holds nothing.
    fn read(&self) -> PackedState {
        loop {
            let version = self.lock.read();
            if let Some((_, seen)) = self.find()
                && self.lock.is_unchanged(version)
            {
                return seen;
            }
            thread::yield_now();
        }
    }

    fn with_lock<T>(&self, act: impl FnOnce() -> T) -> T {
        loop {
            let version = self.lock.read();
            if self.lock.try_lock_from(version) {
                let done = act();
                self.lock.unlock(version);
                return done;
            }
            thread::yield_now();
        }
    }

    /// Counts one more while the segment is held.
    fn charge_locked(&self) {
        self.with_lock(|| {
            let (slot, seen) = self.find().unwrap();
            slot.set_state(PackedState::counting(seen.payload + 1));
        });
    }

    /// Moves the key to the other slot.
    fn shift(&self) {
        self.with_lock(|| {
            let (slot, seen) = self.find().unwrap();
            let other = usize::from(std::ptr::eq(slot.0, &raw const self.slots[0]));
            self.slot(other).fill(KEY, seen);
            slot.clear();
        });
    }

    /// Moves the key to the other slot, and puts another in its own, which owes nothing in the same state.
    fn make_room(&self) {
        self.with_lock(|| {
            let (slot, seen) = self.find().unwrap();
            self.slot(1).fill(KEY, seen);
            slot.clear();
            slot.fill(OTHER, PackedState::counting(0));
        });
    }

    /// Counts one more without holding anything, if the key is there.
    fn charge_if_there(&self) {
        loop {
            let version = self.lock.read();
            let Some((slot, seen)) = self.find() else { return };
            let more = PackedState { payload: seen.payload + 1, ..seen };
            if self.try_replace(version, slot, seen, more) {
                return;
            }
            thread::yield_now();
        }
    }

    /// Gives the slot to another key, which owes nothing in the same state.
    fn give_away(&self) {
        self.with_lock(|| {
            let (slot, _) = self.find().unwrap();
            slot.clear();
            slot.fill(OTHER, PackedState::counting(0));
        });
    }

    fn count(&self) -> u64 {
        let (_, seen) = self.find().unwrap();
        assert_eq!(
            seen,
            PackedState::counting(seen.payload),
            "header and payload are of one instant"
        );
        seen.payload
    }
}

/// Runs the acts at once, in every order that is tried.
fn at_once(acts: [fn(&Segment); 2], then: fn(&Segment)) {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let segment = Arc::new(Segment::new());
        let threads = acts.map(|act| {
            let segment = Arc::clone(&segment);
            thread::spawn(move || act(&segment))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        then(&segment);
    });
}

#[test]
fn no_charge_is_lost_among_those_who_hold_nothing() {
    at_once([Segment::charge, Segment::charge], |segment| assert_eq!(segment.count(), 2));
}

#[test]
fn no_charge_is_lost_within_one_instant() {
    at_once([Segment::charge_within_an_instant; 2], |segment| {
        assert_eq!(segment.find().unwrap().1.payload, 2);
    });
}

#[test]
fn no_charge_is_lost_to_one_that_holds_the_segment() {
    at_once([Segment::charge, Segment::charge_locked], |segment| assert_eq!(segment.count(), 2));
}

#[test]
fn a_charge_follows_a_key_that_is_moved() {
    at_once([Segment::charge, Segment::shift], |segment| {
        assert_eq!(segment.count(), 1);
        assert!(segment.slot(0).is_empty() && !segment.slot(1).is_empty(), "there once");
    });
}

#[test]
fn a_charge_never_meets_another_key_in_its_slot() {
    at_once([Segment::charge_if_there, Segment::give_away], |segment| {
        assert_eq!(state_of(segment.slot(0), OTHER), Some(PackedState::counting(0)));
    });
}

#[test]
fn a_charge_follows_a_key_that_makes_room_for_another() {
    at_once([Segment::charge, Segment::make_room], |segment| {
        assert_eq!(segment.count(), 1);
        assert_eq!(state_of(segment.slot(0), OTHER), Some(PackedState::counting(0)));
    });
}

#[test]
fn a_key_that_is_moved_back_is_charged_once() {
    let there_and_back = |segment: &Segment| {
        segment.shift();
        segment.shift();
    };
    at_once([Segment::charge, there_and_back], |segment| {
        assert_eq!(segment.count(), 1);
        assert!(segment.slot(1).is_empty(), "there once");
    });
}

#[test]
fn a_reader_sees_header_and_payload_of_one_instant() {
    let look = |segment: &Segment| {
        let seen = segment.read();
        assert_eq!(seen, PackedState::counting(seen.payload));
    };
    at_once([Segment::charge, look], |segment| assert_eq!(segment.count(), 1));
    at_once([Segment::charge_locked, look], |segment| assert_eq!(segment.count(), 1));
}
