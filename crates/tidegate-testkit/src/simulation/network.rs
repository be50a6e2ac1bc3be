//! The modelled network: messages between the nodes and the server, and when they arrive.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::clock::Now;
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{Answer, StoreError};
use tidegate_redis::loans::{LoanReply, LoanRequest};

use super::DEADLINE_US;
use super::clock::TrueTime;
use super::random::Random;
use super::server::Server;
use super::weather::Weather;

/// Something that happens at an instant.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A caller makes a request.
    Ask,
    /// A request reaches the server.
    Arrive { call: usize },
    /// An answer reaches its node.
    Return { call: usize, answer: Box<Result<ServerReply, StoreError>> },
    /// A node gives up waiting, or learns that it cannot reach the server.
    GiveUp { call: usize },
    /// A node is cut off.
    Cut { node: u32 },
    /// It is back, unless it was cut off more than once.
    Heal { node: u32 },
    /// The server stops.
    Pause,
    /// It goes on, unless it was stopped more than once.
    Resume,
    /// A replica takes over that lacks the newest writes and has another clock.
    FailOver { lag_us: u64, by_us: i64 },
    /// The server forgets everything.
    Flush,
    /// Its clock is set.
    SetClock { by_us: i64 },
    /// A node looks for unneeded loans.
    Sweep { node: u32 },
    /// A node forgets its loans, and starts afresh.
    Crash { node: u32 },
}

/// A call of a node to the server.
#[allow(clippy::large_enum_variant, reason = "nearly all are plans")]
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Plan(Plan),
    Loan(LoanRequest),
}

/// The server's reply.
#[allow(clippy::large_enum_variant, reason = "nearly all are answers")]
#[derive(Clone, Debug)]
pub(super) enum ServerReply {
    Answer(Answer),
    Lent(LoanReply),
}

/// The network and the server at its end. Handles share it; there is one thread.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) time: TrueTime,
    pub(super) server: Server,
    weather: Weather,
    random: Random,
    /// Events by time, then in the order of scheduling.
    events: BTreeMap<(u64, usize), Event>,
    scheduled: usize,
    calls: Vec<Call>,
    /// How many cuts each node is under.
    cuts: Vec<u32>,
    pauses: u32,
    /// The messages that arrived while the server was stopped.
    held: Vec<usize>,
    /// The task that is being polled.
    pub(super) task: usize,
}

#[derive(Debug)]
struct Call {
    task: usize,
    node: u32,
    ask: Ask,
    /// The server's answer, once it has carried out the call.
    executed: Option<Result<ServerReply, StoreError>>,
    outcome: Option<Result<ServerReply, StoreError>>,
}

/// What the world must do after an event.
#[derive(Clone, Debug)]
pub(super) enum Next {
    /// A caller makes a request.
    Ask,
    /// A node maintains its loans.
    Sweep(u32),
    /// A node starts afresh.
    Crash(u32),
    /// A node hears of a loan, or gives it up.
    Lent {
        node: u32,
        loan: Box<LoanRequest>,
        lent: Option<LoanReply>,
    },
    /// This task may get further.
    Poll(usize),
    /// The server has carried out the call of this task.
    Execution {
        task: usize,
        now: Now,
        charged: bool,
    },
    /// Nodes that are back report what they admitted meanwhile.
    Merge,
    Nothing,
}

impl Network {
    pub(super) fn new(weather: &Weather, nodes: u32, time: TrueTime, random: Random) -> Self {
        Self {
            time,
            server: Server::default(),
            weather: weather.clone(),
            random,
            events: BTreeMap::new(),
            scheduled: 0,
            calls: Vec::new(),
            cuts: vec![0; usize::try_from(nodes).unwrap_or(0)],
            pauses: 0,
            held: Vec::new(),
            task: 0,
        }
    }

    pub(super) fn schedule(&mut self, at_us: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((at_us, self.scheduled), event);
    }

    /// The next event; its time has come.
    pub(super) fn next(&mut self) -> Option<Event> {
        let ((at_us, _), event) = self.events.pop_first()?;
        self.time.set(at_us);
        Some(event)
    }

    /// The nodes that are cut off, or all of them while the server is stopped.
    pub(super) fn cut_off(&self) -> Vec<u32> {
        let nodes = (0..).zip(&self.cuts);
        nodes.filter(|(_, cuts)| **cuts > 0 || self.pauses > 0).map(|(node, _)| node).collect()
    }

