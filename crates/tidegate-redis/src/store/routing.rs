//! An ask on its way to whoever has its keys, however often they have moved.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate::algorithm::Spec;
use tidegate::plan::Level;
use tokio::time::Instant;

use super::member::Member;
use super::sending::Sent;
use super::topology::Topology;
use crate::codec::{Ask, Told};
use crate::config::Server;
use crate::connection::{Failure, Reason, Remedy};
use crate::{keys, slot};

/// How often an ask follows its keys; they move once at a time.
const REDIRECTS_MAX: u32 = 8;
/// Which slots an ask has keys in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    /// All in this one.
    One(u16),
    /// Each level or amendment in its own; those that keep nothing in none.
    Several(Vec<Option<u16>>),
}

impl Topology {
    /// Where the keys of an ask lie.
    pub(super) fn slots_of(&self, ask: &Ask) -> Slots {
        if let Some(slot) = self.only_slot {
            return Slots::One(slot);
        }
        let slot = |name, level: &Level| {
            let keeps = !matches!(level.spec, Spec::Ceiling(_));
            keeps.then(|| slot::of(&keys::state(&self.common.front, name, level)))
        };
        let slots: Vec<Option<u16>> = match ask {
            Ask::Decide(plan) => {
                let levels = plan.levels.iter().enumerate();
                levels.map(|(at, level)| slot(plan.names.get(at), level)).collect()
            }
            Ask::Amend(amendments) => {
                amendments.iter().map(|one| slot(one.name.as_ref(), &one.level)).collect()
            }
            Ask::Lend(loan) => vec![slot(loan.name.as_ref(), &loan.level)],
        };
        let mut found = slots.iter().flatten();
        let first = found.next().copied();
        if found.any(|slot| Some(*slot) != first) {
            return Slots::Several(slots);
        }
        // Without keys, anybody will do.
        Slots::One(first.unwrap_or(self.own_slot))
    }

    /// Asks whoever has the slot.
    pub(super) async fn ask(
        &self,
        slot: u16,
        ask: Arc<Ask>,
        deadline: Instant,
    ) -> Result<Told, Failure> {
        let member = self.member(slot)?;
        let counters = &member.shard.counters;
        counters.asks.fetch_add(1, Ordering::Relaxed);
        let sent = Sent { ask, slot };
        let mut failure = match member.ask(sent.clone(), deadline).await {
            Ok(told) => return Ok(told),
            Err(failure) => failure,
        };
        if self.is_cluster() {
            let followed = self.follow(Arc::clone(&member), sent, failure, deadline);
            failure = match Box::pin(followed).await {
                Ok(told) => return Ok(told),
                Err(failure) => failure,
            };
        }
        counters.failed(failure.reason);
        Err(failure)
    }

    /// Does what a failure asks for, again and again, until there is an answer or nothing helps.
    async fn follow(
        &self,
        mut member: Arc<Member>,
        sent: Sent,
        mut failure: Failure,
        deadline: Instant,
    ) -> Result<Told, Failure> {
        let mut alone = false;
        for _ in 0..REDIRECTS_MAX {
            let told = match &failure.remedy {
                Remedy::Moved { slot, to } => {
                    member = self.moved(*slot, &complete(to, &member));
                    member.shard.ready(deadline).await;
                    member.ask(sent.clone(), deadline).await
                }
                Remedy::Ask { to } => {
                    alone = true;
                    let importing = self.meet(&complete(to, &member));
                    importing.shard.ready(deadline).await;
                    importing.shard.ask_alone(sent.clone(), true, deadline).await
                }
                // By itself, for others in the same call may have keys elsewhere.
                Remedy::TryAgain if !alone => {
                    alone = true;
                    member.shard.ask_alone(sent.clone(), false, deadline).await
                }
                _ => break,
            };
            match told {
                Err(next) => failure = next,
                told => return told,
            }
        }
        if failure.is_of_server() || failure.reason == Reason::Open {
            self.stale.notify_one();
        }
        Err(failure)
    }
}

/// An address without a host is on the same one as whoever told it.
pub(super) fn complete(to: &Server, told_by: &Member) -> Server {
    match told_by.server() {
        Some(server) if to.host.is_empty() => Server { host: server.host.clone(), port: to.port },
        _ => to.clone(),
    }
}
