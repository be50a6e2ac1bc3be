//! Several nodes on one store, some of them cut off: the bounds of docs/redis.md hold.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::{Clock, FakeClock};
use tidegate::engine::algorithm::{sliding_window, token_bucket};
use tidegate::{HashKey, Limiter, Policy, Request};
use tidegate_testkit::block_on;
use tidegate_testkit::checkers::{Entry, Violation, bounds};
use tidegate_testkit::scripted::{Script, ScriptedStore};

const NODES: u32 = 4;
const WINDOW_US: u64 = 1_000_000;

struct Deployment {
    nodes: Vec<(Limiter<ScriptedStore>, ScriptedStore)>,
    clock: FakeClock,
    random: u64,
}

impl Deployment {
    fn new(spec: &str, seed: u64) -> Self {
        let text = format!("tidegate: 1\nname: many\nlimits:\n  a: {{ by: user, {spec} }}");
        let clock = FakeClock::at_unix_seconds(1_767_603_600);
        let store = ScriptedStore::new(Script::new());
        let node = |_| {
            let store = store.beside(Script::new());
            let builder = Limiter::builder().policy(Policy::parse("many.yaml", &text).unwrap());
            let builder = builder.clock(clock.clone()).hash_key(HashKey::new([9; 16]));
            (builder.nodes(NODES).store(store.clone()).build().unwrap(), store)
        };
        Self { nodes: (0..NODES).map(node).collect(), clock: clock.clone(), random: seed | 1 }
    }

    fn cut_off(&self, nodes: usize) {
        for (index, (_, store)) in self.nodes.iter().enumerate() {
            let script = if index < nodes { Script::new().down() } else { Script::new() };
            store.play(script);
        }
    }

    /// Xorshift: seeded, so that a failure can be replayed.
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Requests of a greedy user at random nodes.
    fn run(&mut self, requests: usize) -> Vec<Entry> {
        let request = Request::new("GET", "/").user("u");
        let mut log = Vec::new();
        for _ in 0..requests {
            let wait_us = self.random(30_000);
            self.clock.advance(Duration::from_micros(wait_us));
            let node = usize::try_from(self.random(u64::from(NODES))).unwrap();
            let limiter = &self.nodes[node].0;
            let decision = block_on(limiter.check_async(&request)).unwrap();
            if decision.is_allowed() {
                log.push(Entry::admitted("u", self.clock.now().steady_us, Amount::ONE));
            }
        }
        log
    }
}

fn units(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

/// At most (1 + k/N) · (b + r · δ), for a bucket of 8 and 8 each second.
fn bucket_promise(log: &[Entry], cut: u64) -> Result<(), Violation> {
    let scaled = units(8 + 8 * cut / u64::from(NODES));
    let spec = token_bucket::Spec { count: scaled, period_us: WINDOW_US, burst: scaled };
    bounds::token_bucket(log, &spec, Amount::ZERO)
}

/// At most L + k · ⌈L/N⌉, for 10 each second.
fn window_promise(log: &[Entry], cut: u64) -> Result<(), Violation> {
    let limit = units(10 + cut * 10_u64.div_ceil(u64::from(NODES)));
    bounds::sliding_window(log, &sliding_window::Spec { limit, window_us: WINDOW_US })
}

#[test]
fn nodes_that_are_cut_off_admit_no_more_than_their_share() {
    for seed in 1..=20 {
        for cut in 0..=u64::from(NODES) {
            for (spec, promise) in [
                ("token_bucket: 8/s burst 8", bucket_promise as fn(&[Entry], u64) -> _),
                ("sliding_window: 10/s", window_promise),
            ] {
                let mut deployment = Deployment::new(spec, seed);
                deployment.cut_off(usize::try_from(cut).unwrap());
                let log = deployment.run(400);
                promise(&log, cut).unwrap_or_else(|broken| {
                    panic!("{spec}, {cut} cut off, seed {seed}: {broken}")
                });
            }
        }
    }
}

#[test]
fn a_cut_and_a_return_cost_at_most_one_further_burst() {
    for seed in 1..=20 {
        let mut deployment = Deployment::new("token_bucket: 8/s burst 8", seed);
        let mut log = deployment.run(100);
        deployment.cut_off(2);
        log.extend(deployment.run(100));
        deployment.cut_off(0);
        log.extend(deployment.run(100));
        // (1 + 2/4) · (b + r · δ), and one further b.
        let spec =
            token_bucket::Spec { count: units(12), period_us: WINDOW_US, burst: units(12 + 8) };
        bounds::token_bucket(&log, &spec, Amount::ZERO).unwrap();
    }
}

/// Without the shares the nodes together would admit more: the promise is worth checking.
#[test]
fn nodes_that_think_they_are_alone_are_caught() {
    let caught = (1..=20).any(|seed| {
        let mut deployment = Deployment::new("token_bucket: 8/s burst 8", seed);
        deployment.cut_off(2);
        for (limiter, _) in &deployment.nodes {
            limiter.set_nodes(1);
        }
        bucket_promise(&deployment.run(400), 2).is_err()
    });
    assert!(caught);
}
