//! Which nodes are alive: each writes the server's time behind its name every second, and counts who
//! did so lately. It also puts the deployment's secret back where a server lost it, so that nodes that
//! start later do not make another.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::connection::{Failure, Reason, Run, Script};
use crate::keys;
use crate::store::{Topology, written};

const EVERY: Duration = Duration::from_secs(1);
/// How soon it is looked again whether the store can be asked.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a node that has fallen silent counts.
const ALIVE: Duration = Duration::from_secs(3);
/// Within which time all nodes find a store again that they had lost.
const RETURN_WITHIN: Duration = Duration::from_secs(30);
const DIFFERS: &str = "the store has another secret than this node, which must be restarted: they count \
     the same subject under different keys";
const STRANGERS: &str = "other nodes hash keys with another secret, so that they count the same \
     subject apart: give all nodes the same --hash-key, or none of them any";
/// A heartbeat is no request: it may wait until a loaded server gets to it.
const TIMEOUT: Duration = Duration::from_millis(500);

/// KEYS: the nodes, and the secret. ARGV: this node's name, for how many milliseconds one counts, and
/// the secret or nothing. What lies in the future was written before the clock was set back, or by the
/// server before a failover. A node whose digest is known, of what it hashes keys with, has it behind
/// its name. The reply: how many nodes there are, whether the store's secret is ours, and how many of
/// the first few nodes have another digest.
const TEXT: &str = "
local t = redis.call('TIME')
local now, alive = t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[2])
local name, digest = ARGV[1], ARGV[4]
if digest ~= '' then
  redis.call('ZREM', KEYS[1], name)
  name = name .. ':' .. digest
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), name)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - alive))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + alive), '+inf')
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', alive * 4))
local ours = true
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[2], ARGV[3], 'NX')
  ours = redis.call('GET', KEYS[2]) == ARGV[3]
end
local strangers = 0
if digest ~= '' then
  for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, 63)) do
    local other = string.match(node, ':(.*)$')
    if other and other ~= digest then
      strangers = strangers + 1
    end
  end
end
return {redis.call('ZCARD', KEYS[1]), ours and 1 or 0, strangers}
";

/// Writes and counts for as long as it is let. While the server is lost, the last count stands.
pub(crate) async fn keep_beating(topology: Arc<Topology>, nodes: watch::Sender<u32>) {
    let name = format!("{:016x}", fastrand::u64(..)).into_bytes();
    let mut count = Count::new(*nodes.borrow());
    let mut agrees = true;
    loop {
        let wait = match beat(&topology, &name).await {
            Ok(Beat { alive, ours, strangers }) => {
                nodes.send_replace(count.seen(alive, Instant::now()));
                if agrees && !ours {
                    tracing::error!(event = "secret_differs", "{DIFFERS}");
                }
                agrees = ours;
                let known = topology.common.strangers.swap(strangers, Ordering::Relaxed);
                if known == 0 && strangers > 0 {
                    tracing::error!(event = "secret_differs", nodes = strangers, "{STRANGERS}");
                }
                EVERY
            }
            // Not asked yet, or not at the moment.
            Err(failure) if failure.reason == Reason::Open => LOOK_AGAIN,
            Err(failure) => {
                tracing::debug!(event = "heartbeat_failed", error = %failure.error, "a heartbeat failed");
                EVERY
            }
        };
        sleep(wait).await;
    }
}

/// What the store says to a heartbeat.
struct Beat {
    alive: u32,
    ours: bool,
    strangers: u32,
}

/// How many nodes are alive, and whether they hash keys as this one does.
async fn beat(topology: &Topology, name: &[u8]) -> Result<Beat, Failure> {
    let member = topology.own_member()?;
    let keys = vec![keys::heartbeats(topology.own()), keys::secret(topology.own())];
    let secret = topology.known_secret().map(written).unwrap_or_default();
    let digest = topology.common.digest.get().cloned().unwrap_or_default();
    let alive = ALIVE.as_millis().to_string().into_bytes();
    let arguments = vec![name.to_vec(), alive, secret.into_bytes(), digest.into_bytes()];
    let run = Run { keys, arguments, asking: false };
    let replied = member.shard.run(script(), run, Instant::now() + TIMEOUT).await;
    topology.note_move(&member, &replied);
    if let Value::Array(reply) = &replied?
        && let [Value::Int(count), Value::Int(ours), Value::Int(strangers)] = reply[..]
    {
        return Ok(Beat {
            alive: u32::try_from(count).unwrap_or(1).max(1),
            ours: ours == 1,
            strangers: u32::try_from(strangers).unwrap_or_default(),
        });
    }
    Err(Failure::unreadable("the reply to a heartbeat has another shape"))
}

/// How many nodes there are. Those that lost the store together find it again one after the other, and
/// are not fewer meanwhile.
struct Count {
    told: u32,
    /// When this node last counted, or started.
    last: Instant,
    /// The most there were since before the store was lost, and until when that stands.
    before: Option<(u32, Instant)>,
}

impl Count {
    fn new(told: u32) -> Self {
        Self { told, last: Instant::now(), before: None }
    }

    fn seen(&mut self, alive: u32, now: Instant) -> u32 {
        if now.duration_since(self.last) > ALIVE {
            self.before = Some((self.told, now + RETURN_WITHIN));
        }
        self.last = now;
        self.before = self.before.filter(|(_, until)| now < *until);
        if let Some((before, _)) = &mut self.before {
            *before = alive.max(*before);
        }
        self.told = self.before.map_or(alive, |(before, _)| before);
        self.told
    }
}

fn script() -> Script {
    static SHA1: OnceLock<String> = OnceLock::new();
    let sha1 = SHA1.get_or_init(|| redis::Script::new(TEXT).get_hash().to_owned());
    Script { text: TEXT, sha1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_come_back_one_after_the_other_are_not_fewer_meanwhile() {
        let start = Instant::now();
        let mut count = Count { told: 1, last: start, before: None };
        let mut seen = |alive, after_s| count.seen(alive, start + Duration::from_secs(after_s));
        assert_eq!([seen(4, 1), seen(3, 2)], [4, 3], "while all is well, the count stands");
        assert_eq!([seen(1, 10), seen(2, 11), seen(5, 12)], [3, 3, 5]);
        for after_s in 13..40 {
            assert_eq!(seen(2, after_s), 5);
        }
        assert_eq!(seen(2, 40), 2, "who is not back by then is gone");
    }
}
