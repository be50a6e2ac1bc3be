//! The shared store against redis-rs that sends one EVALSHA for each check, as everybody does: the
//! same server, the same clients, in turn. Needs redis-server.
//!
//! `cargo bench -p tidegate-benches --bench redis`, with `-- latency` for that part alone

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark may stop at the first surprise, and prints"
)]

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tidegate::plan::Mode;
use tidegate::{Limiter, Policy, Request};
use tidegate_benches::open_loop::{Open, OpenLoop};
use tidegate_benches::store::{Checks, Figures, InFlight, Redis, median};
use tidegate_redis::{Config, RedisStore};

const IN_FLIGHT: usize = 128;
const CHECKS: usize = 100_000;
const ROUNDS: usize = 7;
const USERS: usize = 100_000;
const HOT_USERS: usize = 10;
const ROOMS: usize = 1_000;
/// The share of somebody's throughput at which latencies are compared.
const LOAD: f64 = 0.7;
/// What 99 of a hundred must take less than.
const P99_MUST_US: f64 = 2_000.0;
const LATENCY_ROUNDS: usize = 5;

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

/// So slow that a user who comes again still owes something.
const ONE: &str = "
tidegate: 1
name: one
limits:
  booking-user: { by: user, token_bucket: 100/h }
";

/// So much that nobody is refused.
const HOT: &str = "
tidegate: 1
name: hot
limits:
  booking-user: { by: user, token_bucket: 10m/min }
";

const LEASED: &str = "
tidegate: 1
name: leased
limits:
  booking-user: { by: user, token_bucket: 10m/s, consistency: leased }
";

const THREE: &str = "
tidegate: 1
name: three
operations: { booking: 'POST /rooms/{room}/bookings' }
limits:
  booking-user: { when: booking, by: user, token_bucket: 100/h }
  booking-room: { when: booking, by: room, token_bucket: 1m/h }
  everything: { by: global, token_bucket: 1m/s }
";

const THREE_OF_ITS_OWN: &str = "
tidegate: 1
name: own
limits:
  per-hour: { by: user, token_bucket: 100/h }
  per-day: { by: user, token_bucket: 1000/day }
  per-month: { by: user, token_bucket: 10k/720h }
";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let redis = Redis::start();
        if !redis.keep_apart() {
            println!("the server and its client share processors");
        }
        let peer = Peer::connect(&redis, 100, 36_000_000).await;
        let [one, three, own, hot] =
            [ONE, THREE, THREE_OF_ITS_OWN, HOT].map(|policy| Ours::connect(&redis, policy));
        for ours in [&one, &three, &own, &hot] {
            assert!(ours.store.ready(Duration::from_secs(5)).await);
        }
        if !std::env::args().any(|argument| argument == "latency") {
            levels(&redis, &peer, [&one, &three, &own]).await;
            hot_keys(&redis, &Peer::connect(&redis, 10_000_000, 6).await, &hot).await;
            leased(&redis).await;
            memory(&redis, &one).await;
        }
        latency(&redis, &peer, &one).await;
    });
}

/// One bucket and three, everybody in turn, several times, since the machine is faster at one time
/// than at another.
async fn levels(redis: &Redis, peer: &Peer, ours: [&Ours; 3]) {
    let load = InFlight { checks: CHECKS, in_flight: IN_FLIGHT, users: USERS };
    let mut rounds: [Vec<Figures>; 4] = Default::default();
    for _ in 0..ROUNDS {
        rounds[0].push(load.run(redis, peer).await);
        for (rounds, ours) in rounds[1..].iter_mut().zip(ours) {
            rounds.push(load.run(redis, ours).await);
        }
    }
    let [peer, one, three, own] = rounds.map(median);
    println!("\n{USERS} users in turn, {IN_FLIGHT} in flight");
    print("redis-rs, one EVALSHA a check", &peer, &peer);
    print("tidegate, one bucket", &one, &peer);
    print("tidegate, three buckets: user, room, all", &three, &peer);
    print("tidegate, three buckets of the user", &own, &peer);
    for (name, levels) in [("user, room, all", three), ("of the user", own)] {
        println!(
            "  three buckets {name}: {:.2} x the time of one, {:.2} x Redis's CPU",
            one.per_second / levels.per_second,
            levels.redis_us / one.redis_us
        );
    }
}

/// Few keys, which every batch meets again and again.
async fn hot_keys(redis: &Redis, peer: &Peer, ours: &Ours) {
    let load = InFlight { checks: CHECKS, in_flight: IN_FLIGHT, users: HOT_USERS };
    let mut rounds: [Vec<Figures>; 2] = Default::default();
    for _ in 0..ROUNDS {
        rounds[0].push(load.run(redis, peer).await);
        rounds[1].push(load.run(redis, ours).await);
    }
    let [peer, ours] = rounds.map(median);
    println!("\n{HOT_USERS} users, {IN_FLIGHT} in flight");
    print("redis-rs, one EVALSHA a check", &peer, &peer);
    print("tidegate, one bucket", &ours, &peer);
}

