//! What was spent, and when: a ring of bytes, since a limit of a hundred has a hundred of them.
//!
//! An entry is its cost, unless that is one unit, and the time since the one before it, each in as few
//! bytes as it needs: three or four for most, where two whole numbers would take sixteen. The newest
//! stands by itself, so that adding to it rewrites nothing and a log of one entry has no ring.

use std::collections::{VecDeque, vec_deque};

use super::Entry;
use crate::units::Amount;

/// A log, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// All but the newest.
    packed: VecDeque<u8>,
    packed_count: usize,
    /// What the time of the oldest that is packed counts from.
    from_us: u64,
    /// When the newest that is packed was.
    before_us: u64,
    newest: Option<Entry>,
    total_micros: u64,
}

/// The entries of a log, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries<'l> {
    bytes: vec_deque::Iter<'l, u8>,
    packed_count: usize,
    before_us: u64,
    newest: Option<Entry>,
}

/// What a number of an entry is, as its lowest bit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The time since the entry before it, with which every entry ends.
    Since = 0,
    /// Its cost, where that is not one unit.
    Cost = 1,
}

impl Log {
    pub(super) fn entries(&self) -> Entries<'_> {
        let Self { packed, packed_count, from_us, newest, .. } = self;
        Entries {
            bytes: packed.iter(),
            packed_count: *packed_count,
            before_us: *from_us,
            newest: *newest,
        }
    }

    pub(super) fn newest_us(&self) -> Option<u64> {
        self.newest.map(|newest| newest.at_us)
    }

    /// What all entries come to.
    pub(super) fn total_micros(&self) -> u64 {
        self.total_micros
    }

    /// Adds an entry that is no older than the newest. The caller knows that the total fits.
    pub(super) fn push(&mut self, entry: Entry) {
        self.total_micros += entry.cost_micros;
        let Some(Entry { at_us, cost_micros }) = self.newest.replace(entry) else { return };
        if self.packed_count == 0 {
            (self.from_us, self.before_us) = (at_us, at_us);
        }
        if cost_micros != Amount::ONE.micros() {
            write(&mut self.packed, Kind::Cost, cost_micros);
        }
        write(&mut self.packed, Kind::Since, at_us - self.before_us);
        self.packed_count += 1;
        self.before_us = at_us;
    }

    /// Takes the newest entry out.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let popped = self.newest.take()?;
        self.total_micros -= popped.cost_micros;
        if self.packed_count > 0 {
            let since_us = take_last(&mut self.packed, Kind::Since).unwrap_or(0);
            let cost_micros = take_last(&mut self.packed, Kind::Cost);
            let cost_micros = cost_micros.unwrap_or(Amount::ONE.micros());
            self.newest = Some(Entry { at_us: self.before_us, cost_micros });
            self.before_us = self.before_us.saturating_sub(since_us);
            self.packed_count -= 1;
        }
        Some(popped)
    }

    /// Adds to the newest entry, which is of this later instant then.
    pub(super) fn add_to_newest(&mut self, at_us: u64, cost_micros: u64) {
        if let Some(newest) = &mut self.newest {
            newest.at_us = at_us;
            newest.cost_micros += cost_micros;
            self.total_micros += cost_micros;
        }
    }

    /// Drops the oldest entries; the newest stays.
    pub(super) fn forget_oldest(&mut self, count: usize) {
        let mut entries = self.entries();
        let oldest = entries.by_ref().take(count.min(self.packed_count));
        let forgotten: u64 = oldest.map(|entry| entry.cost_micros).sum();
        let (left, count, from_us) = (entries.bytes.len(), entries.packed_count, entries.before_us);
        (self.packed_count, self.from_us) = (count, from_us);
        self.packed.drain(..self.packed.len() - left);
        self.total_micros -= forgotten;
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.packed_count == 0 {
            return self.newest.take();
        }
        self.packed_count -= 1;
        let (mut cost_micros, (mut kind, mut number)) =
            (Amount::ONE.micros(), read(&mut self.bytes));
        if kind == Kind::Cost {
            cost_micros = number;
            (kind, number) = read(&mut self.bytes);
        }
        debug_assert_eq!(kind, Kind::Since, "every entry ends with its time");
        self.before_us = self.before_us.saturating_add(number);
        Some(Entry { at_us: self.before_us, cost_micros })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.packed_count + usize::from(self.newest.is_some());
        (left, Some(left))
    }
}

impl ExactSizeIterator for Entries<'_> {}

