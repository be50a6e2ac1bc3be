//! Calls of scripts: one or several, in one write.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{Connection, Failure, check};
use crate::script::Script;

/// One call of a script.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptCall {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) arguments: Vec<Vec<u8>>,
    /// True for a server that is importing the keys' slot, which serves them only behind `ASKING`.
    pub(crate) asking: bool,
}

impl Connection {
    /// Calls a script. A server that does not have it is given it on the same connection.
    pub(crate) async fn eval(
        &self,
        script: &Script,
        call: ScriptCall,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let mut replies = self.eval_all(script, &[call], deadline).await?;
        replies.pop().unwrap_or_else(|| Err(Failure::no_reply()))
    }

    /// Calls a script several times; one reply for each call, in order.
    pub(crate) async fn eval_all(
        &self,
        script: &Script,
        calls: &[ScriptCall],
        deadline: Instant,
    ) -> Result<Vec<Result<Value, Failure>>, Failure> {
        let replies = self.within(deadline, async |connection: MultiplexedConnection| {
            send_all(connection, script, calls).await
        });
        Ok(replies.await?.into_iter().map(check).collect())
    }
}

async fn send_all(
    mut connection: MultiplexedConnection,
    script: &Script,
    calls: &[ScriptCall],
) -> Result<Vec<Value>, RedisError> {
    let by_hash = |call: &ScriptCall| command("EVALSHA", script.sha1(), call);
    let mut replies = match calls {
        [call] if !call.asking => vec![connection.send_packed_command(&by_hash(call)).await?],
        calls => pipeline(&mut connection, calls.iter().map(|call| (call, by_hash(call)))).await?,
    };
    // Calls that did not find the script have done nothing. The first of them sends its text, which
    // makes it known to the others.
    let missed: Vec<usize> = (0..replies.len()).filter(|at| is_no_script(&replies[*at])).collect();
    if missed.is_empty() {
        return Ok(replies);
    }
    let again = missed.iter().enumerate().map(|(position, at)| {
        let call = &calls[*at];
        let is_first = position == 0;
        (call, if is_first { command("EVAL", script.text, call) } else { by_hash(call) })
    });
    let found = pipeline(&mut connection, again).await?;
    for (at, reply) in missed.into_iter().zip(found) {
        replies[at] = reply;
    }
    Ok(replies)
}

/// Sends commands in one write, each behind its `ASKING` where it needs one.
async fn pipeline<'c>(
    connection: &mut MultiplexedConnection,
    commands: impl Iterator<Item = (&'c ScriptCall, Cmd)>,
) -> Result<Vec<Value>, RedisError> {
    let (mut pipeline, mut positions, mut count) = (Pipeline::new(), Vec::new(), 0);
    for (call, command) in commands {
        if call.asking {
            pipeline.add_command(redis::cmd("ASKING"));
            count += 1;
        }
        pipeline.add_command(command);
        positions.push(count);
        count += 1;
    }
    let mut replies = connection.send_packed_commands(&pipeline, 0, count).await?;
    let reply = |at: usize| {
        replies.get_mut(at).map_or(Value::Nil, |reply| std::mem::replace(reply, Value::Nil))
    };
    Ok(positions.into_iter().map(reply).collect())
}

fn command(name: &str, script: &str, call: &ScriptCall) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(call.keys.len()).arg(&call.keys).arg(&call.arguments);
    command
}

fn is_no_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
