//! What a memory does that stands in for a store that is lost.

use std::sync::atomic::Ordering;

use super::{Memory, Slot, lock};
use crate::algorithm::Ledger;
use crate::clock::Now;
use crate::plan::Level;
use crate::units::Amount;

impl Memory {
    /// Starts a key with what it owed at some time, unless it was charged here since.
    pub(crate) fn begin_with(&self, level: &Level, at: Now, owed: Amount) {
        let at_us = level.time_us(at);
        let mut shard = lock(&self.shards[Self::shard_of(level.family)]);
        let table = shard.tables.entry(level.family).or_default();
        if table.slots.get(&level.key).is_some_and(|slot| slot.charged_us >= at_us) {
            return;
        }
        table.remove(level.key);
        let Some(ledger) = Ledger::new(&level.spec).filter(|_| !owed.is_zero()) else { return };
        let evicted = table.make_room(at_us, self.share());
        self.evicted.fetch_add(evicted, Ordering::Relaxed);
        let mut slot = Slot::new(ledger, at_us);
        slot.charge(&Level { cost: owed, ..*level }, at_us, 0);
        table.insert(level.key, slot);
    }

    /// Forgets every key but those of places, which somebody may still hold.
    pub(crate) fn forget_all_but_places(&self) {
        for shard in &self.shards {
            for table in lock(shard).tables.values_mut() {
                table.retain(|slot| slot.ledger.holds_places());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::algorithm::{Spec, concurrency, token_bucket};
    use crate::plan::{Enforcement, Mode, Plan};
    use crate::policy::model::OnStoreFailure;

    const SECOND_US: u64 = 1_000_000;

    fn at(us: u64) -> Now {
        Now { steady_us: us, unix_us: us }
    }

    fn ten() -> Amount {
        Amount::from_units(10).unwrap()
    }

    /// Ten, one of which comes back each second.
    fn bucket() -> Level {
        let spec = token_bucket::Spec { count: Amount::ONE, period_us: SECOND_US, burst: ten() };
        Level {
            limit: 0,
            family: 1,
            key: Key(1),
            spec: Spec::TokenBucket(spec),
            cost: Amount::ONE,
            refundable: false,
            leased: false,
            enforcement: Enforcement::Reject,
            on_store_failure: OnStoreFailure::Local,
        }
    }

    /// What is left of a level, after it was charged.
    fn left(memory: &Memory, level: Level, now_us: u64) -> u64 {
        let mut plan = Plan::new(Mode::Charge);
        (plan.now, plan.holder) = (at(now_us), 7);
        plan.levels.push(level);
        memory.answer(&plan).replies[0].reading.available.whole()
    }

    #[test]
    fn a_key_begins_with_what_it_owed_and_pays_it_back() {
        let memory = Memory::new();
        memory.begin_with(&bucket(), at(SECOND_US), ten());
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US), 3, "four have come back, one is spent");
    }

    #[test]
    fn what_was_charged_since_counts_more_than_what_is_older() {
        let memory = Memory::new();
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US), 9);
        memory.begin_with(&bucket(), at(4 * SECOND_US), ten());
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US), 8);
        memory.begin_with(&bucket(), at(6 * SECOND_US), ten());
        assert_eq!(left(&memory, bucket(), 6 * SECOND_US), 0);
        assert_eq!(memory.keys(), 1);
    }

    #[test]
    fn places_that_are_held_outlive_the_rest() {
        let memory = Memory::new();
        let places = concurrency::Spec { places: Amount::ONE, lease_us: 60 * SECOND_US };
        let place = Level { family: 2, spec: Spec::Concurrency(places), ..bucket() };
        left(&memory, bucket(), SECOND_US);
        assert_eq!(left(&memory, place, SECOND_US), 0);
        memory.forget_all_but_places();
        assert_eq!(memory.keys(), 1);
        assert_eq!(left(&memory, bucket(), SECOND_US), 9);
    }
}
