//! Placing a key in a segment that is held.
//!
//! Where both lines of a key are full, one of those that stand there moves to another slot at home, or makes
//! another move first (cuckoo hashing). Who finds no room even so stands in the first free slot behind its
//! first line, so that there is none between, and stays there until room is made of its own slot or of one
//! between. A slot that somebody has left has another key at once, unless one has gone for good: then those
//! that stand behind it only because of it move up.
//!
//! A slot that was emptied still names whose it was, and who looks for a key takes the first that names it.
//! That is the key's own: it is always put into the first slot at home that is empty, and behind only where
//! none is, so that no slot that it has left comes before the one that it is in.

use super::home::spot_of;
use super::{Found, Held, Home, distance, hash_of, next};
use crate::key::Key;
use crate::store::memory::cell::Cell;
use crate::store::memory::pages::{PAGE_SLOTS, Pages};
use crate::store::memory::slot::Words;

/// How many keys move at most so that another has room.
const MOVES_MAX: usize = 2;

impl Held<'_> {
    /// Writes a key to a free slot; false where there is none.
    pub(super) fn place(&self, pages: &Pages, key: Key, words: Words) -> bool {
        let hash = hash_of(key);
        let near = self.home(pages, hash).and_then(|home| self.room_in(pages, home));
        let behind = || self.ring(pages, hash).find(|cell| cell.is_empty());
        let Some(cell) = near.or_else(behind) else { return false };
        cell.put(key, words);
        self.note_change(words);
        true
    }

    /// A free slot of two lines, made by as few moves as can be.
    fn room_in<'p>(&self, pages: &'p Pages, home: Home<'p>) -> Option<Cell<'p>> {
        (0..=MOVES_MAX).find_map(|moves| self.room_by(pages, home, moves))
    }

    /// The same by so many moves. Fewer must have been tried: then none on the way has room by itself, and
    /// nobody is moved twice.
    fn room_by<'p>(&self, pages: &'p Pages, home: Home<'p>, moves: usize) -> Option<Cell<'p>> {
        let Some(moves) = moves.checked_sub(1) else { return home.free() };
        home.cells().find_map(|cell| {
            let home = self.home(pages, hash_of(cell.key()))?;
            let room = self.room_by(pages, home, moves)?;
            room.put(cell.key(), cell.words());
            cell.vacate();
            Some(cell)
        })
    }

    /// Which slot a key was found in.
    pub(in super::super) fn slot_of(&self, pages: &Pages, found: Found<'_>) -> Option<usize> {
        let slot = (0..self.used()).find_map(|number| {
            let page = self.page(pages, number)?.as_flattened();
            page.as_ptr_range().contains(&std::ptr::from_ref(found.cell.0)).then_some(())?;
            let place = page.iter().position(|cell| std::ptr::eq(cell, found.cell.0))?;
            Some(number * PAGE_SLOTS + place)
        });
        debug_assert!(slot.is_some(), "it was found in this segment");
        slot
    }

    /// Empties a slot, and moves up what stands behind it only because of it.
    pub(super) fn close(&self, pages: &Pages, slot: usize) {
        let (slots, used) = (self.slots(), self.used());
        let Some(mut gap) = self.cell(pages, slot) else { return };
        gap.vacate();
        let (mut at, mut slot) = (slot, slot);
        // Some slots are always empty: no segment is ever filled up.
        for _ in 0..slots {
            slot = next(slot, slots);
            let Some(cell) = self.cell(pages, slot).filter(|cell| !cell.is_empty()) else { break };
            let spot = spot_of(hash_of(cell.key()), used);
            if !spot.has(slot)
                && distance(spot.first_slot(), slot, slots) >= distance(at, slot, slots)
            {
                gap.put(cell.key(), cell.words());
                cell.vacate();
                (gap, at) = (cell, slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::key::HashKey;
    use crate::sip::halves;
    use crate::store::memory::segment::{KEYS_MAX, Segment};

    /// Of one key alone.
    fn words(Key(key): Key) -> Words {
        let (low, high) = halves(key);
        Words { head: 4, body: low ^ high }
    }

    fn keys() -> impl Iterator<Item = Key> {
        (1..=KEYS_MAX as u128).map(|key| Key::counted((key << 64) | (key * key)))
    }

    #[test]
    fn keys_make_room_for_each_other_and_none_is_lost() {
        let (segment, pages) = (Segment::default(), Pages::default());
        let held = segment.hold();
        assert!(keys().all(|key| held.insert(&pages, key, words(key))));
        let found = |key: Key| segment.find(&pages, key, hash_of(key));
        assert!(keys().all(|key| found(key).unwrap().words == words(key)));
        let goes = |key: &Key| hash_of(*key).is_multiple_of(3);
        for key in keys().filter(goes) {
            held.remove(&pages, held.slot_of(&pages, found(key).unwrap()).unwrap());
        }
        assert!(keys().all(|key| found(key).is_none() == goes(&key)));
    }

    #[test]
    fn an_insertion_moves_two_keys_at_most_unless_a_page_is_added() {
        let (segment, pages) = (Segment::default(), Pages::default());
        let held = segment.hold();
        let stands = || -> Vec<Option<Key>> {
            let key = |slot| segment.read(&pages, slot).map(|(key, _)| key);
            (0..segment.slots()).map(key).collect()
        };
        let mut most = 0;
        for key in keys() {
            let before = stands();
            assert!(held.insert(&pages, key, words(key)));
            let after = stands();
            if before.len() == after.len() {
                let left = before.iter().zip(&after);
                let moved = left.filter(|(before, after)| before.is_some() && before != after);
                most = most.max(moved.count());
            }
        }
        assert_eq!(most, MOVES_MAX);
    }

    #[test]
    fn nearly_all_keys_are_at_home() {
        const SEGMENTS: u64 = 100;
        const KEYS: u64 = 240;
        let hasher = HashKey::new(*b"sixteen letters!");
        let at_home: usize = (0..SEGMENTS)
            .map(|number| {
                let (segment, pages) = (Segment::default(), Pages::default());
                let (held, key) = (segment.hold(), |key| hasher.claim(number * KEYS + key).1);
                assert!((0..KEYS).all(|at| held.insert(&pages, key(at), words(key(at)))));
                let home = |key| segment.home(&pages, hash_of(key)).unwrap();
                (0..KEYS).filter(|at| home(key(*at)).cell_of(key(*at)).is_some()).count()
            })
            .sum();
        assert!(at_home as u64 * 100 > SEGMENTS * KEYS * 98, "{at_home}");
    }

    /// More than fit, so that they come and go in a segment that is as full as can be. The upper half of
    /// some is what a slot that nobody had holds too.
    fn any_key() -> impl Strategy<Value = Key> {
        (0..KEYS_MAX as u128 * 2).prop_map(|number| match number {
            0..9 => Key(number),
            _ => Key::counted(number),
        })
    }

    /// Keys with the same hash, so that all but four stand behind, and some others. Where the hash is high,
    /// they begin in the last lines of a segment, and go round.
    fn like_keys() -> impl Strategy<Value = Vec<Key>> {
        let numbers = prop::collection::vec((1..48_u64, prop::bool::weighted(0.8)), 1..400);
        (prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], numbers).prop_map(|(hash, numbers)| {
            let key = |(number, is_like): (u64, bool)| {
                let number = u128::from(number);
                if is_like { Key(u128::from(hash) << 64 | number) } else { Key::counted(number) }
            };
            numbers.into_iter().map(key).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn who_was_put_in_and_has_not_gone_is_found_and_nobody_else(
            keys in prop_oneof![prop::collection::vec(any_key(), 1..4 * KEYS_MAX), like_keys()],
        ) {
            let (segment, pages) = (Segment::default(), Pages::default());
            let held = segment.hold();
            let mut there = BTreeSet::new();
            for key in &keys {
                match segment.find(&pages, *key, hash_of(*key)) {
                    Some(found) => {
                        prop_assert!(there.remove(key), "{key} had gone");
                        held.remove(&pages, held.slot_of(&pages, found).unwrap());
                    }
                    None => {
                        prop_assert!(!there.contains(key), "{key} had not gone");
                        if held.insert(&pages, *key, words(*key)) {
                            there.insert(*key);
                        }
                    }
                }
                prop_assert_eq!(held.len(), there.len());
            }
            for key in &keys {
                let found = segment.find(&pages, *key, hash_of(*key)).map(|found| found.words);
                prop_assert_eq!(found, there.contains(key).then(|| words(*key)), "{}", key);
            }
        }
    }
}
