//! Where a key stands in its segment.
//!
//! A hash names a page and two candidate lines in it, which have nothing to do with each other: where one is full,
//! the other seldom is. If both are full, a key in them moves to another slot of its own candidate lines, or
//! displaces another key first (cuckoo displacement). A key that finds no slot even so takes the first free slot
//! behind its first line, and stays there until a slot on the way becomes free. When a key is removed for good, the
//! keys that stand behind its slot only because of it move up.
//!
//! An emptied slot still names its last key, and a lookup takes the first slot that names the key. That is always the
//! right one: a key takes the first empty candidate slot, and a slot behind only if there is none, so that no slot
//! that the key has left comes before its present one.

use std::hint::select_unpredictable;

use super::{SegmentGuard, hash_of};
use crate::key::Key;
use crate::store::memory::packed_state::PackedState;
use crate::store::memory::pages::{LINE_SLOTS, Line, PAGE_LINES, PAGE_SLOTS, Pages};
use crate::store::memory::segment::LookupHit;
use crate::store::memory::slot::Slot;

/// How many keys an insertion displaces at most.
const DISPLACEMENTS_MAX: usize = 2;
const LINE_BITS: u32 = PAGE_LINES.ilog2();
const _: () = assert!(PAGE_LINES.is_power_of_two());

/// The two lines in which a key nearly always stands.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct CandidateLines<'p>(pub(super) [&'p Line; 2]);

impl<'p> CandidateLines<'p> {
    /// The slot of a key, if it is one of these.
    #[inline(always)]
    pub(super) fn find(self, key: Key) -> Option<Slot<'p>> {
        Some(self.candidate(key)).filter(|slot| slot.key() == key)
    }

    pub(super) fn slots(self) -> impl Iterator<Item = Slot<'p>> {
        self.0.into_iter().flatten().map(Slot)
    }

    /// The first slot that names the upper half of a key, or the last slot. No processor can predict which one it
    /// is, so the comparison does not branch.
    #[inline(always)]
    fn candidate(self, key: Key) -> Slot<'p> {
        let [[first, second], [third, last]] = self.0;
        let either = |slot: Slot<'p>, other| select_unpredictable(slot.may_hold(key), slot, other);
        either(Slot(first), either(Slot(second), either(Slot(third), Slot(last))))
    }
}

/// The candidate lines by numbers: one of the segment's pages, and two of its lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    pub(super) page: usize,
    pub(super) lines: [usize; 2],
}

impl Placement {
    /// Where probing begins: the index of the first line's first slot.
    const fn first_slot(self) -> usize {
        self.slot_of(self.lines[0])
    }

    /// True if the slot is in one of both lines.
    fn has(self, slot: usize) -> bool {
        slot / PAGE_SLOTS == self.page && self.lines.contains(&(slot % PAGE_SLOTS / LINE_SLOTS))
    }

    /// The indices of the slots of both lines.
    pub(super) fn slots(self) -> impl Iterator<Item = usize> {
        let firsts = self.lines.map(|line| self.slot_of(line));
        firsts.into_iter().flat_map(|first| first..first + LINE_SLOTS)
    }

    const fn slot_of(self, line: usize) -> usize {
        self.page * PAGE_SLOTS + line * LINE_SLOTS
    }
}

/// The placement for a hash. Its low bits have chosen the segment; the highest bits choose the page, and the next
/// ones the lines.
#[allow(clippy::cast_possible_truncation, reason = "less than the number of pages, and of lines")]
#[inline(always)]
pub(super) fn placement_of(hash: u64, pages: usize) -> Placement {
    const LINES: usize = PAGE_LINES - 1;
    let spread = (hash >> 32) * pages as u64;
    let line = (spread >> (32 - LINE_BITS)) as usize & LINES;
    // One line is even and the other odd, so that they are never the same.
    let apart = (spread >> (32 - 2 * LINE_BITS)) as usize & LINES | 1;
    Placement { page: (spread >> 32) as usize, lines: [line, line ^ apart] }
}

