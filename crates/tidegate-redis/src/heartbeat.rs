//! Which nodes are alive: each writes the server's time behind its name every second, and counts who
//! did so lately. It also puts the deployment's secret back where a server lost it, so that nodes that
//! start later do not make another.

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
/// A heartbeat is no request: it may wait until a loaded server gets to it.
const TIMEOUT: Duration = Duration::from_millis(500);

/// KEYS: the nodes, and the secret. ARGV: this node's name, for how many milliseconds one counts, and
/// the secret or nothing. What lies in the future was written before the clock was set back, or by the
/// server before a failover. The reply: how many nodes there are, and whether their secret is ours.
const TEXT: &str = "
local t = redis.call('TIME')
local now, alive = t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - alive))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + alive), '+inf')
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', alive * 4))
local ours = true
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[2], ARGV[3], 'NX')
  ours = redis.call('GET', KEYS[2]) == ARGV[3]
end
return {redis.call('ZCARD', KEYS[1]), ours and 1 or 0}
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
            Ok((count, ours)) => {
                nodes.send_replace(count);
                if agrees && !ours {
                    tracing::error!(event = "secret_differs", "{DIFFERS}");
                }
                agrees = ours;
            }
            Err(failure) => {
                tracing::debug!(event = "heartbeat_failed", error = %failure.error, "a heartbeat failed");
            }
        }
    }
}

/// How many nodes are alive, and whether they hash keys as this one does.
async fn beat(shard: &Shard, name: &[u8]) -> Result<(u32, bool), Failure> {
    let keys = [keys::heartbeats(&shard.prefix), keys::secret(&shard.prefix)];
    let secret = shard.secret.get().map(|secret| written(*secret)).unwrap_or_default();
    let arguments = [name.to_vec(), ALIVE_MS.to_string().into_bytes(), secret.into_bytes()];
    let reply = shard.run(script(), &keys, &arguments, Instant::now() + TIMEOUT).await?;
    if let Value::Array(reply) = &reply
        && let [Value::Int(count), Value::Int(ours)] = reply[..]
    {
        return Ok((u32::try_from(count).unwrap_or(1).max(1), ours == 1));
    }
    Err(Failure::unreadable("the reply to a heartbeat has another shape"))
}

fn script() -> Script {
    static SHA1: OnceLock<String> = OnceLock::new();
    let sha1 = SHA1.get_or_init(|| redis::Script::new(TEXT).get_hash().to_owned());
    Script { text: TEXT, sha1 }
}
