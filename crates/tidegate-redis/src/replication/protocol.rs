//! The scripts that push and pull marks: their arguments and replies.

use std::time::Duration;

use redis::Value;

use super::outbox::QueuedChange;
use super::{MarkOperation, REMOVAL_TTL_MAX, ReplicatedMark};
use crate::connection::{Failure, ScriptCall};
use crate::keys;
use crate::script::Script;

pub(super) static PUSH: Script = Script::new(include_str!("../scripts/marks/push.lua"));
pub(super) static PULL: Script = Script::new(include_str!("../scripts/marks/pull.lua"));

/// The most marks that a server holds, removed ones included. The bounds of the nodes are lower.
const MARKS_MAX: usize = 4_000_000;
/// How long a node's load counts after its last report.
const LOAD_TTL: Duration = Duration::from_secs(5);

/// How far a node has pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) epoch: Vec<u8>,
    pub(super) number: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PullReply {
    pub(super) position: Position,
    pub(super) load_ppm: u64,
    pub(super) changes: Vec<ReplicatedMark>,
    pub(super) has_more: bool,
}

/// The call that pushes changes; with `if_absent`, only of marks that the server does not have.
pub(super) fn push_call(
    own_prefix: &str,
    channel: &[u8],
    changes: &[QueuedChange],
    if_absent: bool,
) -> ScriptCall {
    let [head, values, numbers, ends, _] = keys::marks(own_prefix);
    let mut arguments = vec![channel.to_vec(), new_epoch(), text(&MARKS_MAX)];
    for change in changes {
        let operation = match change.operation {
            MarkOperation::Set | MarkOperation::SetIfLonger if if_absent => "n",
            MarkOperation::Set => "s",
            MarkOperation::SetIfLonger => "l",
            MarkOperation::Remove => "r",
        };
        let lasts = match (change.operation, change.lasts()) {
            // No removal is kept for ever.
            (MarkOperation::Remove, lasts) => {
                Some(lasts.unwrap_or(REMOVAL_TTL_MAX).min(REMOVAL_TTL_MAX))
            }
            (_, lasts) => lasts,
        };
        arguments.push(format!("{:032x}", change.id).into_bytes());
        arguments.push(operation.into());
        arguments.push(lasts.map_or_else(Vec::new, |lasts| text(&lasts.as_millis())));
        arguments.push(change.value.clone());
    }
    ScriptCall { keys: vec![head, values, numbers, ends], arguments, asking: false }
}

/// How many changes the server refused because it is full.
pub(super) fn read_refused(reply: &Value) -> Result<u64, Failure> {
    match reply {
        Value::Int(refused) => Ok(u64::try_from(*refused).unwrap_or_default()),
        _ => Err(unreadable()),
    }
}

/// The call that pulls at most `count` changes, and reports the node's load. With `extend`, the expiry of
/// the keys is extended.
pub(super) fn pull_call(
    own_prefix: &str,
    position: &Position,
    count: usize,
    extend: bool,
    (node, load_ppm): (&str, Option<u64>),
) -> ScriptCall {
    let arguments = vec![
        position.epoch.clone(),
        text(&position.number),
        text(&count),
        new_epoch(),
        text(&u8::from(extend)),
        node.as_bytes().to_vec(),
        load_ppm.as_ref().map(text).unwrap_or_default(),
        text(&LOAD_TTL.as_millis()),
    ];
    ScriptCall { keys: keys::marks(own_prefix).into(), arguments, asking: false }
}

pub(super) fn read_pull(reply: Value) -> Result<PullReply, Failure> {
    let Value::Array(reply) = reply else { return Err(unreadable()) };
    let Ok(
        [
            Value::BulkString(epoch),
            Value::Int(number),
            Value::Int(load),
            Value::Array(changes),
            Value::Int(more),
        ],
    ) = <[Value; 5]>::try_from(reply)
    else {
        return Err(unreadable());
    };
    let (changes, rest) = changes.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(unreadable());
    }
    Ok(PullReply {
        position: Position { epoch, number: u64::try_from(number).unwrap_or_default() },
        load_ppm: u64::try_from(load).unwrap_or_default(),
        has_more: more != 0,
        changes: changes.iter().map(read_change).collect::<Option<_>>().ok_or_else(unreadable)?,
    })
}

fn read_change(fields: &[Value; 3]) -> Option<ReplicatedMark> {
    let [Value::BulkString(id), Value::BulkString(lasts), Value::BulkString(value)] = fields else {
        return None;
    };
    let lasts = match str::from_utf8(lasts).ok()? {
        "" => None,
        ms => Some(Duration::from_millis(ms.parse().ok()?)),
    };
    let id = u128::from_str_radix(str::from_utf8(id).ok()?, 16).ok()?;
    Some(ReplicatedMark { id, value: value.clone(), lasts })
}

/// An epoch that no node has made before.
fn new_epoch() -> Vec<u8> {
    format!("{:016x}", fastrand::u64(..)).into_bytes()
}

fn text(number: &impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn unreadable() -> Failure {
    Failure::unreadable("the reply about marks has another shape")
}
