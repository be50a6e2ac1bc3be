//! Asks of one server, on their way: one run of the script for each slot, all in one write.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;
use tidegate::store::StoreError;
use tokio::time::Instant;

use super::lanes::Lane;
use super::shard::Shard;
use crate::batch::{Caller, Weighed};
use crate::codec::{self, Ask, Layout, Packed, Told};
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
    /// How they travel.
    layout: Layout,
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
        let mut groups = by_slot(asks);
        let runs = groups.iter_mut().map(|group| self.run_of(group, asks, lane.as_ref(), asking));
        let runs: Vec<Run> = runs.collect();
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

    fn run_of(
        &self,
        group: &mut Group,
        asks: &[Sent],
        lane: Option<&Lane<'_>>,
        asking: bool,
    ) -> Run {
        let own = group.asks.iter().map(|at| &*asks[*at].ask);
        let Packed { mut keys, arguments: packed, layout } = codec::encode(own, &self.common.front);
        group.layout = layout;
        keys.extend(lane.map(|lane| self.common.key_of(lane, group.slot)));
        let mut arguments = Vec::with_capacity(packed.len() + 1);
        arguments.push(self.common.header(lane));
        arguments.extend(packed);
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
            None => {
                groups.push(Group { slot: *slot, asks: vec![at], layout: Layout::default() });
            }
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
        match replied.and_then(|reply| told(group, asks, reply)) {
            Ok(told) => {
                for (at, told) in group.asks.iter().zip(told) {
                    answers[*at] = told.map_err(Failure::of_ask);
                }
            }
            Err(failure) => group.asks.iter().for_each(|at| answers[*at] = Err(failure.clone())),
        }
    }
    answers
}

fn told(
    group: &Group,
    asks: &[Sent],
    reply: Value,
) -> Result<Vec<Result<Told, StoreError>>, Failure> {
    let Value::BulkString(reply) = reply else {
        return Err(Failure::unreadable("the script's reply has another shape"));
    };
    let asks: Vec<&Ask> = group.asks.iter().map(|at| &*asks[*at].ask).collect();
    codec::decode(&asks, &group.layout, &reply).map_err(Failure::of_ask)
}
