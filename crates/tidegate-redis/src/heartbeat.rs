//! Which nodes are alive: each writes the server's time behind its name every second, and counts who
//! did so lately. It also puts the deployment's secret back where a server lost it, so that nodes that
//! start later do not make another.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::connection::{Failure, Script};
use crate::keys;
use crate::store::{Shard, written};

const EVERY: Duration = Duration::from_secs(1);
/// How long a node that has fallen silent counts.
const ALIVE_MS: u64 = 3000;
const DIFFERS: &str = "the store has another secret than this node, which must be restarted: they count \
     the same subject under different keys";
const STRANGERS: &str = "other nodes hash keys with another secret, so that they count the same \
     subject apart: give all nodes the same --hash-key, or none of them any";
/// A heartbeat is no request: it may wait until a loaded server gets to it.
const TIMEOUT: Duration = Duration::from_millis(500);

/// KEYS: the nodes, and the secret. ARGV: this node's name, for how many milliseconds one counts, the
/// secret or nothing, and a digest of what this node hashes keys with, or nothing. What lies in the
/// future was written before the clock was set back, or by the server before a failover. A node whose
/// digest is known has it behind its name. The reply: how many nodes there are, whether the store's
/// secret is ours, and how many of the first few nodes have another digest.
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
pub(crate) async fn keep_beating(shard: Arc<Shard>, nodes: watch::Sender<u32>) {
    let name = format!("{:016x}", fastrand::u64(..)).into_bytes();
    let mut status = shard.status();
    let mut ticks = interval(EVERY);
    let mut agrees = true;
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while status.wait_for(|status| status.state.asks()).await.is_ok() {
        ticks.tick().await;
        match beat(&shard, &name).await {
            Ok(Beat { count, ours, strangers }) => {
                nodes.send_replace(count);
                if agrees && !ours {
                    tracing::error!(event = "secret_differs", "{DIFFERS}");
                }
                agrees = ours;
                let known = shard.strangers.swap(strangers, Ordering::Relaxed);
                if known == 0 && strangers > 0 {
                    tracing::error!(event = "secret_differs", nodes = strangers, "{STRANGERS}");
                }
            }
            Err(failure) => {
                tracing::debug!(event = "heartbeat_failed", error = %failure.error, "a heartbeat failed");
            }
        }
    }
}

/// What the store says to a heartbeat.
struct Beat {
    count: u32,
    ours: bool,
    strangers: u32,
}

/// How many nodes are alive, and whether they hash keys as this one does.
async fn beat(shard: &Shard, name: &[u8]) -> Result<Beat, Failure> {
    let keys = [keys::heartbeats(&shard.prefix), keys::secret(&shard.prefix)];
    let secret = shard.secret.get().map(|secret| written(*secret)).unwrap_or_default();
    let digest = shard.digest.get().cloned().unwrap_or_default();
    let alive = ALIVE_MS.to_string().into_bytes();
    let arguments = [name.to_vec(), alive, secret.into_bytes(), digest.into_bytes()];
    let reply = shard.run(script(), &keys, &arguments, Instant::now() + TIMEOUT).await?;
    if let Value::Array(reply) = &reply
        && let [Value::Int(count), Value::Int(ours), Value::Int(strangers)] = reply[..]
    {
        return Ok(Beat {
            count: u32::try_from(count).unwrap_or(1).max(1),
            ours: ours == 1,
            strangers: u32::try_from(strangers).unwrap_or_default(),
        });
    }
    Err(Failure::unreadable("the reply to a heartbeat has another shape"))
}

fn script() -> Script {
    static SHA1: OnceLock<String> = OnceLock::new();
    let sha1 = SHA1.get_or_init(|| redis::Script::new(TEXT).get_hash().to_owned());
    Script { text: TEXT, sha1 }
}
