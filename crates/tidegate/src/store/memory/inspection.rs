//! Looking into a memory store, as operators do: one key, or the keys of a limit page by page.

use super::Memory;
use super::record::Record;
use super::table::position_of;
use crate::clock::Now;
use crate::key::Key;
use crate::store::KeyUsage;

/// A position among the keys of a limit, which stays valid while the table grows.
pub type KeyCursor = (u64, Key);

/// Some keys of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The live keys.
    pub keys: Vec<(Key, KeyUsage)>,
    /// How many keys were looked at, expired ones included.
    pub scanned: usize,
    /// Where the next page begins; `None` behind the last.
    pub next: Option<KeyCursor>,
}

impl Memory {
    /// What a key has used; `None` if it is expired or was never charged.
    #[must_use]
    pub fn key_usage(&self, family: u64, key: Key, now: Now) -> Option<KeyUsage> {
        let table = self.table(family)?;
        let guard = table.lock(key);
        let hit = table.find(&guard, key)?;
        table.with_record(&guard, hit.state, |record| record.usage(now))?
    }

    /// The first key of a limit that matches.
    #[must_use]
    pub fn find_key(&self, family: u64, is_match: impl Fn(Key) -> bool) -> Option<Key> {
        let table = self.table(family)?;
        table
            .lock_each()
            .find_map(|guard| table.keys_of(&guard).map(|(key, _)| key).find(|key| is_match(*key)))
    }

    /// At most `count` keys of a limit behind a cursor. The order means nothing but stays: every key that exists all
    /// the while is on exactly one page.
    #[must_use]
    pub fn key_page(
        &self,
        family: u64,
        after: Option<KeyCursor>,
        count: usize,
        now: Now,
    ) -> KeyPage {
        let mut page = KeyPage::default();
        let Some(table) = self.table(family) else { return page };
        let (mut next, mut last) = (Some(after.map_or(0, |(position, _)| position)), None);
        while let Some(position) = next {
            let (guard, behind) = table.lock_at(position);
            let keys = table.keys_of(&guard).map(|(key, state)| (position_of(key), state));
            let mut keys: Vec<_> = keys.filter(|(cursor, _)| Some(*cursor) > after).collect();
            keys.sort_unstable_by_key(|(cursor, _)| *cursor);
            for (cursor, state) in keys {
                if page.scanned == count {
                    page.next = last;
                    return page;
                }
                (page.scanned, last) = (page.scanned + 1, Some(cursor));
                let usage = table.with_record(&guard, state, |record| record.usage(now)).flatten();
                page.keys.extend(usage.map(|usage| (cursor.1, usage)));
            }
            next = behind;
        }
        page.next = last.filter(|_| page.scanned == count);
        page
    }
}

impl Record {
    fn usage(&self, now: Now) -> Option<KeyUsage> {
        let now_us = self.time_us(now);
        let expires_us = self.ledger.meaningless_at_us();
        if expires_us.is_some_and(|us| us <= now_us) {
            return None;
        }
        let ends_in_us = expires_us.map(|us| us.saturating_sub(now_us));
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
            let (mut hit, mut seen, mut after) = (Vec::new(), 0, None);
            loop {
                let page = memory.key_page(7, after, count, NOW);
                assert!(page.keys.len() <= count);
                hit.extend(page.keys.iter().map(|(key, _)| u128::from(key.number())));
                seen += page.scanned;
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            hit.sort_unstable();
            assert_eq!((hit, seen), ((1..=10).collect(), 10), "{count} a page");
        }
        assert_eq!(memory.key_page(8, None, 10, NOW), KeyPage::default(), "of another limit");
    }

    #[test]
    fn a_key_shows_what_it_spent_and_a_strange_one_nothing() {
        let memory = spent(1..=3);
        let counted = memory.key_usage(7, Key::counted(3), NOW).unwrap();
        assert_eq!(counted.paces[0].reading.available, Amount::from_units(997).unwrap());
        assert_eq!(counted.ends_in_us, None, "a total never ends by itself");
        assert_eq!(memory.key_usage(7, Key::counted(4), NOW), None);
        assert_eq!(memory.find_key(7, |key| key == Key::counted(2)), Some(Key::counted(2)));
        assert_eq!(memory.find_key(7, |key| key == Key::counted(4)), None);
        assert_eq!(memory.find_key(8, |_| true), None);
    }
}
