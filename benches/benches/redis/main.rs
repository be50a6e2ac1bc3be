//! The shared store against redis-rs that sends one EVALSHA for each check, as is usual: the
//! same server, the same clients, in turn. Needs redis-server. Each latency under an even load comes
//! with the stalls of the machine, and the latency of the requests that no stall touched.
//!
//! `cargo bench -p tidegate-benches --bench redis`, with `-- latency` for that part alone

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark may stop at the first surprise, and prints"
)]

mod latency;
mod sides;

use std::time::Duration;

use tidegate::{Limiter, Policy};
use tidegate_benches::roles;
use tidegate_benches::store::{Figures, InFlight, Redis, median};

use crate::latency::latency;
use crate::sides::{Local, Ours, Peer};

const IN_FLIGHT: usize = 128;
const CHECKS: usize = 100_000;
const ROUNDS: usize = 7;
const USERS: usize = 100_000;
const HOT_USERS: usize = 10;

/// So slow that a returning user still owes something.
const ONE: &str = "
tidegate: 1
name: one
limits:
  booking-user: { by: user, token_bucket: 100/h }
";

/// So much that no request is refused.
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
    if roles::play() {
        return;
    }
    let first = roles::go_first();
    if first.is_none() {
        println!("other programs of the machine come in between");
    }
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

/// One bucket and three, all sides in turn, several times, because the machine's speed varies.
async fn levels(redis: &Redis, peer: &Peer, ours: [&Ours; 3]) {
    let load = InFlight { checks: CHECKS, in_flight: IN_FLIGHT, users: USERS };
    let mut rounds: [Vec<Figures>; 4] = Default::default();
    for _ in 0..ROUNDS {
        rounds[0].push(load.run(redis, peer).await);
        for (rounds, ours) in rounds[1..].iter_mut().zip(ours) {
            rounds.push(load.run(redis, ours).await);
        }
    }
    let dearer = |levels: usize| {
        let pairs = || rounds[1].iter().zip(&rounds[levels]);
        // Ratios within one round, in which the machine's speed varies least.
        let time = middle(pairs().map(|(one, all)| one.per_second / all.per_second));
        let redis = middle(pairs().map(|(one, all)| all.redis_us / one.redis_us));
        format!("{time:.2} x the time of one, {redis:.2} x Redis's CPU")
    };
    let [three_times, own_times] = [dearer(2), dearer(3)];
    let [peer, one, three, own] = rounds.map(median);
    println!("\n{USERS} users in turn, {IN_FLIGHT} in flight");
    print("redis-rs, one EVALSHA a check", &peer, &peer);
    print("tidegate, one bucket", &one, &peer);
    print("tidegate, three buckets: user, room, all", &three, &peer);
    print("tidegate, three buckets of the user", &own, &peer);
    println!("  three buckets user, room, all: {three_times}");
    println!("  three buckets of the user: {own_times}");
}

fn middle(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
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

/// The memory of a bucket in Redis, all included.
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

fn latencies(figures: &Figures) -> String {
    let Figures { p50_us, p99_us, unanswered, .. } = figures;
    format!("p50 {p50_us:>5} µs  p99 {p99_us:>6} µs  {unanswered} unanswered")
}
