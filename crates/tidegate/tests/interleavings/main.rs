//! The lock-free parts of the memory store, in the orders in which threads may run and see each other's
//! writes: all with up to three switches away from a thread that could go on. The files are those of
//! the store; only the atomics are loom's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]
#![allow(dead_code, reason = "the store uses more of these files")]

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use cell::Cell;
use key::Key;
use slot::Words;
use sync::AtomicU64;
use version::Version;

#[path = "../../src/store/memory/cell.rs"]
mod cell;
#[path = "../../src/store/memory/version.rs"]
mod version;

mod plans;

mod key {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Key(pub(crate) u128);
}

/// A slot whose head counts what its body counts, so that both can be compared.
mod slot {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Words {
        pub(crate) head: u64,
        pub(crate) body: u64,
    }

    impl Words {
        pub(crate) const EMPTY: Self = Self { head: 0, body: 0 };

        pub(crate) const fn counting(count: u64) -> Self {
            Self { head: count << 3 | 2, body: count }
        }

        pub(crate) const fn is_empty(self) -> bool {
            self.head & 7 == 0
        }

        pub(crate) const fn locked(self) -> Self {
            Self { head: self.head & !7 | 5, ..self }
        }

        pub(crate) const fn is_locked(self) -> bool {
            self.head & 7 == 5
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
fn words_of(cell: Cell<'_>, key: Key) -> Option<Words> {
    (cell.key() == key).then(|| cell.words()).filter(|words| !words.is_empty())
}

/// A segment of two slots, with one key.
#[derive(Default)]
struct Segment {
    version: Version,
    slots: [[AtomicU64; 4]; 2],
}

impl Segment {
    fn new() -> Self {
        let segment = Self::default();
        segment.cell(0).put(KEY, Words::counting(0));
        segment
    }

    fn cell(&self, slot: usize) -> Cell<'_> {
        Cell(&self.slots[slot])
    }

    fn find(&self) -> Option<(Cell<'_>, Words)> {
        let cells = [self.cell(0), self.cell(1)];
        cells.into_iter().find_map(|cell| Some((cell, words_of(cell, KEY)?)))
    }

    /// Counts one more without holding anything, as a charge does; where it does not find the key, it
    /// makes sure.
    fn charge(&self) {
        self.charge_with(|seen| Words::counting(seen.body + 1));
    }

    /// The same within one instant, so that the head stays as it is.
    fn charge_within_an_instant(&self) {
        self.charge_with(|seen| Words { body: seen.body + 1, ..seen });
    }

    fn charge_with(&self, more: fn(Words) -> Words) {
        loop {
            let version = self.version.read();
            let Some((cell, seen)) = self.find() else { return self.charge_held() };
            if cell.replace(seen, more(seen), || self.version.is_yet(version), || {}) {
                return;
            }
            thread::yield_now();
        }
    }

    /// Counts one more as a batch does, which reads both words but once; else in another way.
    fn charge_as_seen(&self, more: fn(Words) -> Words, or_else: fn(&Self)) {
        let version = self.version.read();
        let cells = [self.cell(0), self.cell(1)];
        let named = cells.into_iter().find(|cell| cell.key() == KEY);
        let seen = named.map(|cell| (cell, cell.seen()));
        let is_charged = seen
            .filter(|(_, seen)| !seen.is_empty() && !seen.is_locked())
            .is_some_and(|(cell, seen)| {
                cell.replace(seen, more(seen), || self.version.is_yet(version), || {})
            });
        if !is_charged {
            or_else(self);
        }
    }

    fn charge_in_a_batch(&self) {
        self.charge_as_seen(|seen| Words::counting(seen.body + 1), Self::charge);
    }

    fn charge_in_a_batch_within_an_instant(&self) {
        let more = |seen: Words| Words { body: seen.body + 1, ..seen };
        self.charge_as_seen(more, Self::charge_within_an_instant);
    }

    /// What a reader sees that holds nothing.
    fn read(&self) -> Words {
        loop {
            let version = self.version.read();
            if let Some((_, seen)) = self.find()
                && self.version.is_still(version)
            {
                return seen;
            }
            thread::yield_now();
        }
    }

    fn hold<T>(&self, act: impl FnOnce() -> T) -> T {
        loop {
            let version = self.version.read();
            if self.version.hold_from(version) {
                let done = act();
                self.version.let_go(version);
                return done;
            }
            thread::yield_now();
        }
    }

    /// Counts one more while the segment is held.
    fn charge_held(&self) {
        self.hold(|| {
            let (cell, seen) = self.find().unwrap();
            cell.set(Words::counting(seen.body + 1));
        });
    }

    /// Moves the key to the other slot.
    fn shift(&self) {
        self.hold(|| {
            let (cell, seen) = self.find().unwrap();
            let other = usize::from(std::ptr::eq(cell.0, &raw const self.slots[0]));
            self.cell(other).put(KEY, seen);
            cell.vacate();
        });
    }

    /// Moves the key to the other slot, and puts another in its own, which owes nothing in the same words.
    fn make_room(&self) {
        self.hold(|| {
            let (cell, seen) = self.find().unwrap();
            self.cell(1).put(KEY, seen);
            cell.vacate();
            cell.put(OTHER, Words::counting(0));
        });
    }

    /// Counts one more without holding anything, if the key is there.
    fn charge_if_there(&self) {
        loop {
            let version = self.version.read();
            let Some((cell, seen)) = self.find() else { return };
            let more = Words { body: seen.body + 1, ..seen };
            if cell.replace(seen, more, || self.version.is_yet(version), || {}) {
                return;
            }
            thread::yield_now();
        }
    }

    /// Gives the slot to another key, which owes nothing in the same words.
    fn give_away(&self) {
        self.hold(|| {
            let (cell, _) = self.find().unwrap();
            cell.vacate();
            cell.put(OTHER, Words::counting(0));
        });
    }

    fn count(&self) -> u64 {
        let (_, seen) = self.find().unwrap();
        assert_eq!(seen, Words::counting(seen.body), "both words are of one instant");
        seen.body
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
        assert_eq!(segment.find().unwrap().1.body, 2);
    });
}

#[test]
fn no_charge_is_lost_to_one_that_holds_the_segment() {
    at_once([Segment::charge, Segment::charge_held], |segment| assert_eq!(segment.count(), 2));
}

#[test]
fn a_charge_follows_a_key_that_is_moved() {
    at_once([Segment::charge, Segment::shift], |segment| {
        assert_eq!(segment.count(), 1);
        assert!(segment.cell(0).is_empty() && !segment.cell(1).is_empty(), "there once");
    });
}

#[test]
fn a_charge_never_meets_another_key_in_its_slot() {
    at_once([Segment::charge_if_there, Segment::give_away], |segment| {
        assert_eq!(words_of(segment.cell(0), OTHER), Some(Words::counting(0)));
    });
}

#[test]
fn a_charge_follows_a_key_that_makes_room_for_another() {
    at_once([Segment::charge, Segment::make_room], |segment| {
        assert_eq!(segment.count(), 1);
        assert_eq!(words_of(segment.cell(0), OTHER), Some(Words::counting(0)));
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
        assert!(segment.cell(1).is_empty(), "there once");
    });
}

#[test]
fn no_charge_of_a_batch_is_lost() {
    for other in [Segment::charge, Segment::charge_in_a_batch, Segment::charge_held] {
        at_once([Segment::charge_in_a_batch, other], |segment| assert_eq!(segment.count(), 2));
    }
    for other in [Segment::charge_within_an_instant, Segment::charge_in_a_batch_within_an_instant] {
        at_once([Segment::charge_in_a_batch_within_an_instant, other], |segment| {
            assert_eq!(segment.find().unwrap().1.body, 2);
        });
    }
}

#[test]
fn a_charge_of_a_batch_follows_a_key_that_is_moved() {
    let there_and_back = |segment: &Segment| {
        segment.shift();
        segment.shift();
    };
    for moved in [Segment::shift, Segment::make_room, there_and_back] {
        at_once([Segment::charge_in_a_batch, moved], |segment| assert_eq!(segment.count(), 1));
    }
}

#[test]
fn a_charge_of_a_batch_never_meets_another_key_in_its_slot() {
    let charge = |segment: &Segment| {
        let more = |seen: Words| Words { body: seen.body + 1, ..seen };
        segment.charge_as_seen(more, Segment::charge_if_there);
    };
    at_once([charge, Segment::give_away], |segment| {
        assert_eq!(words_of(segment.cell(0), OTHER), Some(Words::counting(0)));
    });
}

#[test]
fn a_reader_sees_both_words_of_one_instant() {
    let look = |segment: &Segment| {
        let seen = segment.read();
        assert_eq!(seen, Words::counting(seen.body));
    };
    at_once([Segment::charge, look], |segment| assert_eq!(segment.count(), 1));
    at_once([Segment::charge_held, look], |segment| assert_eq!(segment.count(), 1));
}
