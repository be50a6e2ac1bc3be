//! What writers of a [filter](super::filter) know of the marks in a segment: 32 bits of each trace, in
//! a table of open addressing.

/// How many slots there are for each word of the filter. At most half of them are taken.
const SLOTS_BITS: u8 = 3;
/// How often words may double: until a hundred million marks have theirs. Beyond that, more and more
/// marks share one.
pub(super) const WORD_BITS_MAX: u8 = 19;
/// No print is this.
pub(super) const FREE: u32 = 0;

/// Prints of marks, some of them perhaps several times.
#[derive(Default)]
pub(super) struct Prints {
    /// None at first, then a power of two. A print is behind its home, which its first bits say, with
    /// no free slot between.
    slots: Vec<u32>,
    taken: usize,
}

impl Prints {
    /// How many bits tell the words apart that are right for so many prints, once there is one.
    pub(super) fn word_bits(&self) -> u8 {
        self.bits().saturating_sub(SLOTS_BITS).min(WORD_BITS_MAX)
    }

    pub(super) fn insert(&mut self, print: u32) {
        if (self.taken + 1) * 2 > self.slots.len() {
            let larger = (self.slots.len() * 2).max(1 << SLOTS_BITS);
            let held = std::mem::replace(&mut self.slots, vec![FREE; larger]);
            held.into_iter().filter(|held| *held != FREE).for_each(|held| self.place(held));
        }
        self.place(print);
        self.taken += 1;
    }

    /// Takes one such print away.
    pub(super) fn remove(&mut self, print: u32) {
        let mut at = self.home(print);
        while !self.slots.is_empty() && self.slots[at] != FREE {
            if self.slots[at] == print {
                self.free(at);
                self.taken -= 1;
                return;
            }
            at = self.wrapped(at + 1);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().copied().filter(|print| *print != FREE)
    }

    /// All that are in the same word as a print.
    pub(super) fn of_word(&self, print: u32) -> impl Iterator<Item = u32> {
        let in_word = 1_usize << (self.bits() - self.word_bits());
        let first = self.home(print) & !(in_word - 1);
        let slot = move |step| self.slots[self.wrapped(first + step)];
        // Those for whom there was no room in the word's own slots stand behind them.
        let behind = (in_word..self.slots.len()).map(slot).take_while(|print| *print != FREE);
        let own = (0..in_word).map(slot).filter(|print| *print != FREE);
        own.chain(behind).filter(move |other| self.home(*other) & !(in_word - 1) == first)
    }

    fn place(&mut self, print: u32) {
        let mut at = self.home(print);
        while self.slots[at] != FREE {
            at = self.wrapped(at + 1);
        }
        self.slots[at] = print;
    }

    /// Frees a slot, and moves those behind it that were there for want of it.
    fn free(&mut self, mut free: usize) {
        let mut at = self.wrapped(free + 1);
        while self.slots[at] != FREE {
            let from_home = self.wrapped(at.wrapping_sub(self.home(self.slots[at])));
            if from_home >= self.wrapped(at.wrapping_sub(free)) {
                self.slots[free] = self.slots[at];
                free = at;
            }
            at = self.wrapped(at + 1);
        }
        self.slots[free] = FREE;
    }

    fn home(&self, print: u32) -> usize {
        let home = u64::from(print) << self.bits() >> u32::BITS;
        usize::try_from(home).unwrap_or(0)
    }

    fn wrapped(&self, at: usize) -> usize {
        at & self.slots.len().wrapping_sub(1)
    }

    /// How many bits tell the slots apart.
    fn bits(&self) -> u8 {
        // A usize has no more than 64 bits.
        u8::try_from(self.slots.len().max(1).trailing_zeros()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_its_prints_wherever_they_had_to_stand() {
        let mut prints = Prints::default();
        // All want the last slots, so that most of them stand at the beginning.
        let last: Vec<u32> = (0..7).map(|n| u32::MAX - n).collect();
        let first = [1, 2];
        first.iter().chain(&last).for_each(|print| prints.insert(*print));
        assert_eq!(prints.word_bits(), 2);
        let sorted = |of| {
            let mut found: Vec<u32> = prints.of_word(of).collect();
            found.sort_unstable_by(|a, b| b.cmp(a));
            found
        };
        assert_eq!((sorted(u32::MAX), sorted(1)), (last.clone(), vec![2, 1]));
        prints.remove(last[0]);
        prints.remove(last[0]);
        prints.remove(1);
        let mut left: Vec<u32> = prints.iter().collect();
        left.sort_unstable();
        let expected: Vec<u32> = [2].into_iter().chain(last[1..].iter().rev().copied()).collect();
        assert_eq!(left, expected);
        assert_eq!(prints.of_word(0).collect::<Vec<u32>>(), [2]);
    }
}
