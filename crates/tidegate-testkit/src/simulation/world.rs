//! One run: nodes, callers, and events one after the other.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::{FakeClock, micros};
use tidegate::engine::algorithm::Spec;
use tidegate::engine::policy::Limit;
use tidegate::{Decision, HashKey, Limiter, Request, RequestError};
use tidegate_redis::LoanHealth;
use tidegate_redis::loans::LoanRequest;

use super::clock::{NodeClock, TrueTime};
use super::network::{Event, Network, Next, lock};
use super::node_store::NodeStore;
use super::random::Random;
use super::{DEADLINE_US, Run, Setting, SetupError, Stretch};
use crate::checkers::Entry;
use crate::checkers::trouble::Trouble;
use crate::log::{CallRecord, Log};

/// 2026-01-06T00:00:00Z, less a second: a day ends in nearly every run.
const START_US: u64 = 1_767_657_600_000_000 - 1_000_000;

/// After how many requests the loans of the nodes are checked.
const LOOK_EVERY: usize = 5;
/// The longest pause without requests.
const LULL_US_MAX: u64 = 6_000_000;

type DecisionFuture = Pin<Box<dyn Future<Output = Result<Decision, RequestError>>>>;

pub(super) struct World {
    setting: Setting,
    random: Random,
    time: TrueTime,
    network: Arc<Mutex<Network>>,
    nodes: Vec<Limiter<NodeStore>>,
    ways: Vec<NodeStore>,
    tasks: Vec<Task>,
    /// The admissions of each node without the store, for each user, that the store does not know.
    owed: BTreeMap<(u32, String), Amount>,
    run: Run,
}

/// A caller that waits for an answer.
struct Task {
    node: u32,
    user: String,
    cost: Amount,
    asked_us: u64,
    deciding: Option<DecisionFuture>,
}

impl World {
    pub(super) fn new(setting: &Setting, seed: u64) -> Result<Self, SetupError> {
        let mut random = Random::new(seed);
        let time = TrueTime::default();
        time.set(START_US);
        let of_network = Random::new(random.below(u64::MAX));
        let network = Network::new(&setting.weather, setting.nodes, time.clone(), of_network);
        let network = Arc::new(Mutex::new(network));
        let (mut nodes, mut ways) = (Vec::new(), Vec::new());
        for node in 0..setting.nodes {
            let skew_us = random.around_zero(setting.weather.skew_us_max);
            let clock = NodeClock { time: time.clone(), skew_us };
            let (network, loans) = (Arc::clone(&network), Arc::default());
            let way = NodeStore { node, network, clock: clock.clone(), loans };
            way.crash(setting.believed_nodes);
            let builder = Limiter::builder().policy(Arc::clone(&setting.policy)).clock(clock);
            let builder = builder.hash_key(HashKey::new([9; 16]));
            let limiter = builder.store(way.clone()).build()?;
            limiter.set_nodes(setting.believed_nodes);
            nodes.push(limiter);
            ways.push(way);
        }
        let trouble = Trouble { nodes: setting.nodes, ..Trouble::default() };
        let run = Run {
            log: Log::new(),
            spec: spec_of(setting)?,
            trouble,
            stretches: Vec::new(),
            charged: Vec::new(),
            completed_us: Vec::new(),
            leased: setting.policy.limits().iter().any(Limit::is_leased),
            stepped_us: 0,
            overlent: None,
            borrowed: LoanHealth::default(),
        };
        let (setting, tasks, owed) = (setting.clone(), Vec::new(), BTreeMap::new());
        Ok(Self { setting, random, time, network, nodes, ways, tasks, owed, run })
    }

    /// Runs all events in order.
    pub(super) fn run(mut self) -> Run {
        self.plan_ahead();
        let network = Arc::clone(&self.network);
        loop {
            // The borrow ends before tasks are polled, because they use the network themselves.
            let Some(event) = lock(&network).next() else { break };
            self.note(&event);
            let nexts = lock(&network).happen(event);
            for next in nexts {
                self.follow(next);
            }
            self.note_cuts();
        }
        for way in &self.ways {
            self.run.borrowed = sum(self.run.borrowed, way.loans().health());
        }
        if let Some(last) = self.run.stretches.last_mut() {
            last.until_us = u64::MAX;
        }
        self.run
    }

