//! Corrections of what was charged before.

use super::charge;
use super::record::Record;
use super::segment::{Found, Held};
use super::table::Table;
use super::{Amendment, Memory};
use crate::clock::Now;
use crate::store::Change;

impl Memory {
    /// Makes one correction; returns whether it found what it was to change.
    pub(super) fn amend(&self, amendment: &Amendment, now: Now) -> bool {
        let Amendment { level, charged_at_us, holder, change, .. } = amendment;
        let (spec, now_us) = (&level.spec, level.time_us(now));
        if let Change::Debit(amount) = change {
            let table = self.table_for(level.family);
            let held = table.hold(level.key);
            let found = table.find(&held, level.key);
            let debited = charge::debit(&table, &held, found, level, now_us, *amount);
            drop(held);
            table.grow();
            return debited;
        }
        let Some(table) = self.table(level.family) else { return false };
        let held = table.hold(level.key);
        let Some(found) = table.find(&held, level.key) else {
            if *change == Change::Reset && table.has_untold() {
                // It may have been one of those.
                table.note_reset(level.key);
            }
            return false;
        };
        let corrects = matches!(change, Change::Refund(_) | Change::Surcharge(_));
        if corrects && level.is_given_back() && found.words.place().is_none() {
            // What is meant to be given back is kept in full: this was charged to a state that is gone.
            return false;
        }
        let corrected = |correct: &dyn Fn(&mut Record)| {
            self::correct(&table, &held, found, *charged_at_us, correct)
        };
        match change {
            Change::Reset => {
                table.remove(&held, found);
                true
            }
            Change::Refund(amount) => corrected(&|record| {
                record.ledger.refund(spec, now_us, *charged_at_us, *amount);
            }),
            Change::Surcharge(amount) => corrected(&|record| {
                record.ledger.surcharge(spec, now_us, *charged_at_us, *amount);
            }),
            Change::Release => held_place(&table, &held, found, |record| {
                // A place whose lease has run out is no longer held, though still listed.
                let held = record.ledger.renew(spec, now_us, *holder);
                record.ledger.release(*holder) && held
            }),
            Change::Renew => held_place(&table, &held, found, |record| {
                record.ledger.renew(spec, now_us, *holder)
            }),
            Change::Debit(_) => false,
        }
    }
}

/// Corrects a charge, unless it was made to a state that is gone.
fn correct(
    table: &Table,
    held: &Held<'_>,
    found: Found<'_>,
    charged_at_us: u64,
    correct: &dyn Fn(&mut Record),
) -> bool {
    let was_packed = found.words.place().is_none();
    let correct = |record: &mut Record| {
        if charged_at_us < record.born_us {
            return false;
        }
        // A slot knows its last charge only: of one before that, what cannot have been paid back yet
        // is certain, and no more.
        if was_packed && charged_at_us < record.charged_us {
            record.ledger.doubt();
        }
        correct(record);
        true
    };
    table.change(held, found, correct).unwrap_or(false)
}

fn held_place(
    table: &Table,
    held: &Held<'_>,
    found: Found<'_>,
    change: impl FnOnce(&mut Record) -> bool,
) -> bool {
    table.change(held, found, change).unwrap_or(false)
}
