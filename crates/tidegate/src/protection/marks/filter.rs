//! Which marks are certainly not there: asked before a mark is looked for, without a lock and without
//! the mark's key, so that whom no mark is of pays a few nanoseconds, however many there are of others.
//!
//! Readers have words, in which every mark has four bits by a keyed hash of it, its trace. At most one
//! in two hundred whom no mark is of meets the bits of others, and looks for a mark in vain. The words
//! of a million marks take two megabytes, to stay near the processor. Writers have the traces
//! themselves, to clear the bits that no other mark has, and to make more words in time.

use std::sync::{OnceLock, PoisonError};

use super::prints::{FREE, Prints, WORD_BITS_MAX};
use crate::sync::{AtomicU8, AtomicU64, Mutex, MutexGuard, Ordering};

/// Segments grow by themselves, so that nobody waits until a million traces have moved.
const SEGMENT_BITS: u32 = 6;
const SEGMENTS: usize = 1 << SEGMENT_BITS;
const LEVELS: usize = WORD_BITS_MAX as usize + 1;

/// Traces of marks; one that is noted twice has to be forgotten twice.
pub(super) struct Filter {
    /// The words of all segments: each level has twice as many as the one before. A segment uses its
    /// part of one level, and none at first.
    levels: [OnceLock<Box<[AtomicU64]>>; LEVELS],
    /// How many levels each segment has used, the last of which holds.
    used: [AtomicU8; SEGMENTS],
    /// What is in each segment. Whoever changes its words holds the lock.
    segments: Vec<Mutex<Prints>>,
}

