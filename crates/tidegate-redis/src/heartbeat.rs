//! The heartbeat: which nodes are alive, and whether they hash keys with the same secret.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use crate::connection::{Failure, Reason, ScriptCall};
use crate::keys;
use crate::script::Script;
use crate::store::{Topology, encode_secret};

const EVERY: Duration = Duration::from_secs(1);
/// How soon a node tries again while the breaker is open.
const RETRY: Duration = Duration::from_millis(20);
/// How long a silent node counts as alive.
const ALIVE: Duration = Duration::from_secs(3);
/// Within this time all nodes reconnect to a store that they had lost.
const RETURN_WITHIN: Duration = Duration::from_secs(30);
const DIFFERS: &str = "the store has another secret than this node, which must be restarted: they count \
     the same subject under different keys";
const FOREIGN: &str = "other nodes hash keys with another secret, so that they count the same \
     subject apart: give all nodes the same --hash-key, or none of them any";
/// A heartbeat is no request: it may wait for a loaded server.
const TIMEOUT: Duration = Duration::from_millis(500);

static HEARTBEAT: Script = Script::new(include_str!("scripts/heartbeat.lua"));

/// Beats until the task is dropped. While the server is lost, the last count stands.
pub(crate) async fn keep_beating(topology: Arc<Topology>) {
    let name = format!("{:016x}", fastrand::u64(..)).into_bytes();
    let deployment = &topology.deployment;
    let nodes = deployment.configured_nodes;
    let mut count = NodeCount { nodes, last: Instant::now(), before_loss: None };
    let mut was_same = true;
    loop {
        let wait = match beat(&topology, &name).await {
            Ok(HeartbeatReply { alive, is_same_secret, foreign_nodes }) => {
                let nodes = count.update(alive, Instant::now());
                deployment.seen_nodes.store(nodes, Ordering::Relaxed);
                if was_same && !is_same_secret {
                    tracing::error!(event = "secret_differs", "{DIFFERS}");
                }
                was_same = is_same_secret;
                let before = deployment.foreign_nodes.swap(foreign_nodes, Ordering::Relaxed);
                if before == 0 && foreign_nodes > 0 {
                    tracing::error!(event = "secret_differs", nodes = foreign_nodes, "{FOREIGN}");
                }
                EVERY
            }
            Err(failure) if failure.reason == Reason::Open => RETRY,
            Err(failure) => {
                tracing::debug!(event = "heartbeat_failed", error = %failure.error, "a heartbeat failed");
                EVERY
            }
        };
        sleep(wait).await;
    }
}

struct HeartbeatReply {
    alive: u32,
    is_same_secret: bool,
    foreign_nodes: u32,
}

async fn beat(topology: &Topology, name: &[u8]) -> Result<HeartbeatReply, Failure> {
    let (handle, deployment) = (topology.own_shard()?, &topology.deployment);
    let own_prefix = &deployment.own_prefix;
    let keys = vec![keys::heartbeats(own_prefix), keys::secret(own_prefix)];
    let secret = topology.secret.get().copied().map(encode_secret).unwrap_or_default();
    let digest = deployment.digest.get().cloned().unwrap_or_default();
    let alive_ms = ALIVE.as_millis().to_string().into_bytes();
    let arguments = vec![name.to_vec(), alive_ms, secret.into_bytes(), digest.into_bytes()];
    let call = ScriptCall { keys, arguments, asking: false };
    let replied = handle.shard.eval(&HEARTBEAT, call, Instant::now() + TIMEOUT).await;
    topology.note_redirect(&handle, &replied);
    if let Value::Array(reply) = &replied?
        && let [Value::Int(alive), Value::Int(is_same), Value::Int(foreign)] = reply[..]
    {
        return Ok(HeartbeatReply {
            alive: u32::try_from(alive).unwrap_or(1).max(1),
            is_same_secret: is_same == 1,
            foreign_nodes: u32::try_from(foreign).unwrap_or_default(),
        });
    }
    Err(Failure::unreadable("the reply to a heartbeat has another shape"))
}

/// How many nodes there are. Nodes that lost the store together reconnect one after the other; the
/// count does not fall meanwhile.
struct NodeCount {
    nodes: u32,
    /// When this node last counted, or started.
    last: Instant,
    /// The most nodes since before the store was lost, and until when that stands.
    before_loss: Option<(u32, Instant)>,
}

impl NodeCount {
    fn update(&mut self, alive: u32, now: Instant) -> u32 {
        if now.duration_since(self.last) > ALIVE {
            self.before_loss = Some((self.nodes, now + RETURN_WITHIN));
        }
        self.last = now;
        self.before_loss = self.before_loss.filter(|(_, until)| now < *until);
        if let Some((nodes, _)) = &mut self.before_loss {
            *nodes = alive.max(*nodes);
        }
        self.nodes = self.before_loss.map_or(alive, |(nodes, _)| nodes);
        self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_come_back_one_after_the_other_are_not_fewer_meanwhile() {
        let start = Instant::now();
        let mut count = NodeCount { nodes: 1, last: start, before_loss: None };
        let mut nodes = |alive, after_s| count.update(alive, start + Duration::from_secs(after_s));
        assert_eq!([nodes(4, 1), nodes(3, 2)], [4, 3], "while all is well, the count stands");
        assert_eq!([nodes(1, 10), nodes(2, 11), nodes(5, 12)], [3, 3, 5]);
        for after_s in 13..40 {
            assert_eq!(nodes(2, after_s), 5);
        }
        assert_eq!(nodes(2, 40), 2, "who is not back by then is gone");
    }
}
