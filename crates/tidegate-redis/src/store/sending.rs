//! Asks of one server, on their way: one run of the script for each slot, all in one write.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;
use tokio::time::Instant;

use super::lanes::Lane;
use super::shard::Shard;
use crate::batch::{Caller, Weighed};
use crate::codec::{self, Ask, Told};
use crate::connection::{Failure, Remedy, Run, Script};
use crate::script;

/// How often a call is sent again whose connection broke.
const AGAIN_MAX: u32 = 2;

/// An ask, and where its keys lie.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) ask: Arc<Ask>,
    pub(crate) slot: u16,
}

/// The asks of one slot, by their places among all.
struct Group {
    slot: u16,
    asks: Vec<usize>,
}

impl Shard {
    /// Sends one ask by itself, to a server that is giving its slot away or is being given it.
    pub(super) async fn ask_alone(
        &self,
        sent: Sent,
        asking: bool,
        deadline: Instant,
    ) -> Result<Told, Failure> {
        // Without a number: its key would have to lie where the others do, and they may be anywhere.
        let mut told = self.carry_out(&[sent], None, asking, deadline).await;
        told.pop().unwrap_or_else(|| Err(Failure::unreadable("there is no reply")))
    }

    /// One answer for each ask, in order.
    async fn carry_out(
        &self,
        asks: &[Sent],
        lane: Option<Lane<'_>>,
        asking: bool,
        deadline: Instant,
    ) -> Vec<Result<Told, Failure>> {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let permit = match self.permit() {
            Ok(permit) => permit,
            Err(open) => return vec![Err(open); asks.len()],
        };
        let groups = by_slot(asks);
        let runs: Vec<Run> =
            groups.iter().map(|group| self.run_of(group, asks, lane.as_ref(), asking)).collect();
        let began_us = self.common.clock.steady_us();
        let mut replied = self.connection.run_all(decide(), &runs, deadline).await;
        for _ in 0..AGAIN_MAX {
            let broke = matches!(&replied, Err(failure) if failure.remedy == Remedy::SendAgain);
            if !broke || lane.is_none() || !self.asks() || deadline <= Instant::now() {
                break;
            }
            self.counters.again.fetch_add(1, Ordering::Relaxed);
            replied = self.connection.run_all(decide(), &runs, deadline).await;
        }
        if replied.is_ok() {
            let took_us = self.common.clock.steady_us().saturating_sub(began_us);
            self.counters.latency_us.store(took_us, Ordering::Relaxed);
        }
        let told = match replied {
            Ok(replies) => answers(asks, &groups, replies),
            Err(failure) => vec![Err(failure); asks.len()],
        };
        let mut failures = told.iter().filter_map(|told| told.as_ref().err());
        self.conclude(permit, failures.find(|failure| failure.is_of_server()));
        told
    }

    fn run_of(&self, group: &Group, asks: &[Sent], lane: Option<&Lane<'_>>, asking: bool) -> Run {
        let (mut keys, mut arguments) = (Vec::new(), Vec::with_capacity(group.asks.len() + 1));
        arguments.push(self.common.header(lane));
        for at in &group.asks {
            arguments.push(codec::encode(&asks[*at].ask, &self.common.front, &mut keys));
        }
        keys.extend(lane.map(|lane| self.common.key_of(lane, group.slot)));
        Run { keys, arguments, asking }
    }
}

impl Caller for Shard {
    type Ask = Sent;
    type Told = Result<Told, Failure>;

    async fn call(&self, asks: Vec<Sent>) -> Vec<Result<Told, Failure>> {
        let (lane, deadline) = (self.common.lanes.take(), Instant::now() + self.common.timeout);
        self.carry_out(&asks, Some(lane), false, deadline).await
    }
}

impl Weighed for Sent {
    fn keys(&self) -> usize {
        match &*self.ask {
            Ask::Decide(plan) => plan.levels.len(),
            Ask::Amend(amendments) => amendments.len(),
            Ask::Lend(_) => 1,
        }
    }
}

/// The script that all asks go through.
pub(super) fn decide() -> Script {
    Script { text: script::TEXT, sha1: script::sha1() }
}

/// There are few: a call holds few asks.
fn by_slot(asks: &[Sent]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (at, Sent { slot, .. }) in asks.iter().enumerate() {
        match groups.iter_mut().find(|group| group.slot == *slot) {
            Some(group) => group.asks.push(at),
            None => groups.push(Group { slot: *slot, asks: vec![at] }),
        }
    }
    groups
}

/// Puts the replies to all groups back into the order of the asks.
fn answers(
    asks: &[Sent],
    groups: &[Group],
    replied: Vec<Result<Value, Failure>>,
) -> Vec<Result<Told, Failure>> {
    let missing = || Err(Failure::unreadable("there is no reply"));
    let mut answers: Vec<Result<Told, Failure>> = asks.iter().map(|_| missing()).collect();
    for (group, replied) in groups.iter().zip(replied) {
        match replied.and_then(|reply| replies(reply, group.asks.len())) {
            Ok(replies) => {
                for (at, reply) in group.asks.iter().zip(replies) {
                    answers[*at] = told(&asks[*at].ask, reply);
                }
            }
            Err(failure) => group.asks.iter().for_each(|at| answers[*at] = Err(failure.clone())),
        }
    }
    answers
}

fn replies(reply: Value, expected: usize) -> Result<Vec<Value>, Failure> {
    match reply {
        Value::Array(replies) if replies.len() == expected => Ok(replies),
        _ => Err(Failure::unreadable("the script's reply has another shape")),
    }
}

fn told(ask: &Ask, reply: Value) -> Result<Told, Failure> {
    match reply {
        Value::BulkString(bytes) => codec::decode(ask, &bytes).map_err(Failure::of_ask),
        Value::ServerError(error) => Err(Failure::refused(&error)),
        _ => Err(Failure::unreadable("the script's reply has another shape")),
    }
}