impl SegmentGuard<'_> {
    /// Writes a key to a free slot; false if there is none.
    pub(super) fn place(&self, pages: &Pages, key: Key, state: PackedState) -> bool {
        let hash = hash_of(key);
        let lines = self.candidate_lines(pages, hash);
        let near = lines.and_then(|lines| {
            // As few displacements as possible.
            (0..=DISPLACEMENTS_MAX).find_map(|count| self.free_slot(pages, lines, count))
        });
        let behind = || self.ring(pages, hash).find(|slot| slot.is_empty());
        let Some(slot) = near.or_else(behind) else { return false };
        slot.fill(key, state);
        self.note_dirty(state);
        true
    }

    /// A free slot of two lines, after exactly `displacements`. Fewer must have been tried: then no line on the way
    /// has a free slot of its own, and no key moves twice.
    fn free_slot<'p>(
        &self,
        pages: &'p Pages,
        lines: CandidateLines<'p>,
        displacements: usize,
    ) -> Option<Slot<'p>> {
        let Some(displacements) = displacements.checked_sub(1) else {
            return lines.slots().find(|slot| slot.is_empty());
        };
        lines.slots().find_map(|slot| {
            let lines = self.candidate_lines(pages, hash_of(slot.key()))?;
            let free = self.free_slot(pages, lines, displacements)?;
            free.fill(slot.key(), slot.state());
            slot.clear();
            Some(slot)
        })
    }

    /// The index of the slot that a lookup has found.
    pub(in super::super) fn index_of(&self, pages: &Pages, hit: LookupHit<'_>) -> Option<usize> {
        let index = (0..self.page_count()).find_map(|number| {
            let page = self.page(pages, number)?.as_flattened();
            page.as_ptr_range().contains(&std::ptr::from_ref(hit.slot.0)).then_some(())?;
            let index = page.iter().position(|slot| std::ptr::eq(slot, hit.slot.0))?;
            Some(number * PAGE_SLOTS + index)
        });
        debug_assert!(index.is_some(), "the lookup found it in this segment");
        index
    }

    /// Empties a slot, and moves up the keys that stand behind it only because of it.
    pub(super) fn vacate(&self, pages: &Pages, index: usize) {
        let (slots, page_count) = (self.slot_count(), self.page_count());
        let Some(mut gap) = self.slot(pages, index) else { return };
        gap.clear();
        let (mut gap_index, mut index) = (index, index);
        // Some slots are always empty: a segment is never filled up.
        for _ in 0..slots {
            index = (index + 1) % slots;
            let Some(slot) = self.slot(pages, index).filter(|slot| !slot.is_empty()) else { break };
            let placement = placement_of(hash_of(slot.key()), page_count);
            let probed = distance(placement.first_slot(), index, slots);
            if !placement.has(index) && probed >= distance(gap_index, index, slots) {
                gap.fill(slot.key(), slot.state());
                slot.clear();
                (gap, gap_index) = (slot, index);
            }
        }
    }
}

