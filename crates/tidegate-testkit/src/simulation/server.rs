//! The modelled server of the shared store: a memory with a clock and a history.

use std::collections::HashMap;

use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Reading, Spec, Verdict};
use tidegate::engine::plan::{Level, Mode, Plan};
use tidegate::engine::store::{
    Amendment, AmendmentResults, Answer, ImmediateStore, Memory, Reply, StoreError,
};
use tidegate_redis::loans::{LoanReply, LoanRequest};

use super::network::{Ask, ServerReply};
use crate::lender::Lender;

#[derive(Debug, Default)]
pub(super) struct Server {
    memory: Memory,
    /// The buckets of leased limits.
    lenders: HashMap<(u64, Key), Lender>,
    history: Vec<Execution>,
    /// How far its clock is ahead of the true time.
    ahead_us: i64,
}

/// A write, which can be replayed on another memory.
#[derive(Debug)]
struct Execution {
    true_us: u64,
    write: Write,
}

#[derive(Debug)]
enum Write {
    Plan(Box<Plan>),
    Loan(Now, Box<LoanRequest>),
    Amendments(Now, Vec<Amendment>),
}

impl Server {
    /// Its own clock; like Redis, it has no other.
    pub(super) fn clock(&self, true_us: u64) -> Now {
        let us = true_us.saturating_add_signed(self.ahead_us);
        Now { steady_us: us, unix_us: us }
    }

    pub(super) fn carry_out(&mut self, true_us: u64, ask: &Ask) -> Result<ServerReply, StoreError> {
        let now = self.clock(true_us);
        match ask {
            Ask::Plan(plan) => {
                let plan = Plan { now, ..plan.clone() };
                let answer = self.decide(&plan);
                self.history.push(Execution { true_us, write: Write::Plan(plan.into()) });
                answer.map(ServerReply::Answer)
            }
            Ask::Loan(loan) => {
                let lent = self.lend(now, loan);
                let write = Write::Loan(now, loan.clone().into());
                self.history.push(Execution { true_us, write });
                Ok(ServerReply::Lent(lent))
            }
        }
    }

    /// The loans of all buckets, by the server's count.
    pub(super) fn outstanding(&self, true_us: u64) -> u64 {
        let now_us = self.clock(true_us).unix_us;
        self.lenders.values().map(|lender| lender.outstanding_at(now_us)).sum()
    }

    /// Whether level and loans of each bucket are within its burst.
    pub(super) fn check(&self) -> Result<(), String> {
        self.lenders.values().try_for_each(Lender::check)
    }

    /// A plan of one leased limit is for its lender; others are for the memory.
    fn decide(&mut self, plan: &Plan) -> Result<Answer, StoreError> {
        let &[level] = &*plan.levels else { return self.memory.decide_now(plan) };
        let Some(lender) = self.lender(&level) else { return self.memory.decide_now(plan) };
        let (now, cost) = (plan.now, level.cost.micros());
        let fits = match plan.mode {
            Mode::Charge => lender.charge(now.unix_us, cost),
            Mode::Peek => lender.clone().charge(now.unix_us, cost),
        };
        let verdict = match fits {
            true => Verdict::Allowed,
            // No wait is computed: other nodes may return tokens at any time.
            false => Verdict::Denied { retry_after: None },
        };
        let available = Amount::from_micros(lender.available()).unwrap_or(Amount::ZERO);
        let charged = fits && plan.mode == Mode::Charge;
        let reading = Reading { available, reset_us: None };
        let reply = Reply { verdict, charged, charged_at_us: now.unix_us, reading };
        Ok(Answer { now, replies: [reply].into_iter().collect() })
    }

    fn lend(&mut self, now: Now, loan: &LoanRequest) -> LoanReply {
        let lender = self.lender(&loan.level);
        let lent = lender.map(|lender| lender.lend(now.unix_us, loan));
        let nothing = LoanReply {
            now_us: now.unix_us,
            granted: 0,
            epoch: 0,
            lasts_us: 0,
            available: 0,
            outstanding: 0,
        };
        lent.unwrap_or(nothing)
    }

    fn lender(&mut self, level: &Level) -> Option<&mut Lender> {
        match level.spec {
            Spec::TokenBucket(spec) if level.leased => {
                let lenders = self.lenders.entry((level.family, level.key));
                Some(lenders.or_insert_with(|| Lender::new(spec)))
            }
            _ => None,
        }
    }

    pub(super) fn amend(
        &mut self,
        true_us: u64,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        let now = self.clock(true_us);
        let amended = self.memory.amend_now(now, amendments);
        let write = Write::Amendments(now, amendments.to_vec());
        self.history.push(Execution { true_us, write });
        amended
    }

    pub(super) fn set_clock(&mut self, by_us: i64) {
        self.ahead_us += by_us;
    }

    /// A replica takes over that has no writes after this time.
    pub(super) fn lose_writes_after(&mut self, true_us: u64) {
        self.memory = Memory::new();
        self.lenders.clear();
        for executed in std::mem::take(&mut self.history) {
            if executed.true_us > true_us {
                continue;
            }
            // The memory always answers, and the first answer was used already.
            match &executed.write {
                Write::Plan(plan) => drop(self.decide(plan)),
                Write::Loan(now, loan) => _ = self.lend(*now, loan),
                Write::Amendments(now, amendments) => {
                    drop(self.memory.amend_now(*now, amendments));
                }
            }
            self.history.push(executed);
        }
    }
}
