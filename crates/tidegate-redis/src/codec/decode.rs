//! Decodes the reply to one call.

use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::algorithm::{Reading, Verdict, evaluate, reading};
use tidegate::engine::plan::{LEVELS_MAX, Level, PerLevel, Plan};
use tidegate::engine::store::{AmendmentResults, Answer, Reply, StoreError};

use super::encode::BatchLayout;
use super::value::{self, KeyState};
use super::{Command, Reader, Response};
use crate::loans::LoanReply;

/// The status of a level of a plain command.
const PEEKED: u8 = 0;
const CHARGED: u8 = 1;
const DENIED: u8 = 2;
/// The status of a whole command: it has a response of its own, or an error.
const FULL: u8 = 3;
const FAILED: u8 = 4;
/// All levels of a plain command were charged.
const ALL: u8 = 5;

type Result<T> = std::result::Result<T, StoreError>;

/// The status of a command.
struct CommandStatus {
    /// For each level of a plain command.
    codes: PerLevel<u8>,
    /// True if the command has a response of its own.
    in_full: bool,
}

/// Decodes the reply to a call of this layout; one response for each command, in order. `None` if it
/// is no reply to such a call.
pub(crate) fn decode(
    commands: &[&Command],
    layout: &BatchLayout,
    reply: &[u8],
) -> Option<Vec<Result<Response>>> {
    let reader = &mut Reader::new(reply);
    let now_us = reader.number()?;
    let statuses = layout.plain.iter().map(|keys| read_status(reader, keys.as_ref()));
    let statuses = statuses.collect::<Option<Vec<CommandStatus>>>()?;
    let states = (0..layout.keys).map(|_| KeyState::read(reader));
    let mut states = states.collect::<Option<Vec<Option<KeyState>>>>()?;
    let mut answers = Vec::with_capacity(commands.len());
    // From the last to the first: before a command, its keys held what they hold less its charges.
    for ((command, keys), status) in commands.iter().zip(&layout.plain).zip(&statuses).rev() {
        answers.push(match (command, keys) {
            (Command::Decide(plan), Some(keys)) if keys.len() == status.codes.len() => {
                Some(plain_answer(plan, keys, &status.codes, &mut states, now_us)?)
            }
            _ => None,
        });
    }
    let responses = commands.iter().zip(&statuses).zip(answers.into_iter().rev());
    let responses = responses.map(|((command, status), answer)| match answer {
        Some(answer) if !status.in_full => Some(Ok(Response::Decided(answer))),
        _ => {
            let length = usize::try_from(reader.short(2)?).ok()?;
            Some(read_response(command, reader.bytes(length)?))
        }
    });
    let responses = responses.collect::<Option<Vec<_>>>()?;
    reader.is_over().then_some(responses)
}

fn read_status(reader: &mut Reader<'_>, keys: Option<&PerLevel<u8>>) -> Option<CommandStatus> {
    let none = CommandStatus { codes: PerLevel::new(), in_full: true };
    let Some(keys) = keys else { return (reader.byte()? == FULL).then_some(none) };
    let Some(mut code) = keys.first().map(|_| reader.byte()) else {
        return Some(CommandStatus { in_full: false, ..none });
    };
    if code == Some(FULL) {
        return Some(none);
    }
    let in_full = code == Some(FAILED);
    if in_full {
        code = reader.byte();
    }
    if code == Some(ALL) {
        let codes = keys.iter().map(|_| CHARGED).collect();
        return Some(CommandStatus { codes, in_full });
    }
    let mut codes = PerLevel::from_iter([code?]);
    for _ in 1..keys.len() {
        codes.push(reader.byte()?);
    }
    codes.iter().all(|code| *code <= DENIED).then_some(CommandStatus { codes, in_full })
}

/// The answer to a plain plan. `states` are those after the plan, and become those before it.
fn plain_answer(
    plan: &Plan,
    keys: &[u8],
    codes: &[u8],
    states: &mut [Option<KeyState>],
    now_us: u64,
) -> Option<Answer> {
    let mut replies = PerLevel::new();
    for ((level, key), code) in plan.levels.iter().zip(keys).zip(codes) {
        let state = states.get_mut(usize::from(*key).checked_sub(1)?)?;
        replies.push(plain_reply(level, state.as_ref(), *code, now_us)?);
        if *code == CHARGED {
            state.as_mut()?.undo_charge(level.cost.micros())?;
        }
    }
    Some(Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies })
}

fn plain_reply(level: &Level, key: Option<&KeyState>, code: u8, now_us: u64) -> Option<Reply> {
    let state = value::algorithm_state(key, level)?;
    let verdict = match code {
        PEEKED | CHARGED => Verdict::Allowed,
        _ => evaluate(&state, &level.spec, now_us, level.cost),
    };
    let charged = code == CHARGED;
    let charged_at_us = if charged { key?.charged_us } else { 0 };
    // The script and the library must agree.
    let agrees = (code == DENIED) == matches!(verdict, Verdict::Denied { .. });
    let reading = reading(&state, &level.spec, now_us);
    agrees.then_some(Reply { verdict, charged, charged_at_us, reading })
}

/// Reads a response that stands by itself.
fn read_response(command: &Command, reply: &[u8]) -> Result<Response> {
    let mut reader = Reader::new(reply);
    match reader.byte() {
        Some(0) => read_results(command, &mut reader).ok_or_else(unreadable),
        Some(1) => Err(permanent(&reader.text())),
        _ => Err(unreadable()),
    }
}

fn read_results(command: &Command, reader: &mut Reader<'_>) -> Option<Response> {
    let now_us = reader.number()?;
    let response = match command {
        Command::Decide(plan) => {
            let replies = plan.levels.iter().map(|_| read_reply(reader));
            let replies = replies.collect::<Option<PerLevel<Reply>>>()?;
            Response::Decided(Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies })
        }
        Command::Amend(amendments) => {
            let mut amended = AmendmentResults::new();
            for _ in amendments.iter().take(LEVELS_MAX) {
                amended.push(reader.flag()?);
            }
            Response::AmendmentResults(amended)
        }
        Command::Lend(_) => Response::Lent(LoanReply {
            now_us,
            granted: reader.number()?,
            epoch: reader.number()?,
            lasts_us: reader.number()?,
            available: reader.number()?,
            outstanding: reader.number()?,
        }),
    };
    reader.is_over().then_some(response)
}

fn read_reply(reader: &mut Reader<'_>) -> Option<Reply> {
    let code = reader.byte()?;
    let retry_after = reader.optional()?.map(Duration::from_micros);
    let verdict = match code {
        PEEKED | CHARGED => Verdict::Allowed,
        DENIED => Verdict::Denied { retry_after },
        _ => return None,
    };
    let charged_at_us = reader.number()?;
    let available = Amount::from_micros(reader.number()?)?;
    let reading = Reading { available, reset_us: reader.optional()? };
    Some(Reply { verdict, charged: code == CHARGED, charged_at_us, reading })
}

fn unreadable() -> StoreError {
    permanent("a reply of another format")
}

/// An error that no repetition mends.
fn permanent(detail: &str) -> StoreError {
    StoreError { transient: false, detail: detail.to_owned() }
}
