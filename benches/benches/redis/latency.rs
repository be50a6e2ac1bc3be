//! Latencies under even loads that do not wait for answers, ours and the peer's in turn.

use std::time::Duration;

use tidegate_benches::open_loop::{OpenLoop, OpenLoopResult};
use tidegate_benches::request_spans::middle;
use tidegate_benches::store::{Checks, Figures, InFlight, Redis, median};
use tidegate_benches::witness::{Machine, Witness};

use crate::sides::{Ours, Peer};
use crate::{CHECKS, IN_FLIGHT, USERS, latencies};

/// The share of the throughput at which latencies are compared.
const LOAD: f64 = 0.7;
/// The bound on the p99.
const P99_MUST_US: f64 = 2_000.0;
const LATENCY_ROUNDS: usize = 5;

/// Arrivals that do not wait for answers, at a share of the peer's throughput, and of ours.
pub(crate) async fn latency(redis: &Redis, peer: &Peer, ours: &Ours) {
    if let Some(machine) = Witness::idle() {
        println!("\nthe machine without a load, 3 s: {machine}");
    }
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
        let mut rounds: [Vec<Round>; 2] = Default::default();
        for _ in 0..LATENCY_ROUNDS {
            rounds[0].push(Round::run(&open, redis, peer).await);
            rounds[1].push(Round::run(&open, redis, ours).await);
        }
        for (name, rounds) in ["redis-rs, one EVALSHA a check", "tidegate"].iter().zip(&rounds) {
            rounds.iter().for_each(|round| round.print(name));
        }
        let [peers, own] = rounds.each_ref().map(|rounds| middle_p99_us(rounds, Round::p99_us));
        print_middle("the middle", peers, own);
        let [peers, own] = rounds.each_ref().map(|rounds| middle_p99_us(rounds, Round::spared_us));
        print_middle("the middle of those that no stall touched", peers, own);
    }
}

/// A load, and the stalls of the machine meanwhile, if witnesses can run.
struct Round {
    open: OpenLoopResult,
    machine: Option<Machine>,
}

impl Round {
    async fn run(open: &OpenLoop, redis: &Redis, checks: &impl Checks) -> Self {
        let witness = Witness::start();
        let open = open.run(redis, checks).await;
        Self { open, machine: witness.map(Witness::end) }
    }

    fn p99_us(&self) -> Option<u64> {
        Some(self.open.figures.p99_us)
    }

    fn spared_us(&self) -> Option<u64> {
        Some(self.machine.as_ref()?.spared(&self.open.lives).latencies?.p99_us)
    }

    fn print(&self, name: &str) {
        print_latency(name, &self.open);
        match &self.machine {
            Some(machine) => println!("    {}; {machine}", machine.spared(&self.open.lives)),
            None => {
                println!("    whether the machine stood still is unknown: no real-time priority");
            }
        }
    }
}

fn middle_p99_us(rounds: &[Round], of: impl Fn(&Round) -> Option<u64>) -> Option<u64> {
    middle(rounds.iter().filter_map(of).collect())
}

fn print_middle(name: &str, peer_us: Option<u64>, our_us: Option<u64>) {
    if let (Some(peer_us), Some(our_us)) = (peer_us, our_us) {
        let (of_peer, of_must) = (our_us as f64 / peer_us as f64, our_us as f64 / P99_MUST_US);
        println!(
            "  p99, {name}: {our_us} µs, {of_peer:.2} of the peer's, {of_must:.2} of the must of 2 ms"
        );
    }
}

fn print_latency(name: &str, OpenLoopResult { figures, late_us, .. }: &OpenLoopResult) {
    let Figures { per_second, redis_us, .. } = figures;
    let latencies = latencies(figures);
    println!(
        "  {name:<42} {per_second:>8.0}/s   {redis_us:>6.2} µs of Redis   {latencies}   \
         of which {late_us} µs before it was sent"
    );
}