    /// Schedules the requests, and what goes wrong among them.
    fn plan_ahead(&mut self) {
        let mut network = lock(&self.network);
        let mut at_us = START_US;
        for _ in 0..self.setting.requests {
            at_us += self.random.below(self.setting.gap_us_max);
            if self.setting.lulls_per_mille > 0
                && self.random.per_mille(self.setting.lulls_per_mille)
            {
                at_us += self.random.below(LULL_US_MAX);
            }
            network.schedule(at_us, Event::Ask);
        }
        if self.run.leased {
            let mut sweep_us = START_US;
            while sweep_us < at_us {
                for node in 0..self.setting.nodes {
                    network.schedule(sweep_us, Event::Sweep { node });
                }
                sweep_us += self.setting.sweep_every_us;
            }
        }
        let (length_us, nodes) = (at_us - START_US, self.setting.nodes);
        let weather = &self.setting.weather;
        for (at_us, event) in weather.forecast(START_US, length_us, nodes, &mut self.random) {
            network.schedule(at_us, event);
        }
    }

    fn follow(&mut self, next: Next) {
        match next {
            Next::Ask => {
                self.check_loans();
                self.ask();
            }
            Next::Sweep(node) => {
                let way = self.way(node);
                let loans = way.loans().sweep(way.now_us());
                self.send(node, loans);
            }
            Next::Crash(node) => self.way(node).crash(self.setting.believed_nodes),
            Next::Lent { node, loan, lent } => {
                let way = self.way(node);
                way.loans().apply_reply(&loan, lent.as_ref(), way.now_us());
            }
            Next::Poll(task) => self.poll(task),
            Next::Execution { task, now, charged } if charged => {
                let Task { user, cost, .. } = &self.tasks[task];
                self.run.charged.push(Entry::admitted(&**user, now.unix_us, *cost));
            }
            Next::Merge => self.merge(),
            Next::Execution { .. } | Next::Nothing => {}
        }
    }

    /// Nodes that reach the store report what they admitted without it. Corrections are answered at once,
    /// so nothing here waits.
    fn merge(&mut self) {
        let cut_off = lock(&self.network).cut_off();
        for (node, limiter) in (0..).zip(&self.nodes) {
            if cut_off.contains(&node) {
                continue;
            }
            let mut context = Context::from_waker(Waker::noop());
            let merged = pin!(limiter.merge()).poll(&mut context);
            debug_assert!(merged.is_ready(), "nothing waits here");
            let now = lock(&self.network).server.clock(self.time.now_us());
            for ((owing, user), owed) in std::mem::take(&mut self.owed) {
                if owing == node {
                    let owed = owed.min(self.run.spec.capacity());
                    self.run.charged.push(Entry::admitted(&*user, now.unix_us, owed));
                } else {
                    self.owed.insert((owing, user), owed);
                }
            }
        }
    }

    fn way(&self, node: u32) -> &NodeStore {
        // Nodes are numbered from zero, and each has a connection.
        &self.ways[usize::try_from(node).unwrap_or(0)]
    }

    fn send(&self, node: u32, loans: Vec<LoanRequest>) {
        for loan in loans {
            lock(&self.network).send(node, super::network::Ask::Loan(loan));
        }
    }

    /// Checks that nodes never hold more than the store counts, and that a bucket and its loans never
    /// exceed the burst, as long as nothing was lost.
    fn check_loans(&mut self) {
        let looks = self.run.leased && self.tasks.len().is_multiple_of(LOOK_EVERY);
        if !looks || self.run.trouble.failovers > 0 || self.run.overlent.is_some() {
            return;
        }
        let (now_us, network) = (self.time.now_us(), lock(&self.network));
        let counted = network.server.outstanding(now_us);
        let held: u64 = self.ways.iter().map(|way| way.loans().spendable(way.now_us())).sum();
        if held > counted {
            let detail = format!("nodes hold {held}, the store counts {counted}");
            self.run.overlent = Some((now_us, detail));
        } else if let Err(detail) = network.server.check() {
            self.run.overlent = Some((now_us, detail));
        }
    }

    /// A caller makes a request at some node.
    fn ask(&mut self) {
        let node = self.random.index(self.nodes.len());
        let user = format!("u{}", self.random.below(self.setting.users));
        let cost = if self.random.per_mille(800) { Amount::ONE } else { TWO };
        let (limiter, asked_us) = (self.nodes[node].clone(), self.time.now_us());
        let name = user.clone();
        let deciding: DecisionFuture = Box::pin(async move {
            let request = Request::new("GET", "/").user(name).cost(cost);
            limiter.check_async(&request).await
        });
        let node = u32::try_from(node).unwrap_or(0);
        self.tasks.push(Task { node, user, cost, asked_us, deciding: Some(deciding) });
        self.poll(self.tasks.len() - 1);
    }

