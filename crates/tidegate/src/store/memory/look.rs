//! Looking into a memory store, as operators do: one key, or the keys of a limit page by page.

use std::ops::Bound;

use super::{Memory, Slot, Table, lock};
use crate::clock::Now;
use crate::key::Key;
use crate::store::Counted;

/// How many keys are compared while a shard is held.
const COMPARED: usize = 4_096;

/// A place among the keys of a limit.
pub type Place = (u64, Key);

/// Some keys of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Those that mean something.
    pub keys: Vec<(Key, Counted)>,
    /// How many were looked at.
    pub seen: usize,
    /// Where the next page begins; `None` behind the last.
    pub next: Option<Place>,
}

impl Memory {
    /// What is counted for one key; `None` if that means nothing.
    #[must_use]
    pub fn counted(&self, family: u64, key: Key, now: Now) -> Option<Counted> {
        let shard = lock(&self.shards[Self::shard_of(family)]);
        shard.tables.get(&family)?.slots.get(&key)?.counted(now)
    }

    /// A key of a limit that is looked for by something else than itself.
    #[must_use]
    pub fn find(&self, family: u64, wanted: impl Fn(Key) -> bool) -> Option<Key> {
        let mut after = None;
        loop {
            let shard = lock(&self.shards[Self::shard_of(family)]);
            let places = shard.tables.get(&family)?.places(after, COMPARED);
            drop(shard);
            after = Some(*places.last()?);
            if let Some((_, key)) = places.into_iter().find(|(_, key)| wanted(*key)) {
                return Some(key);
            }
        }
    }

    /// The keys of a limit behind a place, at most so many of them. They stand in the order in which
    /// they lose their meaning: one that is charged between two pages may be on both, and one that is
    /// given something back on neither.
    #[must_use]
    pub fn page(&self, family: u64, after: Option<Place>, count: usize, now: Now) -> Page {
        let shard = lock(&self.shards[Self::shard_of(family)]);
        shard.tables.get(&family).map(|table| table.page(after, count, now)).unwrap_or_default()
    }
}

impl Table {
    fn places(&self, after: Option<Place>, count: usize) -> Vec<Place> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_meaning.range((from, Bound::Unbounded)).take(count).copied().collect()
    }

    fn page(&self, after: Option<Place>, count: usize, now: Now) -> Page {
        let places = self.places(after, count);
        let counted = |place: &Place| Some((place.1, self.slots.get(&place.1)?.counted(now)?));
        Page {
            keys: places.iter().filter_map(counted).collect(),
            seen: places.len(),
            next: places.last().copied().filter(|_| places.len() == count),
        }
    }
}

impl Slot {
    fn counted(&self, now: Now) -> Option<Counted> {
        let now_us = self.ledger.time_us(now);
        if self.meaningless_at_us <= now_us {
            return None;
        }
        let ends_in_us = self.ledger.meaningless_at_us().map(|at_us| at_us.saturating_sub(now_us));
        Some(Counted::new(self.ledger.paces(now_us), ends_in_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Spec, total};
    use crate::plan::{Level, Mode, Plan};
    use crate::units::Amount;

    const NOW: Now = Now { steady_us: 1_000_000, unix_us: 1_000_000 };

    /// A store in which these keys have spent as much as they are called.
    fn spent(keys: std::ops::RangeInclusive<u64>) -> Memory {
        let (memory, limit) = (Memory::new(), Amount::from_units(1_000).unwrap());
        for key in keys {
            let mut plan = Plan::new(Mode::Charge);
            plan.now = NOW;
            let spec = Spec::Total(total::Spec { limit });
            let cost = Amount::from_units(key).unwrap();
            plan.levels.push(Level { cost, ..Level::of_key(7, Key(key.into()), spec) });
            memory.answer(&plan);
        }
        memory
    }

    #[test]
    fn pages_hold_every_key_once() {
        let memory = spent(1..=10);
        for count in [1, 3, 10, 100] {
            let (mut found, mut seen, mut after) = (Vec::new(), 0, None);
            loop {
                let page = memory.page(7, after, count, NOW);
                assert!(page.keys.len() <= count);
                found.extend(page.keys.iter().map(|(key, _)| key.0));
                seen += page.seen;
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            found.sort_unstable();
            assert_eq!((found, seen), ((1..=10).collect(), 10), "{count} a page");
        }
        assert_eq!(memory.page(8, None, 10, NOW), Page::default(), "of another limit");
    }

    #[test]
    fn a_key_shows_what_it_spent_and_a_strange_one_nothing() {
        let memory = spent(1..=3);
        let counted = memory.counted(7, Key(3), NOW).unwrap();
        assert_eq!(counted.paces[0].reading.available, Amount::from_units(997).unwrap());
        assert_eq!(counted.ends_in_us, None, "a total never ends by itself");
        assert_eq!(memory.counted(7, Key(4), NOW), None);
        assert_eq!(memory.find(7, |key| key.0 == 2), Some(Key(2)));
        assert_eq!(memory.find(7, |key| key.0 == 4), None);
        assert_eq!(memory.find(8, |_| true), None);
    }
}