    /// Lets an event happen.
    pub(super) fn happen(&mut self, event: Event) -> Vec<Next> {
        match event {
            Event::Ask => return vec![Next::Ask],
            Event::Sweep { node } => return vec![Next::Sweep(node)],
            Event::Crash { node } => return vec![Next::Crash(node)],
            Event::Arrive { call } => return vec![self.arrive(call)],
            Event::Return { call, answer } => {
                return vec![if self.is_cut(call) {
                    Next::Nothing
                } else {
                    self.end(call, *answer)
                }];
            }
            Event::GiveUp { call } => return vec![self.end(call, Err(unreachable()))],
            Event::Cut { node } => *self.cuts_of(node) += 1,
            Event::Heal { node } => {
                *self.cuts_of(node) -= 1;
                return vec![Next::Merge];
            }
            Event::Pause => self.pauses += 1,
            Event::Resume => {
                self.pauses -= 1;
                if self.pauses == 0 {
                    let held = std::mem::take(&mut self.held);
                    let arrived = held.into_iter().map(|call| self.arrive(call));
                    return arrived.chain([Next::Merge]).collect();
                }
            }
            Event::FailOver { lag_us, by_us } => {
                self.server.lose_writes_after(self.time.now_us() - lag_us);
                self.server.set_clock(by_us);
                // Those connections ended with the old primary.
                self.held.clear();
            }
            Event::Flush => self.server.lose_writes_after(0),
            Event::SetClock { by_us } => self.server.set_clock(by_us),
        }
        Vec::new()
    }

    /// A node asks the server.
    pub(super) fn send(&mut self, node: u32, ask: Ask) -> usize {
        let (call, now_us, task) = (self.calls.len(), self.time.now_us(), self.task);
        // A loan is sent once, on a connection that delivers it once.
        let may_double =
            matches!(ask, Ask::Plan(_)) || self.weather.knows_repeats || self.weather.doubles_loans;
        self.calls.push(Call { task, node, ask, executed: None, outcome: None });
        self.schedule(now_us + DEADLINE_US, Event::GiveUp { call });
        if self.is_cut(call) {
            // The system reports the failure at once, or never.
            if self.random.per_mille(500) {
                self.schedule(now_us, Event::GiveUp { call });
            }
            return call;
        }
        let doubled = may_double && self.random.per_mille(self.weather.doubled_per_mille);
        for _ in 0..=usize::from(doubled) {
            if let Some(at_us) = self.arrival_us() {
                self.schedule(at_us, Event::Arrive { call });
            }
        }
        call
    }

    fn arrive(&mut self, call: usize) -> Next {
        if self.is_cut(call) {
            return Next::Nothing;
        }
        if self.pauses > 0 {
            self.held.push(call);
            return Next::Nothing;
        }
        let now_us = self.time.now_us();
        let (task, repeated) = (self.calls[call].task, self.calls[call].executed.clone());
        let (answer, next) = match repeated.filter(|_| self.weather.knows_repeats) {
            Some(answer) => (answer, Next::Nothing),
            None => {
                let told = self.server.carry_out(now_us, &self.calls[call].ask);
                let charged = match &told {
                    Ok(ServerReply::Answer(answer)) => {
                        answer.replies.iter().any(|reply| reply.charged)
                    }
                    _ => false,
                };
                let now = self.server.clock(now_us);
                (told, Next::Execution { task, now, charged })
            }
        };
        self.calls[call].executed = Some(answer.clone());
        if let Some(at_us) = self.arrival_us() {
            self.schedule(at_us, Event::Return { call, answer: answer.into() });
        }
        next
    }

    /// Only the first end counts: an answer after the deadline is ignored.
    fn end(&mut self, call: usize, outcome: Result<ServerReply, StoreError>) -> Next {
        let call = &mut self.calls[call];
        if call.outcome.is_some() {
            return Next::Nothing;
        }
        let lent = match &outcome {
            Ok(ServerReply::Lent(lent)) => Some(*lent),
            _ => None,
        };
        call.outcome = Some(outcome);
        match &call.ask {
            Ask::Plan(_) => Next::Poll(call.task),
            Ask::Loan(loan) => Next::Lent { node: call.node, loan: loan.clone().into(), lent },
        }
    }

    /// The arrival time of a message that is sent now, if it arrives.
    fn arrival_us(&mut self) -> Option<u64> {
        let delay_us = 1 + self.random.below(self.weather.delay_us_max);
        let lost = self.random.per_mille(self.weather.lost_per_mille);
        (!lost).then(|| self.time.now_us() + delay_us)
    }

    /// How a call ended, if it has.
    pub(super) fn outcome(&self, call: usize) -> Option<&Result<ServerReply, StoreError>> {
        self.calls[call].outcome.as_ref()
    }

    fn is_cut(&mut self, call: usize) -> bool {
        let node = self.calls[call].node;
        *self.cuts_of(node) > 0
    }

    fn cuts_of(&mut self, node: u32) -> &mut u32 {
        // Nodes are numbered from zero, and there is one count for each.
        &mut self.cuts[usize::try_from(node).unwrap_or(0)]
    }
}

pub(super) fn unreachable() -> StoreError {
    StoreError { transient: true, detail: "the store cannot be reached".to_owned() }
}

pub(super) fn lock(network: &Mutex<Network>) -> MutexGuard<'_, Network> {
    network.lock().unwrap_or_else(PoisonError::into_inner)
}
