//! Placing a key in a segment that is held.
//!
//! Where both lines of a key are full, one of those that stand there moves to its other line, or makes
//! another move first (cuckoo hashing). Who finds no room even so stands in the first free slot behind its
//! first line, so that there is none between. No slot is ever emptied but by whoever goes, and then those
//! that stand behind it only because of it move up.

use super::home::spot_of;
use super::{Found, Held, Home, ahead, behind, hash_of};
use crate::key::Key;
use crate::store::memory::cell::Cell;
use crate::store::memory::pages::{LINE_SLOTS, PAGE_SLOTS, Pages};
use crate::store::memory::slot::Words;

/// How many keys move at most so that another has room.
const MOVES_MAX: usize = 2;

impl Held<'_> {
    /// Writes a key to a free slot; false where there is none.
    pub(super) fn place(&self, pages: &Pages, key: Key, words: Words) -> bool {
        let near = self.home(pages, hash_of(key)).and_then(|home| self.room_in(pages, home));
        let Some(cell) = near.or_else(|| self.free_behind(pages, key)) else { return false };
        cell.put(key, words);
        self.note_change(words);
        true
    }

    /// A free slot of two lines, made by as few moves as can be.
    fn room_in<'p>(&self, pages: &'p Pages, home: Home<'p>) -> Option<Cell<'p>> {
        (0..=MOVES_MAX).find_map(|moves| self.room_by(pages, home, moves))
    }

    /// The same by so many moves, where fewer do not do: so that none of them is undone by another.
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

    /// The first free slot from the first line of a key on, page by page.
    fn free_behind<'p>(&self, pages: &'p Pages, key: Key) -> Option<Cell<'p>> {
        let used = self.used();
        let spot = spot_of(hash_of(key), used);
        let (mut number, mut first) = (spot.page, spot.lines[0] * LINE_SLOTS);
        // The page that it begins in comes last again.
        for _ in 0..=used {
            let cells = self.page(pages, number)?.as_flattened().get(first..)?;
            let free = cells.iter().map(Cell).find(|cell| cell.is_empty());
            if free.is_some() {
                return free;
            }
            (number, first) = (behind(number, used), 0);
        }
        None
    }

    /// Which slot a key was found in.
    pub(in super::super) fn slot_of(&self, pages: &Pages, found: Found<'_>) -> Option<usize> {
        (0..self.used()).find_map(|number| {
            let page = self.page(pages, number)?.as_flattened();
            page.as_ptr_range().contains(&std::ptr::from_ref(found.cell.0)).then_some(())?;
            let place = page.iter().position(|cell| std::ptr::eq(cell, found.cell.0))?;
            Some(number * PAGE_SLOTS + place)
        })
    }

    /// Empties a slot, and moves up what stands behind it only because of it.
    pub(super) fn close(&self, pages: &Pages, slot: usize) {
        let (slots, used) = (self.slots(), self.used());
        let Some(mut gap) = self.cell(pages, slot) else { return };
        gap.vacate();
        let (mut at, mut slot) = (slot, slot);
        // Some slots are always empty.
        for _ in 0..slots {
            slot = behind(slot, slots);
            let Some(cell) = self.cell(pages, slot).filter(|cell| !cell.is_empty()) else { break };
            let spot = spot_of(hash_of(cell.key()), used);
            if !spot.has(slot) && ahead(spot.first_slot(), slot, slots) >= ahead(at, slot, slots) {
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
    use crate::store::memory::segment::{KEYS_MAX, Segment};

    const WORDS: Words = Words { head: 4, body: 7 };

    fn keys() -> impl Iterator<Item = Key> {
        (1..=KEYS_MAX as u128).map(|key| Key((key << 64) | (key * key)))
    }

    #[test]
    fn keys_make_room_for_each_other_and_none_is_lost() {
        let (segment, pages) = (Segment::default(), Pages::default());
        let held = segment.hold();
        assert!(keys().all(|key| held.insert(&pages, key, WORDS)));
        let found = |key: Key| segment.find(&pages, key, hash_of(key));
        let is_near =
            |key: &Key| segment.home(&pages, hash_of(*key)).unwrap().cell_of(*key).is_some();
        assert!(keys().all(|key| found(key).is_some()));
        let near = keys().filter(is_near).count();
        assert!(near * 100 > KEYS_MAX * 95, "{near} in the lines that are looked at first");
        let goes = |key: &Key| hash_of(*key).is_multiple_of(3);
        for key in keys().filter(goes) {
            held.remove(&pages, held.slot_of(&pages, found(key).unwrap()).unwrap());
        }
        assert!(keys().all(|key| found(key).is_none() == goes(&key)));
    }

    /// More than fit, so that they come and go in a segment that is as full as can be. The upper half of
    /// some is what a slot that nobody had holds too.
    fn any_key() -> impl Strategy<Value = Key> {
        (1..KEYS_MAX as u128 * 2).prop_map(|number| Key((number * (number % 2)) << 64 | number))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn who_was_put_in_and_has_not_gone_is_found_and_nobody_else(
            keys in prop::collection::vec(any_key(), 1..4 * KEYS_MAX),
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
                        if held.insert(&pages, *key, WORDS) {
                            there.insert(*key);
                        }
                    }
                }
                prop_assert_eq!(held.len(), there.len());
            }
            for key in &keys {
                let is_found = segment.find(&pages, *key, hash_of(*key)).is_some();
                prop_assert_eq!(is_found, there.contains(key), "{}", key);
            }
        }
    }
}