/// Seven bits in each byte, the lowest first; the eighth says that more follow.
#[allow(clippy::cast_possible_truncation, reason = "the bits that are left out follow")]
fn write(bytes: &mut VecDeque<u8>, kind: Kind, number: u64) {
    let mut rest = (u128::from(number) << 1) | kind as u128;
    while rest >= 0x80 {
        bytes.push_back(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push_back(rest as u8);
}

fn read<'b>(bytes: impl IntoIterator<Item = &'b u8>) -> (Kind, u64) {
    let (mut number, mut shift) = (0_u128, 0_u32);
    for byte in bytes {
        number |= u128::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    let kind = if number & 1 == 1 { Kind::Cost } else { Kind::Since };
    (kind, u64::try_from(number >> 1).unwrap_or(u64::MAX))
}

/// Takes the last number off, if it is of this kind.
fn take_last(bytes: &mut VecDeque<u8>, kind: Kind) -> Option<u64> {
    // Its last byte, and all before that which say that more follow.
    let more = bytes.iter().rev().skip(1).take_while(|byte| *byte & 0x80 != 0).count();
    let start = bytes.len().checked_sub(more + 1)?;
    let (found, number) = read(bytes.range(start..));
    (found == kind).then(|| {
        bytes.truncate(start);
        number
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push { after_us: u64, cost_micros: u64 },
        AddToNewest { after_us: u64, cost_micros: u64 },
        ForgetOldest(usize),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let after = || prop_oneof![Just(0), 0..300_u64, 0..1_u64 << 40];
        let cost = || prop_oneof![3 => Just(Amount::ONE.micros()), 1 => 0..1_u64 << 50];
        let push = (after(), cost());
        let push = push.prop_map(|(after_us, cost_micros)| Step::Push { after_us, cost_micros });
        let add = (after(), cost());
        let add =
            add.prop_map(|(after_us, cost_micros)| Step::AddToNewest { after_us, cost_micros });
        let forget = (0..5_usize).prop_map(Step::ForgetOldest);
        let step = prop_oneof![6 => push, 1 => add, 2 => forget, 2 => Just(Step::Pop)];
        prop::collection::vec(step, 0..80)
    }

    fn of(entries: impl IntoIterator<Item = Entry>) -> Log {
        let mut log = Log::default();
        entries.into_iter().for_each(|entry| log.push(entry));
        log
    }

    fn all(log: &Log) -> Vec<Entry> {
        log.entries().collect()
    }

    proptest! {
        #[test]
        fn it_holds_what_a_plain_list_would(start_us in 0..u64::MAX / 2, steps in steps()) {
            let (mut log, mut plain) = (Log::default(), Vec::<Entry>::new());
            for step in steps {
                let newest_us = plain.last().map_or(start_us, |entry| entry.at_us);
                match step {
                    Step::Push { after_us, cost_micros } => {
                        let entry = Entry { at_us: newest_us + after_us, cost_micros };
                        log.push(entry);
                        plain.push(entry);
                    }
                    Step::AddToNewest { after_us, cost_micros } => {
                        log.add_to_newest(newest_us + after_us, cost_micros);
                        if let Some(newest) = plain.last_mut() {
                            newest.at_us += after_us;
                            newest.cost_micros += cost_micros;
                        }
                    }
                    Step::ForgetOldest(count) => {
                        log.forget_oldest(count);
                        plain.drain(..count.min(plain.len().saturating_sub(1)));
                    }
                    Step::Pop => prop_assert_eq!(log.pop(), plain.pop()),
                }
                prop_assert_eq!(log.entries().len(), plain.len());
                prop_assert_eq!(all(&log), plain.clone());
                let total: u64 = plain.iter().map(|entry| entry.cost_micros).sum();
                prop_assert_eq!(log.total_micros(), total);
                prop_assert_eq!(log.newest_us(), plain.last().map(|entry| entry.at_us));
            }
        }
    }

    #[test]
    fn the_longest_time_and_cost_are_held() {
        let ends = [0, u64::MAX - 1, u64::MAX].map(|at_us| Entry { at_us, cost_micros: at_us / 4 });
        assert_eq!(all(&of(ends)), ends);
    }

    #[test]
    fn a_hit_a_second_takes_three_bytes() {
        let one = Amount::ONE.micros();
        let hit = |second: u64| Entry { at_us: second * 1_000_000, cost_micros: one };
        assert!(of((0..100).map(hit)).packed.len() <= 300);
    }
}
