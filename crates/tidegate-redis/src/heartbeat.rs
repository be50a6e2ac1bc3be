//! Which nodes are alive: each writes the server's time behind its name every second, and counts who
//! did so lately.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::connection::{Failure, Script};
use crate::keys;
use crate::store::Shard;

const EVERY: Duration = Duration::from_secs(1);
/// How long a node that has fallen silent counts.
const ALIVE_MS: u64 = 3000;
/// A heartbeat is no request: it may wait until a loaded server gets to it.
const TIMEOUT: Duration = Duration::from_millis(500);

/// KEYS[1]: the nodes. ARGV: this node's name, and for how many milliseconds one counts. What lies in
/// the future was written before the clock was set back, or by the server before a failover.
const TEXT: &str = "
local t = redis.call('TIME')
local now, alive = t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - alive))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + alive), '+inf')
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', alive * 4))
return redis.call('ZCARD', KEYS[1])
";

/// Writes and counts for as long as it is let. While the server is lost, the last count stands.
pub(crate) async fn keep_beating(shard: Arc<Shard>, nodes: watch::Sender<u32>) {
    let name = format!("{:016x}", fastrand::u64(..)).into_bytes();
    let mut status = shard.status();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while status.wait_for(|status| status.state.asks()).await.is_ok() {
        ticks.tick().await;
        match beat(&shard, &name).await {
            Ok(count) => _ = nodes.send_replace(count),
            Err(failure) => tracing::debug!(error = %failure.error, "a heartbeat failed"),
        }
    }
}

async fn beat(shard: &Shard, name: &[u8]) -> Result<u32, Failure> {
    let keys = [keys::heartbeats(&shard.prefix)];
    let arguments = [name.to_vec(), ALIVE_MS.to_string().into_bytes()];
    match shard.run(script(), &keys, &arguments, Instant::now() + TIMEOUT).await? {
        Value::Int(count) => Ok(u32::try_from(count).unwrap_or(1).max(1)),
        _ => Err(Failure::unreadable("the number of nodes is no number")),
    }
}

fn script() -> Script {
    static SHA1: OnceLock<String> = OnceLock::new();
    let sha1 = SHA1.get_or_init(|| redis::Script::new(TEXT).get_hash().to_owned());
    Script { text: TEXT, sha1 }
}
