//! The measured sides: redis-rs with a script of its own, our store, and our memory.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tidegate::{Limiter, Policy, Request};
use tidegate_benches::store::{Checks, Redis};
use tidegate_redis::{Config, RedisStore};

const ROOMS: usize = 1_000;

/// A token bucket as one instant: the fastest of the scripts that people use.
const PEER: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local burst, each = tonumber(ARGV[1]), tonumber(ARGV[2])
local full_at = tonumber(redis.call('GET', KEYS[1]) or now)
if full_at < now then full_at = now end
local owed = full_at + each - now
if owed > burst * each then return { 0, 0, owed - burst * each } end
redis.call('SET', KEYS[1], string.format('%.0f', full_at + each), 'PX', math.ceil(owed / 1000))
return { 1, math.floor((burst * each - owed) / each), 0 }
";

#[derive(Clone)]
pub(crate) struct Peer {
    connection: MultiplexedConnection,
    sha1: String,
    burst: u64,
    /// How long one of them takes to be refilled.
    each_us: u64,
}

impl Peer {
    pub(crate) async fn connect(redis: &Redis, burst: u64, each_us: u64) -> Self {
        let mut connection = redis.connect().await;
        let script = redis::Script::new(PEER);
        script.prepare_invoke().load_async(&mut connection).await.unwrap();
        Self { connection, sha1: script.get_hash().to_owned(), burst, each_us }
    }
}

impl Checks for Peer {
    async fn check(&self, turn: usize, users: usize) -> bool {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha1).arg(1).arg(format!("peer:user-{:020}", turn % users));
        command.arg(self.burst).arg(self.each_us);
        let reply: redis::RedisResult<(u64, u64, u64)> =
            command.query_async(&mut self.connection.clone()).await;
        reply.is_ok()
    }
}

#[derive(Clone)]
pub(crate) struct Ours {
    pub(crate) store: RedisStore,
    limiter: Limiter<RedisStore>,
}

impl Ours {
    pub(crate) fn connect(redis: &Redis, policy: &str) -> Self {
        let config = Config::parse(&redis.url()).unwrap();
        let store = RedisStore::connect(&config.timeout(Duration::from_secs(1)).unwrap());
        let policy = Policy::parse("bench.yaml", policy).unwrap();
        let limiter = Limiter::builder().policy(policy).store(store.clone()).build().unwrap();
        Self { store, limiter }
    }
}

impl Checks for Ours {
    async fn check(&self, turn: usize, users: usize) -> bool {
        !self.limiter.check_async(&request(turn, users)).await.unwrap().degraded
    }
}

#[derive(Clone)]
pub(crate) struct Local(pub(crate) Limiter);

impl Checks for Local {
    async fn check(&self, turn: usize, users: usize) -> bool {
        self.0.check_async(&request(turn, users)).await.unwrap().is_allowed()
    }
}

fn request(turn: usize, users: usize) -> Request<'static> {
    let path = format!("/rooms/r{}/bookings", turn % ROOMS);
    Request::new("POST", path).user(format!("user-{:020}", turn % users))
}