    fn poll(&mut self, index: usize) {
        lock(&self.network).task = index;
        let task = &mut self.tasks[index];
        let Some(deciding) = &mut task.deciding else { return };
        let mut context = Context::from_waker(Waker::noop());
        let (node, polled) = (task.node, deciding.as_mut().poll(&mut context));
        if let Poll::Ready(decided) = polled {
            task.deciding = None;
            self.answered(index, decided);
        }
        let way = self.way(node);
        let loans = way.loans().take_due(way.now_us());
        self.send(node, loans);
    }

    fn answered(&mut self, index: usize, decided: Result<Decision, RequestError>) {
        let (task, now_us) = (&self.tasks[index], self.time.now_us());
        let mut recorded = CallRecord {
            at_us: now_us,
            node: task.node,
            key: task.user.clone(),
            cost: task.cost,
            admitted: false,
            degraded: false,
            retry_after_us: None,
            waited_us: now_us - task.asked_us,
            error: None,
        };
        match decided {
            Ok(decision) => {
                recorded.at_us = decision.now.unix_us;
                recorded.admitted = decision.is_allowed();
                recorded.degraded = decision.degraded;
                let report = decision.limit();
                recorded.retry_after_us =
                    report.and_then(|report| report.verdict.retry_after()).map(micros);
            }
            Err(error) => recorded.error = Some(error.to_string()),
        }
        if recorded.degraded && recorded.admitted {
            let owed = self.owed.entry((task.node, task.user.clone())).or_default();
            *owed = owed.saturating_add(task.cost);
        }
        self.run.completed_us.push(now_us);
        self.run.log.record(recorded);
    }

    /// Notes faults that loosen the promises.
    fn note(&mut self, event: &Event) {
        let trouble = &mut self.run.trouble;
        let set_back_us = |by_us: i64| if by_us < 0 { by_us.unsigned_abs() } else { 0 };
        match event {
            Event::FailOver { lag_us, by_us } => {
                self.run.stepped_us += by_us.unsigned_abs();
                trouble.failovers += 1;
                trouble.lag_us = trouble.lag_us.max(*lag_us);
                trouble.set_back_us += set_back_us(*by_us);
            }
            Event::Flush => trouble.failovers += 1,
            Event::SetClock { by_us } => {
                self.run.stepped_us += by_us.unsigned_abs();
                trouble.set_back_us += set_back_us(*by_us);
            }
            _ => {}
        }
    }

    /// Notes the set of nodes that are cut off, when it changes.
    fn note_cuts(&mut self) {
        let now_us = self.time.now_us();
        let all = || (0..self.setting.nodes).collect();
        let unreliable = self.setting.weather.is_unreliable(DEADLINE_US);
        let cut_off = if unreliable { all() } else { lock(&self.network).cut_off() };
        match self.run.stretches.last_mut() {
            Some(last) if last.cut_off == cut_off => return,
            Some(last) => last.until_us = now_us,
            None => {}
        }
        self.run.stretches.push(Stretch { from_us: now_us, until_us: u64::MAX, cut_off });
    }
}

/// The numbers of the limit; for a quota, with the day in which the run begins.
fn spec_of(setting: &Setting) -> Result<Spec, SetupError> {
    let clock = FakeClock::at_unix(Duration::from_micros(START_US));
    let alone = Limiter::builder().policy(Arc::clone(&setting.policy)).clock(clock).build()?;
    let decision = alone.peek(&Request::new("GET", "/").user("u0"))?;
    let report = decision.limits.first().ok_or("the policy limits nobody")?;
    Ok(report.spec)
}

fn sum(one: LoanHealth, other: LoanHealth) -> LoanHealth {
    let mut sum = one;
    sum.spent += other.spent;
    sum.exact += other.exact;
    sum.granted += other.granted;
    sum.refused += other.refused;
    sum.returned += other.returned;
    sum.expired += other.expired;
    sum
}

const TWO: Amount = match Amount::from_units(2) {
    Some(two) => two,
    None => Amount::ONE,
};
