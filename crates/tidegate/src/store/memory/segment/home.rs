//! Where a key stands: in one of two lines of a page that have nothing to do with each other, so that where
//! one is full the other seldom is. Both are asked for together.

use std::hint::select_unpredictable;

use super::super::cell::Cell;
use super::super::pages::{LINE_SLOTS, Line, PAGE_LINES, PAGE_SLOTS};
use crate::key::Key;
use crate::prefetch::prefetch;

/// Two lines in which a key nearly always stands.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Home<'p>(pub(super) [&'p Line; 2]);

/// How many bits the number of a line has.
const LINE_BITS: u32 = PAGE_LINES.ilog2();
const _: () = assert!(PAGE_LINES.is_power_of_two());

impl<'p> Home<'p> {
    /// Where nobody stands: in a line that is always empty, so that nobody ever locks a slot of it.
    pub(in super::super) fn nowhere(empty: &'p Line) -> Self {
        Self([empty; 2])
    }

    /// Asks for both lines, without waiting for them.
    #[inline(always)]
    pub(in super::super) fn prefetch(self) {
        let [[one, ..], [other, ..]] = self.0;
        prefetch(one);
        prefetch(other);
    }

    /// The slot of a key, if it is in one of both lines.
    #[inline(always)]
    pub(in super::super) fn cell_of(self, key: Key) -> Option<Cell<'p>> {
        Some(self.candidate(key)).filter(|cell| cell.key() == key)
    }

    /// The first of the slots that nobody has.
    pub(super) fn free(self) -> Option<Cell<'p>> {
        self.cells().find(|cell| cell.is_empty())
    }

    pub(super) fn cells(self) -> impl Iterator<Item = Cell<'p>> {
        self.0.into_iter().flatten().map(Cell)
    }

    /// The slot that a key is in, if it is in one of these: the first that half of it names. In which of them
    /// nobody can guess, so that the compiler is asked not to branch; both lines come together.
    #[inline(always)]
    fn candidate(self, key: Key) -> Cell<'p> {
        let [[first, second], [third, last]] = self.0;
        let either = |cell: Cell<'p>, other| select_unpredictable(cell.may_hold(key), cell, other);
        either(Cell(first), either(Cell(second), either(Cell(third), Cell(last))))
    }
}

/// The same by numbers: which of a segment's pages, and which of its lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) page: usize,
    pub(super) lines: [usize; 2],
}

impl Spot {
    /// The first slot of the first line among all of a segment: who has no room stands behind it.
    pub(super) const fn first_slot(self) -> usize {
        let [line, _] = self.lines;
        self.slot_of(line)
    }

    /// Whether a slot is in one of both lines.
    pub(super) fn has(self, slot: usize) -> bool {
        slot / PAGE_SLOTS == self.page && self.lines.contains(&(slot % PAGE_SLOTS / LINE_SLOTS))
    }

    /// The slots of both lines among all of a segment.
    pub(super) fn slots(self) -> impl Iterator<Item = usize> {
        let firsts = self.lines.map(|line| self.slot_of(line));
        firsts.into_iter().flat_map(|first| first..first + LINE_SLOTS)
    }

    /// The first slot of a line among all of a segment.
    const fn slot_of(self, line: usize) -> usize {
        self.page * PAGE_SLOTS + line * LINE_SLOTS
    }
}

/// Where a key of a hash stands in a segment of so many pages. The low bits of the hash have chosen the
/// segment; of the others, the highest choose the page, and the highest of what is left the lines.
#[allow(clippy::cast_possible_truncation, reason = "less than the number of pages, and of lines")]
#[inline(always)]
pub(super) fn spot_of(hash: u64, pages: usize) -> Spot {
    const LINES: usize = PAGE_LINES - 1;
    let spread = (hash >> 32) * pages as u64;
    let line = (spread >> (32 - LINE_BITS)) as usize & LINES;
    // One of them has an even number and the other an odd one, so that they are never the same.
    let apart = (spread >> (32 - 2 * LINE_BITS)) as usize & LINES | 1;
    Spot { page: (spread >> 32) as usize, lines: [line, line ^ apart] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::HashKey;
    use crate::store::memory::segment::{PAGES, hash_of};

    #[test]
    fn two_lines_are_never_one_and_all_are_used_alike_with_each_other() {
        const KEYS: usize = 320_000;
        let mut counts = [[[0_usize; PAGE_LINES]; PAGE_LINES]; PAGES];
        let hasher = HashKey::new(*b"sixteen letters!");
        for number in 0..KEYS as u64 {
            let (_, key) = hasher.claim(number);
            let Spot { page, lines: [line, other] } = spot_of(hash_of(key), PAGES);
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
}
