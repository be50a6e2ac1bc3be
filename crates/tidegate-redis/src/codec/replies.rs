//! Reads the reply to one call.

use tidegate::algorithm::{Reading, Verdict, evaluate, reading};
use tidegate::clock::Now;
use tidegate::plan::{Level, PerLevel, Plan};
use tidegate::store::{Amended, Answer, Reply, StoreError};
use tidegate::units::Amount;

use super::batch::Layout;
use super::state::{self, Held};
use super::{Ask, Reader, Told};
use crate::leases::Lent;

/// What became of a level of a plain ask.
const LOOKED: u8 = 0;
const CHARGED: u8 = 1;
const DENIED: u8 = 2;
/// What became of a whole ask: it is answered in full, or not at all.
const FULL: u8 = 3;
const FAILED: u8 = 4;
/// All levels of a plain ask were charged.
const ALL: u8 = 5;

type Result<T> = std::result::Result<T, StoreError>;

/// What was said of an ask before its answers.
struct Said {
    /// Of a plain one, for each level.
    codes: PerLevel<u8>,
    in_full: bool,
}

/// Reads the reply to a call that was laid out like this. One answer for each ask, in order.
pub(crate) fn decode(asks: &[&Ask], layout: &Layout, reply: &[u8]) -> Result<Vec<Result<Told>>> {
    read(asks, layout, &mut Reader::new(reply)).ok_or_else(unreadable)
}

fn read(asks: &[&Ask], layout: &Layout, reader: &mut Reader<'_>) -> Option<Vec<Result<Told>>> {
    let now_us = reader.number()?;
    let said = layout.plain.iter().map(|places| said(reader, places.as_ref()));
    let said = said.collect::<Option<Vec<Said>>>()?;
    let held = (0..layout.keys).map(|_| Held::read(reader));
    let mut held = held.collect::<Option<Vec<Option<Held>>>>()?;
    let mut answers = Vec::with_capacity(asks.len());
    // From the last to the first: before each ask a key held what the ask charged less.
    for ((ask, places), said) in asks.iter().zip(&layout.plain).zip(&said).rev() {
        answers.push(match (ask, places) {
            (Ask::Decide(plan), Some(places)) if places.len() == said.codes.len() => {
                Some(decided(plan, places, &said.codes, &mut held, now_us)?)
            }
            _ => None,
        });
    }
    let told = asks.iter().zip(&said).zip(answers.into_iter().rev());
    let told = told.map(|((ask, said), answer)| match answer {
        Some(answer) if !said.in_full => Some(Ok(Told::Decided(answer))),
        _ => {
            let length = usize::try_from(reader.short(2)?).ok()?;
            Some(in_full(ask, reader.part(length)?))
        }
    });
    let told = told.collect::<Option<Vec<_>>>()?;
    reader.is_over().then_some(told)
}

fn said(reader: &mut Reader<'_>, places: Option<&PerLevel<u8>>) -> Option<Said> {
    let none = Said { codes: PerLevel::new(), in_full: true };
    let Some(places) = places else { return (reader.byte()? == FULL).then_some(none) };
    let Some(mut code) = places.first().map(|_| reader.byte()) else {
        return Some(Said { in_full: false, ..none });
    };
    if code == Some(FULL) {
        return Some(none);
    }
    let in_full = code == Some(FAILED);
    if in_full {
        code = reader.byte();
    }
    if code == Some(ALL) {
        let codes = places.iter().map(|_| CHARGED).collect();
        return Some(Said { codes, in_full });
    }
    let mut codes = PerLevel::from_iter([code?]);
    for _ in 1..places.len() {
        codes.push(reader.byte()?);
    }
    codes.iter().all(|code| *code <= DENIED).then_some(Said { codes, in_full })
}

/// The answer to a plain plan, of which keys hold this behind it.
fn decided(
    plan: &Plan,
    places: &[u8],
    codes: &[u8],
    held: &mut [Option<Held>],
    now_us: u64,
) -> Option<Answer> {
    let mut replies = PerLevel::new();
    for ((level, place), code) in plan.levels.iter().zip(places).zip(codes) {
        let held = held.get_mut(usize::from(*place).checked_sub(1)?)?;
        replies.push(reply_of(level, held.as_ref(), *code, now_us)?);
        if *code == CHARGED {
            held.as_mut()?.before(level.cost.micros())?;
        }
    }
    Some(Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies })
}

fn reply_of(level: &Level, held: Option<&Held>, code: u8, now_us: u64) -> Option<Reply> {
    let state = state::state(held, level)?;
    let verdict = match code {
        LOOKED | CHARGED => Verdict::Allowed,
        _ => evaluate(&state, &level.spec, now_us, level.cost),
    };
    let charged = code == CHARGED;
    let charged_at_us = if charged { held?.charged_us } else { 0 };
    let agree = (code == DENIED) == matches!(verdict, Verdict::Denied { .. });
    let reading = reading(&state, &level.spec, now_us);
    agree.then_some(Reply { verdict, charged, charged_at_us, reading })
}

/// Reads an answer that stands by itself.
fn in_full(ask: &Ask, reply: &[u8]) -> Result<Told> {
    let mut reader = Reader::new(reply);
    match reader.byte() {
        Some(0) => read_full(ask, &mut reader).ok_or_else(unreadable),
        Some(1) => Err(refused(&reader.text())),
        _ => Err(unreadable()),
    }
}

fn read_full(ask: &Ask, reader: &mut Reader<'_>) -> Option<Told> {
    let now_us = reader.number()?;
    let told = match ask {
        Ask::Decide(plan) => {
            let replies = plan.levels.iter().map(|_| read_reply(reader));
            let replies = replies.collect::<Option<PerLevel<Reply>>>()?;
            Told::Decided(Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies })
        }
        Ask::Amend(amendments) => {
            let mut amended = Amended::new();
            for _ in amendments.iter().take(amended.capacity()) {
                amended.push(reader.flag()?);
            }
            Told::Amended(amended)
        }
        Ask::Lend(_) => Told::Lent(Lent {
            now_us,
            granted: reader.number()?,
            epoch: reader.number()?,
            lasts_us: reader.number()?,
            available: reader.number()?,
            outstanding: reader.number()?,
        }),
    };
    reader.is_over().then_some(told)
}

fn read_reply(reader: &mut Reader<'_>) -> Option<Reply> {
    let code = reader.byte()?;
    let retry_after_us = reader.optional()?;
    let verdict = match code {
        LOOKED | CHARGED => Verdict::Allowed,
        DENIED => Verdict::Denied { retry_after_us },
        _ => return None,
    };
    let charged_at_us = reader.number()?;
    let available = Amount::from_micros(reader.number()?)?;
    let reading = Reading { available, reset_us: reader.optional()? };
    Some(Reply { verdict, charged: code == CHARGED, charged_at_us, reading })
}

fn unreadable() -> StoreError {
    refused("a reply of another format")
}

/// An answer that no repetition makes better.
fn refused(detail: &str) -> StoreError {
    StoreError { transient: false, detail: detail.to_owned() }
}
