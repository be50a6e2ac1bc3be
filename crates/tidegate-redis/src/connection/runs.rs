//! Runs of scripts, as many as there are slots in a call, all in one write.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{Connection, Failure};

/// A script, and what its text hashes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    pub(crate) sha1: &'static str,
}

/// One run of a script.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) arguments: Vec<Vec<u8>>,
    /// Whether it is for a server that is still being given the keys, and may use them all the same.
    pub(crate) asking: bool,
}

impl Connection {
    /// Runs a script. A server that has lost it is given it again on the same connection.
    pub(crate) async fn run(
        &self,
        script: Script,
        run: Run,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let mut replies = self.run_all(script, &[run], deadline).await?;
        replies.pop().unwrap_or_else(|| Err(Failure::unreadable("there is no reply")))
    }

    /// Runs a script several times, each by itself. One reply for each, in order.
    pub(crate) async fn run_all(
        &self,
        script: Script,
        runs: &[Run],
        deadline: Instant,
    ) -> Result<Vec<Result<Value, Failure>>, Failure> {
        let replies = self.within(deadline, async |connection: MultiplexedConnection| {
            send_all(connection, script, runs).await
        });
        let told = |reply| match reply {
            Value::ServerError(error) => Err(Failure::refused(&error)),
            reply => Ok(reply),
        };
        Ok(replies.await?.into_iter().map(told).collect())
    }
}

async fn send_all(
    mut connection: MultiplexedConnection,
    script: Script,
    runs: &[Run],
) -> Result<Vec<Value>, RedisError> {
    let by_hash = |run: &Run| command("EVALSHA", script.sha1, run);
    let mut replies = match runs {
        [run] if !run.asking => vec![connection.send_packed_command(&by_hash(run)).await?],
        runs => together(&mut connection, runs.iter().map(|run| (run, by_hash(run)))).await?,
    };
    // Those that did not find the script have done nothing; the first that has it with it makes it
    // known to the others.
    let lost: Vec<usize> = (0..replies.len()).filter(|at| is_no_script(&replies[*at])).collect();
    if lost.is_empty() {
        return Ok(replies);
    }
    let again = lost.iter().enumerate().map(|(place, at)| {
        let run = &runs[*at];
        let command = if place == 0 { command("EVAL", script.text, run) } else { by_hash(run) };
        (run, command)
    });
    let found = together(&mut connection, again).await?;
    for (at, reply) in lost.into_iter().zip(found) {
        replies[at] = reply;
    }
    Ok(replies)
}

/// Sends commands in one write, each behind its `ASKING` where it needs one.
async fn together<'r>(
    connection: &mut MultiplexedConnection,
    commands: impl Iterator<Item = (&'r Run, Cmd)>,
) -> Result<Vec<Value>, RedisError> {
    let (mut pipeline, mut places, mut count) = (Pipeline::new(), Vec::new(), 0);
    for (run, command) in commands {
        if run.asking {
            pipeline.add_command(redis::cmd("ASKING"));
            count += 1;
        }
        pipeline.add_command(command);
        places.push(count);
        count += 1;
    }
    let mut replies = connection.send_packed_commands(&pipeline, 0, count).await?;
    let reply = |at: usize| {
        replies.get_mut(at).map_or(Value::Nil, |reply| std::mem::replace(reply, Value::Nil))
    };
    Ok(places.into_iter().map(reply).collect())
}

fn command(name: &str, script: &str, run: &Run) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(run.keys.len()).arg(&run.keys).arg(&run.arguments);
    command
}

fn is_no_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
