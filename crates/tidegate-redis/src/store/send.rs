//! Sends a batch of commands to one server: one script call for each slot, all in one write.

use std::sync::atomic::Ordering;

use redis::Value;
use tidegate::StoreError;
use tokio::time::Instant;

use super::fragments::{Fragment, group_by_slot};
use super::idempotency::IdempotencyKey;
use super::shard::Shard;
use crate::batch::BatchHandler;
use crate::codec::{self, BatchLayout, Command, EncodedBatch, Response};
use crate::connection::{Failure, Remedy, ScriptCall};
use crate::script;

/// How often a call is sent again whose connection broke.
const RESENDS_MAX: u32 = 2;

/// A command, and the slot of its keys.
#[derive(Clone)]
pub(crate) struct RoutedCommand {
    pub(crate) command: Command,
    pub(crate) slot: u16,
}

impl Shard {
    /// Sends one command by itself, to a server that a slot is moving from or to (`asking`).
    pub(super) async fn send_alone(
        &self,
        command: RoutedCommand,
        asking: bool,
        deadline: Instant,
    ) -> Result<Response, Failure> {
        // Without an idempotency key: that key may be on the other server.
        let mut responses = self.send_batch(&[command], None, asking, deadline).await;
        responses.pop().unwrap_or_else(|| Err(Failure::no_reply()))
    }

    /// Sends commands; one response for each, in order.
    async fn send_batch(
        &self,
        commands: &[RoutedCommand],
        idempotency: Option<IdempotencyKey<'_>>,
        asking: bool,
        deadline: Instant,
    ) -> Vec<Result<Response, Failure>> {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let permit = match self.permit() {
            Ok(permit) => permit,
            Err(open) => return vec![Err(open); commands.len()],
        };
        let slots: Vec<Option<u16>> = commands.iter().map(|one| Some(one.slot)).collect();
        let groups = group_by_slot(&slots);
        let calls = groups
            .iter()
            .map(|group| self.script_call(group, commands, idempotency.as_ref(), asking));
        let (calls, layouts): (Vec<ScriptCall>, Vec<BatchLayout>) = calls.unzip();
        let began_us = self.deployment.clock.steady_us();
        let mut replied = self.connection.eval_all(&script::DECIDE, &calls, deadline).await;
        for _ in 0..RESENDS_MAX {
            let broke = matches!(&replied, Err(failure) if failure.remedy == Remedy::SendAgain);
            let may_resend = idempotency.is_some() && self.allows_calls();
            if !broke || !may_resend || deadline <= Instant::now() {
                break;
            }
            self.counters.resends.fetch_add(1, Ordering::Relaxed);
            replied = self.connection.eval_all(&script::DECIDE, &calls, deadline).await;
        }
        if replied.is_ok() {
            let took_us = self.deployment.clock.steady_us().saturating_sub(began_us);
            self.counters.latency_us.store(took_us, Ordering::Relaxed);
        }
        let responses = match replied {
            Ok(replies) => decode_all(commands, &groups, &layouts, replies),
            Err(failure) => vec![Err(failure); commands.len()],
        };
        let mut failures = responses.iter().filter_map(|response| response.as_ref().err());
        self.record_outcome(permit, failures.find(|failure| failure.is_of_server()));
        responses
    }

    fn script_call(
        &self,
        group: &Fragment,
        commands: &[RoutedCommand],
        idempotency: Option<&IdempotencyKey<'_>>,
        asking: bool,
    ) -> (ScriptCall, BatchLayout) {
        let in_slot = group.indices.iter().map(|index| &commands[*index].command);
        let prefix = &self.deployment.key_prefix;
        let EncodedBatch { mut keys, arguments: encoded, layout } = codec::encode(in_slot, prefix);
        keys.extend(idempotency.map(|key| self.deployment.idempotency_key(key, group.slot)));
        let mut arguments = Vec::with_capacity(encoded.len() + 1);
        arguments.push(self.deployment.header(idempotency));
        arguments.extend(encoded);
        (ScriptCall { keys, arguments, asking }, layout)
    }
}

impl BatchHandler for Shard {
    type Command = RoutedCommand;
    type Response = Result<Response, Failure>;

    async fn handle(&self, commands: Vec<RoutedCommand>) -> Vec<Result<Response, Failure>> {
        let deadline = Instant::now() + self.deployment.timeout;
        let idempotency = self.deployment.idempotency.take();
        self.send_batch(&commands, Some(idempotency), false, deadline).await
    }

    fn keys_of(command: &RoutedCommand) -> usize {
        command.command.len()
    }
}

/// Decodes the replies to all groups, in the order of the commands.
fn decode_all(
    commands: &[RoutedCommand],
    groups: &[Fragment],
    layouts: &[BatchLayout],
    replies: Vec<Result<Value, Failure>>,
) -> Vec<Result<Response, Failure>> {
    let mut responses: Vec<Result<Response, Failure>> =
        commands.iter().map(|_| Err(Failure::no_reply())).collect();
    for ((group, layout), reply) in groups.iter().zip(layouts).zip(replies) {
        let in_slot: Vec<&Command> =
            group.indices.iter().map(|index| &commands[*index].command).collect();
        match reply.and_then(|reply| decode_reply(&in_slot, layout, &reply)) {
            Ok(decoded) => {
                for (index, response) in group.indices.iter().zip(decoded) {
                    responses[*index] = response.map_err(Failure::of_command);
                }
            }
            Err(failure) => {
                group.indices.iter().for_each(|index| responses[*index] = Err(failure.clone()));
            }
        }
    }
    responses
}

/// Decodes the reply to one call.
pub(super) fn decode_reply(
    commands: &[&Command],
    layout: &BatchLayout,
    reply: &Value,
) -> Result<Vec<Result<Response, StoreError>>, Failure> {
    let decoded = match reply {
        Value::BulkString(reply) => codec::decode(commands, layout, reply),
        _ => None,
    };
    decoded.ok_or_else(|| Failure::malformed("the script's reply has another shape"))
}
