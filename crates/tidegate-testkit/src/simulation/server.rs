//! The modelled server of the shared store: a memory with a clock and a history.

use tidegate::clock::Now;
use tidegate::plan::Plan;
use tidegate::store::{Amended, Amendment, Answer, ImmediateStore, Memory, StoreError};

#[derive(Debug, Default)]
pub(super) struct Server {
    memory: Memory,
    history: Vec<Executed>,
    /// How far its clock is ahead of the true time.
    ahead_us: i64,
}

/// Something that changed the memory, and changes another one the same way.
#[derive(Debug)]
struct Executed {
    true_us: u64,
    write: Write,
}

#[derive(Debug)]
enum Write {
    Plan(Box<Plan>),
    Amendments(Now, Vec<Amendment>),
}

impl Server {
    /// Its own clock; like Redis, it has no other.
    pub(super) fn clock(&self, true_us: u64) -> Now {
        let us = true_us.saturating_add_signed(self.ahead_us);
        Now { steady_us: us, unix_us: us }
    }

    pub(super) fn decide(&mut self, true_us: u64, plan: &Plan) -> Result<Answer, StoreError> {
        let plan = Plan { now: self.clock(true_us), ..plan.clone() };
        let answer = self.memory.decide_now(&plan);
        self.history.push(Executed { true_us, write: Write::Plan(plan.into()) });
        answer
    }

    pub(super) fn amend(
        &mut self,
        true_us: u64,
        amendments: &[Amendment],
    ) -> Result<Amended, StoreError> {
        let now = self.clock(true_us);
        let amended = self.memory.amend_now(now, amendments);
        let write = Write::Amendments(now, amendments.to_vec());
        self.history.push(Executed { true_us, write });
        amended
    }

    pub(super) fn set_clock(&mut self, by_us: i64) {
        self.ahead_us += by_us;
    }

    /// A replica takes over that has heard of nothing later than this.
    pub(super) fn lose_writes_after(&mut self, true_us: u64) {
        self.history.retain(|executed| executed.true_us <= true_us);
        self.memory = Memory::new();
        for executed in &self.history {
            // Memory always answers, and what it answers was heard the first time.
            match &executed.write {
                Write::Plan(plan) => drop(self.memory.decide_now(plan)),
                Write::Amendments(now, amendments) => {
                    drop(self.memory.amend_now(*now, amendments));
                }
            }
        }
    }
}