/// How far it is from one slot to another in the ring.
const fn distance(from: usize, to: usize, slots: usize) -> usize {
    if to >= from { to - from } else { to + slots - from }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::key::HashKey;
    use crate::store::memory::segment::{KEYS_MAX, PAGES, Segment};

    #[test]
    fn two_lines_are_never_one_and_all_are_used_alike_with_each_other() {
        const KEYS: usize = 320_000;
        let mut counts = [[[0_usize; PAGE_LINES]; PAGE_LINES]; PAGES];
        let hasher = HashKey::new(*b"sixteen letters!");
        for number in 0..KEYS as u64 {
            let (_, key) = hasher.claim(number);
            let Placement { page, lines: [line, other] } = placement_of(hash_of(key), PAGES);
            counts[page][line][other] += 1;
        }
        let even = KEYS / PAGES / PAGE_LINES / (PAGE_LINES / 2);
        for (line, others) in counts.as_flattened().iter().enumerate() {
            for (other, count) in others.iter().enumerate() {
                let may_meet = line % 2 != other % 2;
                let expected = if may_meet { even / 3..even * 3 } else { 0..1 };
                assert!(expected.contains(count), "{count} of {line} and {other}");
            }
        }
    }

    /// Of one key alone.
    fn state(key: Key) -> PackedState {
        PackedState { header: 4, payload: hash_of(key) ^ key.number() }
    }

    fn keys() -> impl Iterator<Item = Key> {
        (1..=KEYS_MAX as u128).map(|key| Key::counted((key << 64) | (key * key)))
    }

    #[test]
    fn keys_make_room_for_each_other_and_none_is_lost() {
        let (segment, pages) = (Segment::default(), Pages::default());
        let guard = segment.lock();
        assert!(keys().all(|key| guard.insert(&pages, key, state(key))));
        let hit = |key: Key| segment.find(&pages, key, hash_of(key));
        assert!(keys().all(|key| hit(key).unwrap().state == state(key)));
        let goes = |key: &Key| hash_of(*key).is_multiple_of(3);
        for key in keys().filter(goes) {
            guard.remove(&pages, guard.index_of(&pages, hit(key).unwrap()).unwrap());
        }
        assert!(keys().all(|key| hit(key).is_none() == goes(&key)));
    }

    #[test]
    fn an_insertion_moves_two_keys_at_most_unless_a_page_is_added() {
        let (segment, pages) = (Segment::default(), Pages::default());
        let guard = segment.lock();
        let stands = || -> Vec<Option<Key>> {
            let key = |slot| segment.read_slot(&pages, slot).map(|(key, _)| key);
            (0..segment.slot_count()).map(key).collect()
        };
        let mut most = 0;
        for key in keys() {
            let before = stands();
            assert!(guard.insert(&pages, key, state(key)));
            let after = stands();
            if before.len() == after.len() {
                let left = before.iter().zip(&after);
                let moved = left.filter(|(before, after)| before.is_some() && before != after);
                most = most.max(moved.count());
            }
        }
        assert_eq!(most, DISPLACEMENTS_MAX);
    }

    #[test]
    fn nearly_all_keys_are_at_home() {
        const SEGMENTS: u64 = 100;
        const KEYS: u64 = 240;
        let hasher = HashKey::new(*b"sixteen letters!");
        let at_home: usize = (0..SEGMENTS)
            .map(|number| {
                let (segment, pages) = (Segment::default(), Pages::default());
                let (guard, key) = (segment.lock(), |key| hasher.claim(number * KEYS + key).1);
                assert!((0..KEYS).all(|at| guard.insert(&pages, key(at), state(key(at)))));
                let lines = |key| segment.candidate_lines(&pages, hash_of(key)).unwrap();
                (0..KEYS).filter(|at| lines(key(*at)).find(key(*at)).is_some()).count()
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
            let guard = segment.lock();
            let mut there = BTreeSet::new();
            for key in &keys {
                match segment.find(&pages, *key, hash_of(*key)) {
                    Some(hit) => {
                        prop_assert!(there.remove(key), "{key} had gone");
                        guard.remove(&pages, guard.index_of(&pages, hit).unwrap());
                    }
                    None => {
                        prop_assert!(!there.contains(key), "{key} had not gone");
                        if guard.insert(&pages, *key, state(*key)) {
                            there.insert(*key);
                        }
                    }
                }
                prop_assert_eq!(guard.len(), there.len());
            }
            for key in &keys {
                let hit = segment.find(&pages, *key, hash_of(*key)).map(|hit| hit.state);
                prop_assert_eq!(hit, there.contains(key).then(|| state(*key)), "{}", key);
            }
        }
    }
}
