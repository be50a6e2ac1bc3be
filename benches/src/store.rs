//! Loads on a Redis of their own, from one thread: the throughput, and the cost for the server.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::cast_precision_loss,
    reason = "a benchmark may stop at the first surprise, and its figures are for people"
)]

use std::future::Future;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, InfoDict};
use tokio::task::JoinSet;

use crate::load::{Server, cpu_seconds, wait_for};
use crate::request_spans::{Latencies, RequestSpan, now_us};

/// A side that answers checks.
pub trait Checks: Clone + Send + Sync + 'static {
    /// One check, for one of `users` users in turn. Returns whether the store answered.
    fn check(&self, turn: usize, users: usize) -> impl Future<Output = bool> + Send;
}

/// The cost and the throughput of a load.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Checks in a second.
    pub per_second: f64,
    /// Microseconds of Redis's processor time for each.
    pub redis_us: f64,
    /// Microseconds of the client's own.
    pub client_us: f64,
    /// The median latency, in microseconds.
    pub p50_us: u64,
    /// The p99.
    pub p99_us: u64,
    /// The number of checks that the store did not answer.
    pub unanswered: usize,
}

/// A fixed number of checks at a time, each directly after the other.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// How many in all.
    pub checks: usize,
    /// How many at a time.
    pub in_flight: usize,
    /// How many users take turns.
    pub users: usize,
}

impl InFlight {
    /// Runs the load.
    pub async fn run(&self, redis: &Redis, checks: &impl Checks) -> Figures {
        let Self { in_flight, users, .. } = *self;
        let each = self.checks / in_flight;
        let measure = Measure::start(redis).await;
        let one = |task: usize| {
            let checks = checks.clone();
            async move {
                let mut lives = Vec::with_capacity(each);
                for turn in 0..each {
                    let due_us = now_us();
                    // A large stride, so that users come in no order.
                    let answered = checks.check((turn * in_flight + task) * 7_919, users).await;
                    lives.push((RequestSpan { due_us, done_us: now_us() }, answered));
                }
                lives
            }
        };
        let lives = (0..in_flight).map(one).collect::<JoinSet<_>>().join_all().await;
        measure.figures(redis, &lives.concat()).await
    }
}

/// The processor times before a load.
pub(crate) struct Measure {
    pub(crate) started_us: u64,
    redis_seconds: f64,
    client_seconds: f64,
}

impl Measure {
    pub(crate) async fn start(redis: &Redis) -> Self {
        let (redis_seconds, client_seconds) = (redis.cpu_seconds().await, own_cpu_seconds());
        Self { redis_seconds, client_seconds, started_us: now_us() }
    }

    pub(crate) async fn figures(self, redis: &Redis, lives: &[(RequestSpan, bool)]) -> Figures {
        let elapsed_us = now_us() - self.started_us;
        let client_seconds = own_cpu_seconds() - self.client_seconds;
        let redis_seconds = redis.cpu_seconds().await - self.redis_seconds;
        let latencies = Latencies::of(lives.iter().map(|(life, _)| *life)).unwrap();
        let all = lives.len() as f64;
        Figures {
            per_second: all * 1e6 / elapsed_us as f64,
            redis_us: redis_seconds * 1e6 / all,
            client_us: client_seconds * 1e6 / all,
            p50_us: latencies.p50_us,
            p99_us: latencies.p99_us,
            unanswered: lives.iter().filter(|(_, answered)| !answered).count(),
        }
    }
}

/// The median of several figures, by processor time.
#[must_use]
pub fn median(mut figures: Vec<Figures>) -> Figures {
    figures.sort_by(|a, b| a.redis_us.total_cmp(&b.redis_us));
    figures[figures.len() / 2]
}

/// A server of its own; it ends with its owner.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    server: Server,
}

impl Redis {
    /// Starts a server on a free port.
    #[must_use]
    pub fn start() -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
            .arg(address.port().to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server(child);
        wait_for(address);
        Self { port: address.port(), server }
    }

    /// Gives the server one processor and this thread another, where there are two: a server that is moved
    /// to its client's processor waits for whole time slices. Returns whether this worked.
    #[must_use]
    pub fn keep_apart(&self) -> bool {
        let pin = |process: u32, processor: &str| {
            let mut command = Command::new("taskset");
            command.args(["--pid", "--cpu-list", processor, &process.to_string()]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        pin(self.server.0.id(), "1") && pin(std::process::id(), "0")
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A shared connection.
    pub async fn connect(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// Forgets everything.
    pub async fn flush(&self) {
        let () = self.ask("FLUSHALL", &[]).await;
    }

    /// How many keys it has.
    pub async fn keys(&self) -> u64 {
        self.ask("DBSIZE", &[]).await
    }

    /// The memory that it uses.
    pub async fn used_bytes(&self) -> u64 {
        let memory: InfoDict = self.ask("INFO", &["memory"]).await;
        memory.get("used_memory").unwrap()
    }

    async fn cpu_seconds(&self) -> f64 {
        let cpu: InfoDict = self.ask("INFO", &["cpu"]).await;
        let seconds = |name| cpu.get::<f64>(name).unwrap();
        seconds("used_cpu_user") + seconds("used_cpu_sys")
    }

    async fn ask<T: FromRedisValue>(&self, command: &str, arguments: &[&str]) -> T {
        let mut connection = self.connect().await;
        redis::cmd(command).arg(arguments).query_async(&mut connection).await.unwrap()
    }
}

fn own_cpu_seconds() -> f64 {
    cpu_seconds(std::process::id())
}
