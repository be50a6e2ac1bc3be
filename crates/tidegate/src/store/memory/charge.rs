//! Charging the key of a level, in its slot where it fits.

use super::rate::Taken;
use super::record::Record;
use super::segment::{Found, Held};
use super::slot::Words;
use super::specs::fit_slots;
use super::table::Table;
use super::view;
use crate::algorithm::{self, Reading, Spec, Verdict, fixed_window, same_pace, token_bucket};
use crate::clock::Now;
use crate::plan::Level;
use crate::units::Amount;

/// Charges a level; returns when, which is never before what was charged to the same state, and what
/// the level shows then.
pub(super) fn charge(
    table: &Table,
    held: &Held<'_>,
    found: Option<Found<'_>>,
    level: &Level,
    now_us: u64,
    holder: u64,
) -> (u64, Reading) {
    let charged = match found {
        Some(found) => charge_slot(table, held, found, level, now_us),
        None => put_slot(table, held, level, now_us),
    };
    if let Some(charged) = charged {
        return charged;
    }
    with_record(table, held, found, level, now_us, |record| record.charge(level, now_us, holder))
        .unwrap_or_else(|| {
            let now = Now { steady_us: now_us, unix_us: now_us };
            (now_us, view::fresh_reading(level, now))
        })
}

/// What the slot of a key says once a level is charged, and what the level shows then; `None` where its
/// cost does not fit, or it takes more than the slot. There are no words of a key that is not there; then
/// the spec must have a number.
#[inline(always)]
pub(super) fn draft(
    table: &Table,
    words: Option<Words>,
    level: &Level,
    now_us: u64,
) -> Option<(Words, Reading)> {
    if level.is_given_back() || level.cost.is_zero() {
        return None;
    }
    let (number, known) = match words {
        Some(words) => (words.number(), table.specs.get(words.number())?),
        None => table.specs.find(&level.spec).filter(|_| fit_slots(&level.spec))?,
    };
    match (&level.spec, &known.spec) {
        (Spec::TokenBucket(spec), Spec::TokenBucket(same))
            if spec == same && words.is_none_or(Words::is_bucket) =>
        {
            let words = words.unwrap_or_else(|| Words::full_bucket(number, now_us));
            let Taken { words, state, .. } = known.rate.take(words, now_us, level.cost)?;
            Some((words?, token_bucket::reading_taken(&state, &known.rate.spec, now_us)))
        }
        (Spec::FixedWindow(spec), Spec::FixedWindow(same)) if spec == same => {
            let mut state = words.map_or_else(|| Some(Default::default()), Words::window)?;
            let (verdict, reading) = fixed_window::take(&mut state, spec, now_us, level.cost);
            let words = Words::pack_window(&state, number)?;
            (verdict == Verdict::Allowed).then_some((words, reading))
        }
        (spec, _) if known.is(spec) => {
            let mut state = words.map_or_else(|| spec.new_state(), |words| words.state(known))?;
            let verdict = algorithm::evaluate(&state, spec, now_us, level.cost);
            algorithm::charge(&mut state, spec, now_us, 0, level.cost);
            let charged_us = words.map_or(now_us, |words| words.at_us().max(now_us));
            let words = Words::pack(&state, spec, number, known, charged_us)?;
            let reading = algorithm::reading(&state, spec, now_us);
            (verdict == Verdict::Allowed).then_some((words, reading))
        }
        _ => None,
    }
}

/// The same of a key that is not there, out of the way of those that are.
#[inline(never)]
pub(super) fn draft_new(table: &Table, level: &Level, now_us: u64) -> Option<(Words, Reading)> {
    draft(table, None, level, now_us)
}

/// Charges an amount that nobody asked for; returns whether there is something to charge.
pub(super) fn debit(
    table: &Table,
    held: &Held<'_>,
    found: Option<Found<'_>>,
    level: &Level,
    now_us: u64,
    amount: Amount,
) -> bool {
    let places = matches!(level.spec, Spec::Concurrency(_));
    if places || amount.is_zero() {
        return false;
    }
    let debit = |record: &mut Record| record.debit(level, now_us, amount);
    with_record(table, held, found, level, now_us, debit).is_some()
}

/// A key that is refused under other numbers than it was charged with must last as long as these say,
/// or it would be as new before its wait is over.
pub(super) fn open(
    table: &Table,
    held: &Held<'_>,
    found: Option<Found<'_>>,
    level: &Level,
    now_us: u64,
) {
    let Some(found) = found else { return };
    let has_pace = match found.words.place() {
        None => !lacks_pace(Some(table), Some(found), level),
        Some(place) => {
            held.look(place, |record| record.ledger.has_pace_of(&level.spec)).unwrap_or(true)
        }
    };
    if !has_pace {
        table.change(held, found, |record| record.ledger.open(&level.spec, now_us));
    }
}

/// Whether a slot was charged at another pace than that of a level.
pub(super) fn lacks_pace(table: Option<&Table>, found: Option<Found<'_>>, level: &Level) -> bool {
    let known = table.zip(found).and_then(|(table, found)| table.specs.get(found.words.number()));
    known.is_some_and(|known| !same_pace(&known.spec, &level.spec))
}

/// Charges a key whose slot holds all there is, and will; `None` where it does not.
fn charge_slot(
    table: &Table,
    held: &Held<'_>,
    found: Found<'_>,
    level: &Level,
    now_us: u64,
) -> Option<(u64, Reading)> {
    let words = found.words;
    if level.is_given_back() || words.place().is_some() {
        return None;
    }
    let number = words.number();
    let known = table.specs.get(number).filter(|known| known.is(&level.spec))?;
    let (words, reading) = match (words.bucket(known), &level.spec) {
        (Some(mut state), Spec::TokenBucket(spec)) => {
            token_bucket::charge(&mut state, spec, now_us, level.cost);
            let words = Words::pack_bucket(&state, number, known)?;
            (words, token_bucket::reading(&state, spec, now_us))
        }
        (_, spec) => {
            let mut state = words.state(known)?;
            algorithm::charge(&mut state, spec, now_us, 0, level.cost);
            let charged_us = words.at_us().max(now_us);
            let words = Words::pack(&state, spec, number, known, charged_us)?;
            (words, algorithm::reading(&state, spec, now_us))
        }
    };
    table.set(held, found, words);
    Some((words.at_us(), reading))
}

/// Puts a key in that fits a slot; `None` where it does not.
fn put_slot(table: &Table, held: &Held<'_>, level: &Level, now_us: u64) -> Option<(u64, Reading)> {
    if level.is_given_back() {
        return None;
    }
    // So that it has one.
    table.specs.number_of(&level.spec)?;
    let (words, reading) = draft_new(table, level, now_us)?;
    table.put_words(held, level.key, words, now_us);
    Some((words.at_us(), reading))
}

/// Charges the record of a level, which is made if there is none; `None` where nothing is stored.
fn with_record<T>(
    table: &Table,
    held: &Held<'_>,
    found: Option<Found<'_>>,
    level: &Level,
    now_us: u64,
    charge: impl FnOnce(&mut Record) -> T,
) -> Option<T> {
    match found {
        Some(found) => table.change(held, found, charge),
        None => {
            let mut record = Record::new(level, now_us)?;
            let charged = charge(&mut record);
            table.put(held, level.key, record, now_us);
            Some(charged)
        }
    }
}
