//! The daemon on Redis under an even load: 100 clients, 1,000 and 10,000 requests a second, exact
//! limits; then the same with Redis gone. Needs redis-server.
//!
//! `cargo bench -p tidegate-benches --bench shared`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark may stop at the first surprise, and prints"
)]

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tidegate_benches::daemon::{Daemon, built};
use tidegate_benches::evenly::{Answered, evenly};
use tidegate_benches::load::page;
use tidegate_testkit::servers::Server;

const CLIENTS: usize = 100;
const SECONDS: usize = 10;

const POLICY: &str = "
tidegate: 1
name: shared
tiers: [free, premium]
identity: { default_tier: free }
operations:
  booking: POST /rooms/{room}/bookings
limits:
  booking-user: { when: booking, by: user, token_bucket: { free: 1k/s, premium: 2k/s } }
  booking-room: { when: booking, by: room, fixed_window: 1m/s }
  per-ip: { by: ip, token_bucket: 1m/s }
";

fn main() {
    let tidegate = built();
    let folder = std::env::temp_dir().join(format!("tidegate-shared-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let redis = Server::start().unwrap();
    let daemon = Daemon::start(&tidegate, &folder, POLICY, &["--store", &redis.url()]);
    until(daemon.admin, "healthy");
    println!("\nPOST /v1/check on Redis, three exact limits, {CLIENTS} clients, open loop");
    evenly(daemon.api, CLIENTS, 1_000, 1_000, check(daemon.api));
    for per_second in [1_000, 10_000] {
        print(per_second, "on Redis", &load(&daemon, per_second));
    }
    redis.kill().unwrap();
    evenly(daemon.api, CLIENTS, 1_000, 1_000, check(daemon.api));
    until(daemon.admin, "lost");
    print(1_000, "with Redis gone", &load(&daemon, 1_000));
    drop(daemon);
    std::fs::remove_dir_all(&folder).unwrap();
}

fn load(daemon: &Daemon, per_second: usize) -> Answered {
    evenly(daemon.api, CLIENTS, per_second, per_second * SECONDS, check(daemon.api))
}

/// Waits until the daemon's status says so of its store.
fn until(admin: SocketAddr, state: &str) {
    let wanted = format!("\"state\":\"{state}\"");
    let says = || page(admin, "/admin/v1/status").replace(' ', "").contains(&wanted);
    while !says() {
        thread::sleep(Duration::from_millis(20));
    }
}

fn check(address: SocketAddr) -> impl Fn(usize) -> Vec<u8> + Send + Sync {
    move |turn| {
        let (room, user) = (turn % 1_000, turn % 50_000);
        let body = format!(
            "{{\"method\":\"POST\",\"path\":\"/rooms/r{room}/bookings\",\"ip\":\"203.0.113.7\",\"user\":\"user-{user}\"}}"
        );
        let length = body.len();
        format!("POST /v1/check HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    }
}

fn print(per_second: usize, name: &str, answered: &Answered) {
    println!(
        "  {per_second:>6}/s {name:<16} p50 {:>5} µs  p99 {:>6} µs  longest {:>6} µs  {} of {} dropped",
        answered.p50_us, answered.p99_us, answered.longest_us, answered.dropped, answered.sent,
    );
}
