//! Ladders, ratios and factors come to the same on the script as in memory, event by event: also
//! where a count is full, and the latest event takes the place of the oldest, and where a reload moves
//! steps below a count, so that they are taken late.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use server::Server;
use tidegate::clock::FakeClock;
use tidegate::{Consequences, HashKey, Limiter, Policy, Report, Request};
use tidegate_redis::script_store::ScriptStore;
use tidegate_testkit::block_on;

const START: u64 = 1_767_603_600;
const EVENTS: [&str; 7] = ["bad", "bad", "bad", "bad", "bad", "good", "order"];
/// A step of the ladder, and lower ones that a reload brings.
const STEPS: [&str; 2] = ["9: {}", "1: { flag: first }, 4: { ban: 30s, notify: n }, 9: {}"];
const POLICY: &str = "
tidegate: 1
name: ladders
limits: { a: { by: user, sliding_window: 10/min } }
events: { bad: {}, good: {}, order: {} }
penalties:
  p:
    event: bad
    by: user
    within: 1min
    forgive: good
    ladder: { 2: { delay: 2s }, 3: { notify: n }, 5: { ban: 20s, warn: a5 }, STEPS }
ratios:
  r: { of: bad, to: order, by: user, within: 1min, at_least: 3, above: 50%, then: { flag: many } }
factors: { f: { by: user, good: [r < 50%], step: 0.1 every 10s, range: 0.5..2 } }
notify: { n: { webhook: 'https://hooks.example.org/x' } }
";

fn seen(reported: &Consequences, factor_ppm: u64) -> String {
    let Consequences { delay, warnings, banned, flags, effects, degraded, .. } = reported;
    format!("{delay:?} {warnings:?} {banned} {flags:?} {effects:?} {degraded} {factor_ppm}")
}

#[test]
fn ladders_climb_on_the_script_as_in_memory() {
    let (server, cases) = (RefCell::new(Server::start()), Cell::new(0));
    let events = proptest::collection::vec((0..2_usize, 0..8_usize, 0..15_000_000_u64), 1..60);
    let mut runner = TestRunner::new(Config { cases: 24, ..Config::default() });
    let run = runner.run(&events, |events| {
        let clock = FakeClock::at_unix_seconds(START);
        let policy = |steps: usize| {
            let text = POLICY.replace("STEPS", STEPS[steps]);
            Arc::new(Policy::parse("ladders.yaml", &text).unwrap())
        };
        let builder = || {
            let builder = Limiter::builder().policy(policy(0)).clock(clock.clone());
            builder.hash_key(HashKey::new([3; 16]))
        };
        // Each case starts from nothing.
        let prefix = format!("tg{}:", cases.replace(cases.get() + 1));
        let store = ScriptStore::new(server.borrow_mut().connect(), &prefix).unwrap();
        let (memory, script) =
            (builder().build().unwrap(), builder().store(store).build().unwrap());
        let mut steps = 0;
        for (user, event, wait_us) in events {
            clock.advance(Duration::from_micros(wait_us));
            let Some(event) = EVENTS.get(event) else {
                steps = 1 - steps;
                memory.replace_policies(vec![policy(steps)]).unwrap();
                script.replace_policies(vec![policy(steps)]).unwrap();
                continue;
            };
            let request = || Request::default().user(["u0", "u1"][user]);
            let report = Report::new(*event, request());
            let told = memory.report(&report).unwrap();
            let told = seen(&told, memory.peek(&request()).unwrap().factor_ppm());
            let said = block_on(script.report_async(&report)).unwrap();
            let peeked = block_on(script.peek_async(&request())).unwrap();
            prop_assert_eq!(told, seen(&said, peeked.factor_ppm()));
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}
