//! What a key says to a level: by its slot alone, or by its record where that is kept in full.

use super::segment::{Found, Held};
use super::slot::Words;
use super::table::Table;
use crate::algorithm::{self, Ledger, Reading, Spec, Verdict, ceiling, token_bucket};
use crate::clock::Now;
use crate::plan::Level;
use crate::units::Amount;

/// Whether the cost of a level fits; `None` where the slot does not tell.
pub(super) fn verdict(
    level: &Level,
    table: Option<&Table>,
    found: Option<Found<'_>>,
    now: Now,
) -> Option<Verdict> {
    let Some((table, Found { words, .. })) = table.zip(found) else {
        return Some(fresh_verdict(level, now));
    };
    if words.place().is_some() {
        return refusal(level, table, words, now).map(|(verdict, _)| verdict);
    }
    let (known, now_us) = (table.specs.get(words.number())?, level.time_us(now));
    Some(match (words.bucket(known), &level.spec) {
        (Some(state), Spec::TokenBucket(spec)) => {
            token_bucket::evaluate(&state, spec, now_us, level.cost)
        }
        (_, spec) => algorithm::evaluate(&words.state(known)?, spec, now_us, level.cost),
    })
}

/// What a level shows; `None` where the slot does not tell.
pub(super) fn reading(
    level: &Level,
    table: Option<&Table>,
    found: Option<Found<'_>>,
    now: Now,
) -> Option<Reading> {
    let Some((table, Found { words, .. })) = table.zip(found) else {
        return Some(fresh_reading(level, now));
    };
    if words.place().is_some() {
        return refusal(level, table, words, now).map(|(_, reading)| reading);
    }
    let (known, now_us) = (table.specs.get(words.number())?, level.time_us(now));
    Some(match (words.bucket(known), &level.spec) {
        (Some(state), Spec::TokenBucket(spec)) => token_bucket::reading(&state, spec, now_us),
        (_, spec) => algorithm::reading(&words.state(known)?, spec, now_us),
    })
}

/// What a level of cost one is told by a key that is full, though it is kept elsewhere; `None` where the slot
/// does not tell.
fn refusal(level: &Level, table: &Table, words: Words, now: Now) -> Option<(Verdict, Reading)> {
    let (until_us, end_us) = words.full_until_us().filter(|_| level.cost == Amount::ONE)?;
    table.specs.get(words.number()).filter(|known| known.is(&level.spec))?;
    let now_us = level.time_us(now);
    let retry_after_us = Some(until_us.checked_sub(now_us).filter(|us| *us > 0)?);
    let reading = Reading { available: Amount::ZERO, reset_us: Some(end_us - now_us) };
    Some((Verdict::Denied { retry_after_us }, reading))
}

/// As [`verdict`], of a key whose segment is held.
pub(super) fn verdict_held(
    level: &Level,
    table: &Table,
    held: &Held<'_>,
    found: Option<Found<'_>>,
    now: Now,
) -> Verdict {
    let now_us = level.time_us(now);
    verdict(level, Some(table), found, now)
        .or_else(|| {
            table.look(held, found?.words, |record| {
                record.ledger.evaluate(&level.spec, now_us, level.cost)
            })
        })
        .unwrap_or_else(|| fresh_verdict(level, now))
}

/// As [`reading`], of a key whose segment is held.
pub(super) fn reading_held(
    level: &Level,
    table: &Table,
    held: &Held<'_>,
    found: Option<Found<'_>>,
    now: Now,
) -> Reading {
    let now_us = level.time_us(now);
    reading(level, Some(table), found, now)
        .or_else(|| {
            table.look(held, found?.words, |record| record.ledger.reading(&level.spec, now_us))
        })
        .unwrap_or_else(|| fresh_reading(level, now))
}

/// Of a key that nobody has used.
pub(super) fn fresh_verdict(level: &Level, now: Now) -> Verdict {
    if let Spec::Ceiling(spec) = &level.spec {
        return ceiling::evaluate(spec, level.cost);
    }
    Ledger::new(&level.spec).map_or(Verdict::Allowed, |ledger| {
        ledger.evaluate(&level.spec, level.time_us(now), level.cost)
    })
}

/// Of a key that nobody has used.
pub(super) fn fresh_reading(level: &Level, now: Now) -> Reading {
    if let Spec::Ceiling(spec) = &level.spec {
        return ceiling::reading(spec, level.cost);
    }
    Ledger::new(&level.spec)
        .map_or(Reading { available: level.spec.capacity(), reset_us: None }, |ledger| {
            ledger.reading(&level.spec, level.time_us(now))
        })
}
