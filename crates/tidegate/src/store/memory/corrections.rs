//! Changes of keys beside decisions: corrections of earlier charges, and the debts that a fallback begins with.

use super::level;
use super::record::Record;
use super::segment::{LookupHit, SegmentGuard};
use super::table::Table;
use super::{Amendment, Memory};
use crate::clock::Now;
use crate::plan::Level;
use crate::store::Change;
use crate::units::Amount;

impl Memory {
    /// Makes one correction; returns whether it found the charge that it was to change.
    pub(super) fn amend(&self, amendment: &Amendment, now: Now) -> bool {
        let Amendment { level, charged_at_us, holder, change, .. } = amendment;
        let (spec, now_us) = (&level.spec, level.time_us(now));
        if let Change::Debit(amount) = change {
            return self.debit(level, now, *amount);
        }
        let Some(table) = self.table(level.family) else { return false };
        let guard = table.lock(level.key);
        let Some(hit) = table.find(&guard, level.key) else {
            if *change == Change::Reset && table.removals.is_incomplete() {
                // The key may be one of the evictions that the journal was not told of.
                table.note_reset(level.key);
            }
            return false;
        };
        let changed = |change: &dyn Fn(&mut Record) -> bool| {
            table.change_record(&guard, hit, change).unwrap_or(false)
        };
        match change {
            Change::Reset => {
                table.remove(&guard, hit);
                true
            }
            Change::Refund(amount) => correct(&table, &guard, hit, amendment, |record| {
                record.ledger.refund(spec, now_us, *charged_at_us, *amount);
            }),
            Change::Surcharge(amount) => correct(&table, &guard, hit, amendment, |record| {
                record.ledger.surcharge(spec, now_us, *charged_at_us, *amount);
            }),
            Change::Release => changed(&|record| {
                // A place whose lease has expired is still listed, but not held any more.
                let is_held = record.ledger.renew(spec, now_us, *holder);
                record.ledger.release(*holder) && is_held
            }),
            Change::Renew => changed(&|record| record.ledger.renew(spec, now_us, *holder)),
            Change::Debit(_) => false,
        }
    }

    fn debit(&self, level: &Level, now: Now, amount: Amount) -> bool {
        let table = self.table_or_create(level.family);
        let guard = table.lock(level.key);
        let hit = table.find(&guard, level.key);
        let is_debited = level::debit(&table, &guard, hit, level, level.time_us(now), amount);
        drop(guard);
        table.grow(now);
        is_debited
    }

    /// Makes a key owe at least this much as of an instant, unless it was charged here since. A fallback begins with
    /// what the lost store last said.
    pub(crate) fn raise_debt(&self, level: &Level, at: Now, owed: Amount) {
        let (at_us, capacity) = (level.time_us(at), level.spec.capacity());
        let table = self.table_or_create(level.family);
        let guard = table.lock(level.key);
        let hit = table.find(&guard, level.key);
        let known = hit.and_then(|hit| {
            table.with_record(&guard, hit.state, |record| {
                let left = record.ledger.reading(&level.spec, at_us).available;
                (record.charged_us, capacity.saturating_sub(left))
            })
        });
        if known.is_some_and(|(charged_us, _)| charged_us >= at_us) {
            return;
        }
        let cost = owed.saturating_sub(known.map_or(Amount::ZERO, |(_, owed)| owed));
        if !cost.is_zero() {
            level::charge(&table, &guard, hit, &Level { cost, ..*level }, at_us, 0);
        }
        drop(guard);
        table.grow(at);
    }
}

/// Corrects a charge, unless it was made to a state that is gone.
fn correct(
    table: &Table,
    guard: &SegmentGuard<'_>,
    hit: LookupHit<'_>,
    Amendment { level, charged_at_us, .. }: &Amendment,
    correct: impl Fn(&mut Record),
) -> bool {
    let is_packed = hit.state.overflow_index().is_none();
    if is_packed && level.is_given_back() {
        // Charges that may be given back stand in the overflow, so the charge was made to a state that is gone.
        return false;
    }
    let change = |record: &mut Record| {
        if *charged_at_us < record.created_us {
            return false;
        }
        // A slot knows its last charge only. Of an earlier one, only the part is certain that cannot have been paid
        // back yet.
        if is_packed && *charged_at_us < record.charged_us {
            record.ledger.doubt();
        }
        correct(record);
        true
    };
    table.change_record(guard, hit, change).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Spec, token_bucket};
    use crate::key::Key;
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
        memory.raise_debt(&bucket(), at(SECOND_US), ten());
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US), 3, "four have come back, one is spent");
    }

    #[test]
    fn what_was_charged_since_counts_more_than_what_is_older() {
        let memory = Memory::new();
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US), 9);
        memory.raise_debt(&bucket(), at(4 * SECOND_US), ten());
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US), 8);
    }

    #[test]
    fn a_key_owes_whatever_is_more_of_what_is_known() {
        let memory = Memory::new();
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US), 9);
        memory.raise_debt(&bucket(), at(5 * SECOND_US + 1), Amount::ONE);
        assert_eq!(left(&memory, bucket(), 5 * SECOND_US + 2), 8, "it owed that much already");
        memory.raise_debt(&bucket(), at(6 * SECOND_US), ten());
        assert_eq!(left(&memory, bucket(), 6 * SECOND_US), 0);
        assert_eq!(memory.keys(), 1);
    }
}