/// Few keys that nodes borrow from, against the same in memory.
async fn leased(redis: &Redis) {
    let ours = Ours::connect(redis, LEASED);
    assert!(ours.store.ready(Duration::from_secs(5)).await);
    let memory = Local(Limiter::new(Policy::parse("bench.yaml", LEASED).unwrap()));
    let load = InFlight { checks: 10 * CHECKS, in_flight: IN_FLIGHT, users: HOT_USERS };
    let mut rounds: [Vec<Figures>; 2] = Default::default();
    for _ in 0..ROUNDS {
        rounds[0].push(load.run(redis, &memory).await);
        rounds[1].push(load.run(redis, &ours).await);
    }
    let [memory, ours] = rounds.map(median);
    println!("\n{HOT_USERS} users of a leased bucket, {IN_FLIGHT} in flight");
    for (name, figures) in [("tidegate in memory", memory), ("tidegate, leased", ours)] {
        println!(
            "  {name:<42} {:>8.0}/s {:>5.2} x   {:>5.1} % of a core of Redis   {} unanswered",
            figures.per_second,
            figures.per_second / memory.per_second,
            figures.redis_us * figures.per_second / 1e4,
            figures.unanswered,
        );
    }
}

/// Arrivals that do not wait for answers, at a share of what the peer can do, and of what we can.
async fn latency(redis: &Redis, peer: &Peer, ours: &Ours) {
    let load = InFlight { checks: CHECKS, in_flight: IN_FLIGHT, users: USERS };
    let (mut peers, mut own) = (Vec::new(), Vec::new());
    for _ in 0..LATENCY_ROUNDS {
        peers.push(load.run(redis, peer).await);
        own.push(load.run(redis, ours).await);
    }
    for (whose, most) in [("the peer", median(peers)), ("we", median(own))] {
        let per_second = most.per_second * LOAD;
        println!("\n{per_second:.0} checks a second whatever comes back: 70 % of what {whose} can");
        let open = OpenLoop { per_second, lasts: Duration::from_secs(2), users: USERS };
        let mut rounds: [Vec<Open>; 2] = Default::default();
        for _ in 0..LATENCY_ROUNDS {
            rounds[0].push(open.run(redis, peer).await);
            rounds[1].push(open.run(redis, ours).await);
        }
        for (name, rounds) in ["redis-rs, one EVALSHA a check", "tidegate"].iter().zip(&rounds) {
            rounds.iter().for_each(|open| print_latency(name, open));
        }
        let [peers, own] = rounds.each_ref().map(|rounds| p99_us(rounds));
        let (of_peer, of_must) = (own / peers, own / P99_MUST_US);
        println!("  p99, the middle: {of_peer:.2} of the peer's, {of_must:.2} of the must of 2 ms");
    }
}

/// The middle of several.
fn p99_us(rounds: &[Open]) -> f64 {
    let mut all: Vec<u64> = rounds.iter().map(|open| open.figures.p99_us).collect();
    all.sort_unstable();
    all[all.len() / 2] as f64
}

/// What a bucket takes in Redis, all included.
async fn memory(redis: &Redis, ours: &Ours) {
    const BUCKETS: usize = 20_000;
    redis.flush().await;
    let before = redis.used_bytes().await;
    InFlight { checks: BUCKETS, in_flight: IN_FLIGHT, users: BUCKETS }.run(redis, ours).await;
    let keys = redis.keys().await;
    println!("\n{} bytes a bucket, of {keys}", (redis.used_bytes().await - before) / keys);
}

fn print(name: &str, figures: &Figures, peer: &Figures) {
    println!(
        "  {name:<42} {:>8.0}/s {:>5.2} x   {:>6.2} µs of Redis {:>5.2} x   {:>5.2} µs here   {}",
        figures.per_second,
        figures.per_second / peer.per_second,
        figures.redis_us,
        figures.redis_us / peer.redis_us,
        figures.client_us,
        latencies(figures),
    );
}

fn print_latency(name: &str, Open { figures, late_us }: &Open) {
    let Figures { per_second, redis_us, .. } = figures;
    let latencies = latencies(figures);
    println!(
        "  {name:<42} {per_second:>8.0}/s   {redis_us:>6.2} µs of Redis   {latencies}   \
         of which {late_us} µs before it was sent"
    );
}

fn latencies(figures: &Figures) -> String {
    let Figures { p50_us, p99_us, unanswered, .. } = figures;
    format!("p50 {p50_us:>5} µs  p99 {p99_us:>6} µs  {unanswered} unanswered")
}

#[derive(Clone)]
struct Peer {
    connection: MultiplexedConnection,
    sha1: String,
    burst: u64,
    /// How long one of them takes to be refilled.
    each_us: u64,
}

impl Peer {
    async fn connect(redis: &Redis, burst: u64, each_us: u64) -> Self {
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
struct Ours {
    store: RedisStore,
    limiter: Limiter<RedisStore>,
}

impl Ours {
    fn connect(redis: &Redis, policy: &str) -> Self {
        let config = Config::parse(&redis.url()).unwrap();
        let store = RedisStore::connect(&config.timeout(Duration::from_secs(1)).unwrap());
        let policy = Policy::parse("bench.yaml", policy).unwrap();
        let limiter = Limiter::builder().policy(policy).store(store.clone()).build().unwrap();
        Self { store, limiter }
    }
}

impl Checks for Ours {
    async fn check(&self, turn: usize, users: usize) -> bool {
        !self.limiter.decide(&request(turn, users), Mode::Charge).await.unwrap().degraded
    }
}

#[derive(Clone)]
struct Local(Limiter);

impl Checks for Local {
    async fn check(&self, turn: usize, users: usize) -> bool {
        self.0.decide(&request(turn, users), Mode::Charge).await.unwrap().is_allowed()
    }
}

fn request(turn: usize, users: usize) -> Request<'static> {
    let path = format!("/rooms/r{}/bookings", turn % ROOMS);
    Request::new("POST", path).user(format!("user-{:020}", turn % users))
}
