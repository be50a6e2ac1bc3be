//! Looking into a memory store, as operators do: one key, or the keys of a limit page by page.

use super::Memory;
use super::record::Record;
use super::segment::Held;
use super::table::{Table, place_of};
use crate::clock::Now;
use crate::key::Key;
use crate::store::KeyUsage;

/// A place among the keys of a limit, which stays theirs while the table grows.
pub type Place = (u64, Key);

/// Some keys of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Those that mean something.
    pub keys: Vec<(Key, KeyUsage)>,
    /// How many were looked at.
    pub seen: usize,
    /// Where the next page begins; `None` behind the last.
    pub next: Option<Place>,
}

impl Memory {
    /// What is counted for one key; `None` if that means nothing.
    #[must_use]
    pub fn counted(&self, family: u64, key: Key, now: Now) -> Option<KeyUsage> {
        let table = self.table(family)?;
        let held = table.hold(key);
        let found = table.find(&held, key)?;
        table.look(&held, found.words, |record| record.counted(now))?
    }

    /// A key of a limit that is looked for by something else than itself.
    #[must_use]
    pub fn find(&self, family: u64, wanted: impl Fn(Key) -> bool) -> Option<Key> {
        let table = self.table(family)?;
        let mut next = Some(0);
        while let Some(position) = next {
            let (held, behind) = table.hold_at(position);
            if let Some((key, _)) = table.keys_of(&held).find(|(key, _)| wanted(*key)) {
                return Some(key);
            }
            next = behind;
        }
        None
    }

    /// The keys of a limit behind a place, at most so many of them. Their order means nothing, but
    /// stays: every key that is there all the while is on one page.
    #[must_use]
    pub fn page(&self, family: u64, after: Option<Place>, count: usize, now: Now) -> Page {
        let mut page = Page::default();
        let Some(table) = self.table(family) else { return page };
        let (mut next, mut last) = (Some(after.map_or(0, |(position, _)| position)), None);
        while let Some(position) = next {
            let (held, behind) = table.hold_at(position);
            for place in table.places(&held, after) {
                if page.seen == count {
                    page.next = last;
                    return page;
                }
                (page.seen, last) = (page.seen + 1, Some(place));
                page.keys.extend(table.counted(&held, place.1, now));
            }
            next = behind;
        }
        page.next = last.filter(|_| page.seen == count);
        page
    }
}

impl Table {
    /// The places of a segment behind one, in their order.
    fn places(&self, held: &Held<'_>, after: Option<Place>) -> Vec<Place> {
        let places = self.keys_of(held).map(|(key, _)| place_of(key));
        let mut places: Vec<Place> = places.filter(|place| Some(*place) > after).collect();
        places.sort_unstable();
        places
    }

    fn counted(&self, held: &Held<'_>, key: Key, now: Now) -> Option<(Key, KeyUsage)> {
        let found = self.find(held, key)?;
        Some((key, self.look(held, found.words, |record| record.counted(now))??))
    }
}

impl Record {
    fn counted(&self, now: Now) -> Option<KeyUsage> {
        let now_us = self.time_us(now);
        let end_us = self.ledger.meaningless_at_us();
        if end_us.is_some_and(|end_us| end_us <= now_us) {
            return None;
        }
        let ends_in_us = end_us.map(|end_us| end_us.saturating_sub(now_us));
        Some(KeyUsage::new(self.ledger.paces(now_us), ends_in_us))
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
            plan.levels.push(Level { cost, ..Level::of_key(7, Key::counted(key.into()), spec) });
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
                found.extend(page.keys.iter().map(|(key, _)| u128::from(key.number())));
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
        let counted = memory.counted(7, Key::counted(3), NOW).unwrap();
        assert_eq!(counted.paces[0].reading.available, Amount::from_units(997).unwrap());
        assert_eq!(counted.ends_in_us, None, "a total never ends by itself");
        assert_eq!(memory.counted(7, Key::counted(4), NOW), None);
        assert_eq!(memory.find(7, |key| key == Key::counted(2)), Some(Key::counted(2)));
        assert_eq!(memory.find(7, |key| key == Key::counted(4)), None);
        assert_eq!(memory.find(8, |_| true), None);
    }
}
