//! A leased limit on a shared store against the same limit in memory, on hot keys: the same requests,
//! in turn. Needs redis-server.
//!
//! `cargo bench -p tidegate-benches --bench leases`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark may stop at the first surprise, and prints"
)]

use std::time::Duration;

use tidegate::engine::store::{Memory, Store};
use tidegate::{Limiter, Policy, Request};
use tidegate_benches::store::{Checks, Figures, InFlight, Redis, median};
use tidegate_redis::{Config, RedisStore};

const CHECKS: usize = 400_000;
const ROUNDS: usize = 7;
const HOT_USERS: usize = 10;
/// How many checks a task makes before others have a turn, as a connection would.
const AT_A_TIME: usize = 32;

const POLICY: &str = "
tidegate: 1
name: hot
limits:
  booking-user: { by: user, token_bucket: 1m/s burst 1m, consistency: leased }
";

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let redis = Redis::start();
        let config = Config::parse(&redis.url()).unwrap();
        let store = RedisStore::connect(&config.timeout(Duration::from_secs(1)).unwrap());
        assert!(store.ready(Duration::from_secs(5)).await);
        let (memory, leased) = (on(Memory::new()), on(store.clone()));
        let load = InFlight { checks: CHECKS, in_flight: 8, users: HOT_USERS };
        let mut rounds: [Vec<Figures>; 2] = Default::default();
        for _ in 0..ROUNDS {
            rounds[0].push(load.run(&redis, &memory).await);
            rounds[1].push(load.run(&redis, &leased).await);
        }
        let [memory, leased] = rounds.map(median);
        println!("\n{HOT_USERS} users, two threads");
        for (name, figures) in [("memory", memory), ("leased", leased)] {
            println!(
                "  {name}  {:>9.0}/s {:>5.2} x   Redis {:>5.1} % of a core   p99 {:>4} µs",
                figures.per_second,
                figures.per_second / memory.per_second,
                figures.redis_us * figures.per_second / 1e4,
                figures.p99_us,
            );
        }
        println!("  {:?}", store.loan_health());
    });
}

fn on<S: Store>(store: S) -> Hot<S> {
    let policy = Policy::parse("bench.yaml", POLICY).unwrap();
    Hot(Limiter::builder().policy(policy).store(store).build().unwrap())
}

struct Hot<S>(Limiter<S>);

impl<S> Clone for Hot<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Store> Checks for Hot<S> {
    async fn check(&self, turn: usize, users: usize) -> bool {
        if turn.is_multiple_of(AT_A_TIME) {
            tokio::task::yield_now().await;
        }
        let request = Request::new("GET", "/").user(format!("user-{:020}", turn % users));
        let decision = self.0.check_async(&request).await.unwrap();
        decision.is_allowed() && !decision.degraded
    }
}
