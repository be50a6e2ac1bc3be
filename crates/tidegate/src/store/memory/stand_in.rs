//! What a memory does that stands in for a store that is lost.

use super::{Memory, charge};
use crate::clock::Now;
use crate::plan::Level;
use crate::units::Amount;

impl Memory {
    /// Lets a key owe at least so much as of some time, unless it was charged here since.
    pub(crate) fn begin_with(&self, level: &Level, at: Now, owed: Amount) {
        let (at_us, capacity) = (level.time_us(at), level.spec.capacity());
        let table = self.table_for(level.family);
        let held = table.hold(level.key);
        let found = table.find(&held, level.key);
        let known = found.and_then(|found| {
            table.look(&held, found.words, |record| {
                let left = record.ledger.reading(&level.spec, at_us).available;
                (record.charged_us, capacity.saturating_sub(left))
            })
        });
        if known.is_some_and(|(charged_us, _)| charged_us >= at_us) {
            return;
        }
        let cost = owed.saturating_sub(known.map_or(Amount::ZERO, |(_, owes)| owes));
        if !cost.is_zero() {
            charge::charge(&table, &held, found, &Level { cost, ..*level }, at_us, 0);
        }
        drop(held);
        table.grow();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::algorithm::{Spec, token_bucket};
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
            key: Key::counted(1),
            spec: Spec::TokenBucket(spec),
            cost: Amount::ONE,
            refundable: false,
            reserved: false,
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
    }

    #[test]
    fn a_key_owes_whatever_is_more_of_what_is_known() {
        let memory = Memory::new();
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US), 9);
        memory.begin_with(&bucket(), at(5 * SECOND_US + 1), Amount::ONE);
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US + 2), 8, "it owed that much already");
        memory.begin_with(&bucket(), at(6 * SECOND_US), ten());
        assert_eq!(left(&memory, bucket(), 6 * SECOND_US), 0);
        assert_eq!(memory.keys(), 1);
    }
}
