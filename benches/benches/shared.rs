//! The daemon on Redis under an even load: 100 clients, 1,000 and 10,000 requests a second, exact
//! limits; then the same with Redis gone. A bare server that only answers takes turns with it, to show
//! the machine's own latency. Each latency comes with the stalls of the machine, and the latency of the
//! requests that no stall touched. Needs redis-server.
//!
//! `cargo bench -p tidegate-benches --bench shared`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark may stop at the first surprise, and prints"
)]

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tidegate_benches::bare::Bare;
use tidegate_benches::daemon::{Daemon, built};
use tidegate_benches::evenly::evenly;
use tidegate_benches::load::{body_bytes, page};
use tidegate_benches::request_spans::{Latencies, middle};
use tidegate_benches::roles;
use tidegate_benches::witness::Witness;
use tidegate_testkit::servers::Server;

const CLIENTS: usize = 100;
const SECONDS: usize = 10;
const ROUNDS: usize = 3;
/// The bounds on the p99, with Redis and without.
const P99_MUST_US: u64 = 1_000;
const P99_MUST_ALONE_US: u64 = 500;

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
    if roles::play() {
        return;
    }
    let first = roles::go_first();
    if first.is_none() {
        println!("other programs of the machine come in between");
    }
    let tidegate = built();
    let folder = std::env::temp_dir().join(format!("tidegate-shared-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let redis = Server::start().unwrap();
    let daemon = Daemon::start(&tidegate, &folder, POLICY, &["--store", &redis.url()]);
    until(daemon.admin, "healthy");
    println!("\nPOST /v1/check on Redis, three exact limits, {CLIENTS} clients, open loop");
    if let Some(machine) = Witness::idle() {
        println!("  without a load, 3 s: {machine}");
    }
    let bare = Bare::start(body_bytes(daemon.api, &check(daemon.api)(0)));
    for address in [bare.address, daemon.api] {
        evenly(address, CLIENTS, 1_000, 1_000, check(address));
    }
    let rounds = (0..ROUNDS).map(|_| {
        let bare = load("bare hyper", bare.address, 1_000);
        (bare, load("on Redis", daemon.api, 1_000))
    });
    let (floor, on_redis): (Vec<_>, Vec<_>) = rounds.unzip();
    print_middle("bare hyper", &floor, P99_MUST_US);
    print_middle("on Redis", &on_redis, P99_MUST_US);
    load("bare hyper", bare.address, 10_000);
    load("on Redis", daemon.api, 10_000);
    redis.kill().unwrap();
    evenly(daemon.api, CLIENTS, 1_000, 1_000, check(daemon.api));
    until(daemon.admin, "lost");
    let alone: Vec<_> = (0..ROUNDS).map(|_| load("with Redis gone", daemon.api, 1_000)).collect();
    print_middle("with Redis gone", &alone, P99_MUST_ALONE_US);
    drop(daemon);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The p99 of all requests, and of those that no stall touched.
struct P99 {
    us: u64,
    spared_us: Option<u64>,
}

/// Loads a server, and prints the result.
fn load(name: &str, address: SocketAddr, per_second: usize) -> P99 {
    let witness = Witness::start();
    let answered = evenly(address, CLIENTS, per_second, per_second * SECONDS, check(address));
    let machine = witness.map(Witness::end);
    let Latencies { p50_us, p99_us, longest_us } =
        Latencies::of(answered.lives.iter().copied()).unwrap();
    println!(
        "  {per_second:>6}/s {name:<16} p50 {p50_us:>5} µs  p99 {p99_us:>6} µs  longest {longest_us:>6} µs  {} of {} dropped",
        answered.dropped,
        answered.lives.len(),
    );
    let spared = machine.as_ref().map(|machine| machine.spared(&answered.lives));
    match machine.zip(spared) {
        Some((machine, spared)) => println!("    {spared}; {machine}"),
        None => println!("    whether the machine stood still is unknown: no real-time priority"),
    }
    let spared_us = spared.and_then(|spared| Some(spared.latencies?.p99_us));
    P99 { us: p99_us, spared_us }
}

fn print_middle(name: &str, rounds: &[P99], must_us: u64) {
    let all = rounds.iter().map(|p99| p99.us).collect();
    let spared = rounds.iter().filter_map(|p99| p99.spared_us).collect();
    for (of, p99_us) in [("all", middle(all)), ("those that no stall touched", middle(spared))] {
        if let Some(p99_us) = p99_us {
            let of_must = p99_us as f64 / must_us as f64;
            println!(
                "  {name}: p99 of {of}, the middle: {p99_us} µs, {of_must:.2} of {must_us} µs"
            );
        }
    }
}

/// Waits until the daemon's status shows this state of its store.
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
