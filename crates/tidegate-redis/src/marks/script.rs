//! The two scripts, what they are called with and what they answer.

use std::sync::OnceLock;
use std::time::Duration;

use redis::Value;

use super::queue::Queued;
use super::{HeardMark, How, LASTS_MAX};
use crate::connection::{Failure, Run, Script};
use crate::keys;

const TELL: &str = include_str!("../scripts/marks/tell.lua");
const HEAR: &str = include_str!("../scripts/marks/hear.lua");
/// The most marks that a server holds, removed ones included: what nodes may hold themselves bounds
/// them further.
const MARKS_MAX: usize = 4_000_000;
/// How long a load counts that is not told again.
const LOAD_COUNTS: Duration = Duration::from_secs(5);

/// How far a node has heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) epoch: Vec<u8>,
    pub(super) number: u64,
}

/// What a node asks for.
pub(super) struct Hearing<'h> {
    pub(super) place: &'h Place,
    pub(super) count: usize,
    /// Whether the keys are to be kept for longer.
    pub(super) keep: bool,
    pub(super) node: &'h str,
    pub(super) load_ppm: Option<u64>,
}

/// What it is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) place: Place,
    pub(super) load_ppm: u64,
    pub(super) changes: Vec<HeardMark>,
    /// Whether there are further ones.
    pub(super) more: bool,
}

/// The call that tells of changes. Whether they are to be set only where there is nothing is for all.
pub(super) fn tell(own: &str, channel: &[u8], changes: &[Queued], if_absent: bool) -> Run {
    let [head, values, numbers, ends, _] = keys::marks(own);
    let mut arguments = vec![channel.to_vec(), new_epoch(), text(&MARKS_MAX)];
    for change in changes {
        let how = match change.how {
            How::Set | How::SetIfLonger if if_absent => "n",
            How::Set => "s",
            How::SetIfLonger => "l",
            How::Remove => "r",
        };
        let lasts = match (change.how, change.lasts()) {
            // Nothing is remembered for ever that is not there.
            (How::Remove, lasts) => Some(lasts.unwrap_or(LASTS_MAX).min(LASTS_MAX)),
            (_, lasts) => lasts,
        };
        arguments.push(format!("{:032x}", change.id).into_bytes());
        arguments.push(how.into());
        arguments.push(lasts.map_or_else(Vec::new, |lasts| text(&lasts.as_millis())));
        arguments.push(change.value.clone());
    }
    Run { keys: vec![head, values, numbers, ends], arguments, asking: false }
}

/// How many changes were refused for want of room.
pub(super) fn refused(reply: &Value) -> Result<u64, Failure> {
    match reply {
        Value::Int(refused) => Ok(u64::try_from(*refused).unwrap_or_default()),
        _ => Err(unreadable()),
    }
}

/// The call that asks for changes.
pub(super) fn hear(own: &str, hearing: &Hearing<'_>) -> Run {
    let Hearing { place, count, keep, node, load_ppm } = hearing;
    let arguments = vec![
        place.epoch.clone(),
        text(&place.number),
        text(count),
        new_epoch(),
        text(&u8::from(*keep)),
        node.as_bytes().to_vec(),
        load_ppm.as_ref().map(text).unwrap_or_default(),
        text(&LOAD_COUNTS.as_millis()),
    ];
    Run { keys: keys::marks(own).into(), arguments, asking: false }
}

/// What it answers.
pub(super) fn told(reply: Value) -> Result<Told, Failure> {
    let Value::Array(reply) = reply else { return Err(unreadable()) };
    let Ok(
        [
            Value::BulkString(epoch),
            Value::Int(number),
            Value::Int(load),
            Value::Array(told),
            Value::Int(more),
        ],
    ) = <[Value; 5]>::try_from(reply)
    else {
        return Err(unreadable());
    };
    let (changes, rest) = told.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(unreadable());
    }
    Ok(Told {
        place: Place { epoch, number: u64::try_from(number).unwrap_or_default() },
        load_ppm: u64::try_from(load).unwrap_or_default(),
        more: more != 0,
        changes: changes.iter().map(change).collect::<Option<_>>().ok_or_else(unreadable)?,
    })
}

fn change(of: &[Value; 3]) -> Option<HeardMark> {
    let [Value::BulkString(id), Value::BulkString(lasts), Value::BulkString(value)] = of else {
        return None;
    };
    let lasts = match str::from_utf8(lasts).ok()? {
        "" => None,
        ms => Some(Duration::from_millis(ms.parse().ok()?)),
    };
    let id = u128::from_str_radix(str::from_utf8(id).ok()?, 16).ok()?;
    Some(HeardMark { id, value: value.clone(), lasts })
}

pub(super) fn telling() -> Script {
    static SHA1: OnceLock<String> = OnceLock::new();
    let sha1 = SHA1.get_or_init(|| redis::Script::new(TELL).get_hash().to_owned());
    Script { text: TELL, sha1 }
}

pub(super) fn hearing() -> Script {
    static SHA1: OnceLock<String> = OnceLock::new();
    let sha1 = SHA1.get_or_init(|| redis::Script::new(HEAR).get_hash().to_owned());
    Script { text: HEAR, sha1 }
}

/// Differs from all that were, and from those of other nodes.
fn new_epoch() -> Vec<u8> {
    format!("{:016x}", fastrand::u64(..)).into_bytes()
}

fn text(number: &impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn unreadable() -> Failure {
    Failure::unreadable("the reply about marks has another shape")
}