impl Filter {
    pub(super) fn new() -> Self {
        Self {
            levels: [const { OnceLock::new() }; LEVELS],
            used: [const { AtomicU8::new(0) }; SEGMENTS],
            segments: (0..SEGMENTS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Whether a trace may be there. One that was noted before this call, and not forgotten, is.
    pub(super) fn may_have(&self, trace: u64) -> bool {
        let used = self.used[segment_of(trace)].load(Ordering::Acquire);
        let Some(word) = self.word(trace, used) else { return false };
        let bits = bits_of(print_of(trace));
        word.load(Ordering::Relaxed) & bits == bits
    }

    /// Has a trace be found, from before this returns.
    pub(super) fn note(&self, trace: u64) {
        let (segment, print) = (segment_of(trace), print_of(trace));
        let mut prints = self.locked(segment);
        prints.insert(print);
        let used = prints.word_bits() + 1;
        if self.used[segment].load(Ordering::Relaxed) == used {
            if let Some(word) = self.word(trace, used) {
                word.fetch_or(bits_of(print), Ordering::Relaxed);
            }
            return;
        }
        // Nobody reads the words of a level before it is the one that holds.
        let words = || (0..SEGMENTS << prints.word_bits()).map(|_| AtomicU64::new(0)).collect();
        self.levels[usize::from(prints.word_bits())].get_or_init(words);
        for print in prints.iter() {
            if let Some(word) = self.word(trace_of(segment, print), used) {
                word.fetch_or(bits_of(print), Ordering::Relaxed);
            }
        }
        self.used[segment].store(used, Ordering::Release);
    }

    /// Takes back what was noted of a mark that is gone.
    pub(super) fn forget(&self, trace: u64) {
        let (segment, print) = (segment_of(trace), print_of(trace));
        let mut prints = self.locked(segment);
        prints.remove(print);
        let used = self.used[segment].load(Ordering::Relaxed);
        if let Some(word) = self.word(trace, used) {
            // The bits of those that stay are in the word as it was and as it will be.
            let left = prints.of_word(print).fold(0, |left, print| left | bits_of(print));
            word.store(left, Ordering::Relaxed);
        }
    }

    /// The word of a trace where its segment has used so many levels; `None` where it has used none.
    fn word(&self, trace: u64, used: u8) -> Option<&AtomicU64> {
        let level = used.checked_sub(1)?;
        let index = trace >> (u64::BITS - SEGMENT_BITS - u32::from(level));
        self.levels.get(usize::from(level))?.get()?.get(usize::try_from(index).ok()?)
    }

    fn locked(&self, segment: usize) -> MutexGuard<'_, Prints> {
        self.segments[segment].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which segment a trace is in: its first bits.
fn segment_of(trace: u64) -> usize {
    // Six bits are the index of a segment.
    usize::try_from(trace >> (u64::BITS - SEGMENT_BITS)).unwrap_or(0)
}

/// What is kept of a trace: the bits behind those. The first of them say which word it is in.
#[allow(clippy::cast_possible_truncation, reason = "a part of a hash is a hash")]
fn print_of(trace: u64) -> u32 {
    ((trace >> (u64::BITS - SEGMENT_BITS - u32::BITS)) as u32).max(FREE + 1)
}

/// A trace with such a print.
fn trace_of(segment: usize, print: u32) -> u64 {
    let print = u64::from(print) << (u64::BITS - SEGMENT_BITS - u32::BITS);
    u64::try_from(segment).unwrap_or(0) << (u64::BITS - SEGMENT_BITS) | print
}

/// The bits of a mark in its word.
fn bits_of(print: u32) -> u64 {
    // Those that share a word begin alike: a product has all of a print in its first bits.
    let mixed = print.wrapping_mul(0x9e37_79b1);
    let bit = |of: u32| 1 << (mixed >> of & 63);
    bit(26) | bit(20) | bit(14) | bit(8)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use proptest::prelude::*;

    use super::*;

    impl Filter {
        /// Whether nothing is left of what was noted.
        pub(in crate::protection::marks) fn is_blank(&self) -> bool {
            (0..self.segments.len()).all(|segment| {
                let used = self.used[segment].load(Ordering::Relaxed);
                let level = u32::from(used.saturating_sub(1));
                let first = |word: u64| trace_of(segment, 0) | word << (58 - level);
                let mut words = (0..1 << level).filter_map(|word| self.word(first(word), used));
                let clear = words.all(|word| word.load(Ordering::Relaxed) == 0);
                clear && self.locked(segment).iter().next().is_none()
            })
        }
    }

    /// A trace that looks like chance, the same in every run.
    fn trace(number: u64) -> u64 {
        let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29)
    }

    /// One that is in the first segment.
    fn crowded(number: u64) -> u64 {
        trace(number) >> SEGMENT_BITS
    }

    fn found_by_mistake(filter: &Filter, from: u64) -> usize {
        (from..from + 100_000).filter(|number| filter.may_have(trace(*number))).count()
    }

    #[test]
    fn few_of_those_who_are_not_there_are_looked_for() {
        let filter = Filter::new();
        assert_eq!(found_by_mistake(&filter, 0), 0);
        let mut noted = 0;
        for count in [1, 100, 500, 10_000, 130_000, 140_000] {
            (noted..count).for_each(|number| filter.note(trace(number)));
            noted = count;
            assert!((0..noted).all(|number| filter.may_have(trace(number))));
            let mistakes = found_by_mistake(&filter, 1_000_000);
            assert!(mistakes < 700, "{mistakes} of 100,000 beside {count}");
        }
        (0..noted).for_each(|number| filter.forget(trace(number)));
        assert!(filter.is_blank());
        assert_eq!(found_by_mistake(&filter, 0), 0, "not even those who were there");
    }

    #[test]
    fn traces_that_stay_are_found_while_others_come_and_go() {
        let (filter, done) = (Filter::new(), AtomicBool::new(false));
        let staying: Vec<u64> = (0..200).map(crowded).collect();
        staying.iter().for_each(|trace| filter.note(*trace));
        std::thread::scope(|scope| {
            for writer in 1..=2 {
                let filter = &filter;
                scope.spawn(move || {
                    for round in 0..60 {
                        let others = || (0..20 * round).map(|n| crowded(writer << 32 | n));
                        others().for_each(|trace| filter.note(trace));
                        others().for_each(|trace| filter.forget(trace));
                    }
                });
            }
            let reader = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(staying.iter().all(|trace| filter.may_have(*trace)));
                }
            });
            for round in 0..2_000 {
                // A mark that takes the place of another of the same subject.
                let again = staying[round % staying.len()];
                filter.note(again);
                filter.forget(again);
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        staying.iter().for_each(|trace| filter.forget(*trace));
        assert!(filter.is_blank());
    }

    #[test]
    fn a_trace_is_found_by_another_thread_as_soon_as_it_is_noted() {
        for make in [trace, crowded] {
            let (filter, noted) = (Filter::new(), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..20_000 {
                        filter.note(make(number));
                        noted.fetch_add(1, Ordering::Release);
                    }
                });
                let mut seen = 0;
                while seen < 20_000 {
                    let now = noted.load(Ordering::Acquire) as u64;
                    assert!((seen..now).all(|number| filter.may_have(make(number))));
                    assert!(now == 0 || filter.may_have(make(now / 2)), "an earlier one");
                    seen = now;
                }
            });
        }
    }

    proptest! {
        /// Random traces, of few segments and words, against a plain count of each.
        #[test]
        fn what_is_noted_is_found_and_what_is_forgotten_leaves_nothing(
            steps in proptest::collection::vec((0..90_u64, any::<bool>()), 1..400)
        ) {
            let filter = Filter::new();
            let mut known = vec![0_usize; 90];
            let make = |number: u64| if number < 60 { crowded(number) } else { trace(number) };
            for (number, noted) in steps {
                let count = &mut known[usize::try_from(number).unwrap()];
                if noted {
                    filter.note(make(number));
                    *count += 1;
                } else if *count > 0 {
                    filter.forget(make(number));
                    *count -= 1;
                }
                let mut there = (0..).zip(&known).filter(|(_, count)| **count > 0);
                prop_assert!(there.all(|(number, _)| filter.may_have(make(number))));
            }
            for (number, count) in (0..).zip(known) {
                (0..count).for_each(|_| filter.forget(make(number)));
            }
            prop_assert!(filter.is_blank());
        }
    }
}
