//! Routes commands to the servers that have their keys, and follows redirections.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate::engine::algorithm::Spec;
use tokio::time::Instant;

use super::fragments::Fragment;
use super::send::RoutedCommand;
use super::shard_handle::ShardHandle;
use super::topology::Topology;
use crate::codec::{Command, Response};
use crate::config::Server;
use crate::connection::{Failure, Reason, Remedy};
use crate::{keys, slot};

/// How many redirections a command follows.
const REDIRECTS_MAX: u32 = 8;

/// The slots that a command has keys in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    /// All keys lie in this slot.
    One(u16),
    /// The slot of each level or amendment; `None` for one without a state.
    Many(Vec<Option<u16>>),
}

impl Topology {
    /// Where the keys of a command lie.
    pub(super) fn slots_of(&self, command: &Command) -> Slots {
        if let Some(slot) = self.only_slot {
            return Slots::One(slot);
        }
        let slots = command.states().map(|(name, level)| {
            let has_state = !matches!(level.spec, Spec::Ceiling(_));
            has_state.then(|| slot::of(&keys::state(&self.deployment.key_prefix, name, level)))
        });
        let slots: Vec<Option<u16>> = slots.collect();
        let mut used = slots.iter().flatten();
        let first = used.next().copied();
        if used.any(|slot| Some(*slot) != first) {
            return Slots::Many(slots);
        }
        // A command without keys can go to any server.
        Slots::One(first.unwrap_or(self.own_slot))
    }

    /// Sends a command whose keys lie in one slot. While that slot moves, its keys may be on two
    /// servers; then the command is sent key by key.
    pub(super) async fn send_to_slot(
        self: &Arc<Self>,
        slot: u16,
        command: Command,
        deadline: Instant,
    ) -> Result<Response, Failure> {
        let failure = match self.send(slot, command.clone(), deadline).await {
            Ok(response) => return Ok(response),
            Err(failure) => failure,
        };
        if failure.remedy != Remedy::TryAgain || command.len() < 2 {
            return Err(failure);
        }
        let whole = Fragment { slot, indices: (0..command.len()).collect() };
        // Boxed: this rare case would enlarge the future of every request.
        Box::pin(self.send_cross_slot(&command, &whole.split(), deadline)).await
    }

    /// Sends a command to the server that has a slot.
    pub(super) async fn send(
        &self,
        slot: u16,
        command: Command,
        deadline: Instant,
    ) -> Result<Response, Failure> {
        let handle = self.shard_of_slot(slot)?;
        let counters = &handle.shard.counters;
        counters.commands.fetch_add(1, Ordering::Relaxed);
        let command = RoutedCommand { command, slot };
        let mut failure = match handle.send(command.clone(), deadline).await {
            Ok(response) => return Ok(response),
            Err(failure) => failure,
        };
        if self.is_cluster() {
            let followed = self.follow(Arc::clone(&handle), command, failure, deadline);
            failure = match Box::pin(followed).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
        }
        counters.count_failure(failure.reason);
        Err(failure)
    }

    /// Follows redirections until there is a response, or nothing helps.
    async fn follow(
        &self,
        mut handle: Arc<ShardHandle>,
        command: RoutedCommand,
        mut failure: Failure,
        deadline: Instant,
    ) -> Result<Response, Failure> {
        let mut is_alone = false;
        for _ in 0..REDIRECTS_MAX {
            let response = match &failure.remedy {
                Remedy::Moved { slot, to } => {
                    handle = self.assign_slot(*slot, &complete_address(to, &handle));
                    handle.shard.ready(deadline).await;
                    handle.send(command.clone(), deadline).await
                }
                Remedy::Ask { to } => {
                    is_alone = true;
                    let importing = self.shard_at(&complete_address(to, &handle));
                    importing.shard.ready(deadline).await;
                    importing.shard.send_alone(command.clone(), true, deadline).await
                }
                // Alone: other commands of the same batch may have keys elsewhere.
                Remedy::TryAgain if !is_alone => {
                    is_alone = true;
                    handle.shard.send_alone(command.clone(), false, deadline).await
                }
                _ => break,
            };
            match response {
                Err(next) => failure = next,
                response => return response,
            }
        }
        if failure.is_of_server() || failure.reason == Reason::Open {
            self.stale.notify_one();
        }
        Err(failure)
    }

    /// Follows a redirection of the deployment's own keys.
    pub(crate) fn note_redirect<T>(&self, from: &ShardHandle, replied: &Result<T, Failure>) {
        if let Err(Failure { remedy: Remedy::Moved { slot, to }, .. }) = replied {
            self.assign_slot(*slot, &complete_address(to, from));
        }
    }
}

/// An address without a host is on the host of the server that sent it.
fn complete_address(to: &Server, from: &ShardHandle) -> Server {
    match &from.server {
        Some(server) if to.host.is_empty() => Server { host: server.host.clone(), port: to.port },
        _ => to.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::store::topology::SlotRange;

    #[tokio::test]
    async fn a_redirection_without_a_host_leads_to_the_host_that_sent_it() {
        let config = Config::parse("redis+cluster://127.0.0.1:1").unwrap();
        let topology = Topology::start(&config);
        let server = |host: &str, port| Server { host: host.to_owned(), port };
        let primary = server("127.0.0.1", 1);
        topology.install(&[SlotRange { first: 0, last: 16_383, primary, replicas: Vec::new() }]);
        let (slot, to) = (topology.own_slot, server("", 2));
        let moved = Failure::new(Reason::Refused, true, "MOVED");
        let moved = Failure { remedy: Remedy::Moved { slot, to }, ..moved };
        topology.note_redirect::<()>(&topology.own_shard().unwrap(), &Err(moved));
        assert_eq!(topology.own_shard().unwrap().server, Some(server("127.0.0.1", 2)));
    }
}
