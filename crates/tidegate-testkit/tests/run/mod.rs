//! A run of many threads, and the log of its decisions.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::{Clock, FakeClock, micros};
use tidegate::engine::algorithm::{Spec, Verdict};
use tidegate::{LimitReport, Limiter, Policy, Request};
use tidegate_testkit::checkers::Entry;

pub(crate) const THREADS: usize = 8;
pub(crate) const USERS: [&str; 3] = ["ada", "bob", "cyd"];
const TURNS: usize = 12;

#[derive(Debug)]
pub(crate) struct DecisionRecord {
    pub(crate) user: String,
    pub(crate) allowed: bool,
    pub(crate) reports: Vec<LimitReport>,
    /// How far time went on during the decision.
    pub(crate) late_us: u64,
    time: tidegate::clock::Now,
}

pub(crate) struct Run {
    pub(crate) limiter: Limiter,
    pub(crate) decisions: Vec<DecisionRecord>,
}

pub(crate) fn policy(limits: &str) -> Policy {
    Policy::parse("run.yaml", &format!("tidegate: 1\nname: run\nlimits:\n{limits}")).unwrap()
}

pub(crate) fn by_user(user: &str) -> Request<'_> {
    Request::new("GET", "/things").user(user)
}

pub(crate) fn decide(
    limiter: &Limiter,
    clock: &FakeClock,
    user: &str,
    cost: Amount,
) -> DecisionRecord {
    let decision = limiter.check(&by_user(user).cost(cost)).unwrap();
    let (time, user) = (decision.now, user.to_owned());
    let late_us = clock.now().steady_us - time.steady_us;
    let reports = decision.limits.to_vec();
    DecisionRecord { user, allowed: decision.is_allowed(), reports, late_us, time }
}

impl Run {
    /// All threads decide at one instant, many times; then time moves on by a step. So the log has
    /// the exact instants, and the contention is real.
    pub(crate) fn in_steps(
        limits: &str,
        clock: &FakeClock,
        steps: usize,
        step_us: u64,
        ask: impl Fn(usize, usize) -> (&'static str, Amount) + Sync,
    ) -> Self {
        let limiter =
            Limiter::builder().policy(policy(limits)).clock(clock.clone()).build().unwrap();
        let barrier = Barrier::new(THREADS);
        let (ask, barrier, shared) = (&ask, &barrier, &limiter);
        let work = |thread: usize| {
            move || {
                let mut log = Vec::new();
                for step in 0..steps {
                    if barrier.wait().is_leader() {
                        clock.advance(Duration::from_micros(step_us));
                    }
                    barrier.wait();
                    for turn in 0..TURNS {
                        let (user, cost) = ask(thread, step * TURNS + turn);
                        log.push(decide(shared, clock, user, cost));
                    }
                }
                log
            }
        };
        let decisions = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        Self { limiter, decisions }
    }

    pub(crate) fn limits(&self) -> usize {
        self.decisions[0].reports.len()
    }

    /// The charges and the denials of one limit.
    pub(crate) fn log(&self, index: usize) -> (Spec, Vec<Entry>) {
        let first = self.decisions.iter().min_by_key(|decided| decided.time.unix_us).unwrap();
        let spec = first.reports[index].spec;
        let decision = self.limiter.peek(&by_user(USERS[0])).unwrap();
        let limit = decision.limit_of(&decision.limits[index]).unwrap();
        let shared = ["everybody", "bucket"].contains(&limit.name());
        let entry = |decided: &DecisionRecord| {
            let report = decided.reports[index];
            let key = if shared { "everybody" } else { &*decided.user };
            let time = decided.time;
            let time_us = if spec.uses_wall_clock() { time.unix_us } else { time.steady_us };
            match report.verdict {
                Verdict::Allowed => {
                    report.charged.then(|| Entry::admitted(key, time_us, report.cost))
                }
                Verdict::Denied { retry_after } => {
                    Some(Entry::denied(key, time_us, report.cost, retry_after.map(micros)))
                }
            }
        };
        let mut log: Vec<Entry> = self.decisions.iter().filter_map(entry).collect();
        // The order within one instant is unknown.
        log.sort_by_key(|entry| (entry.time_us, entry.admitted));
        (spec, log)
    }
}
