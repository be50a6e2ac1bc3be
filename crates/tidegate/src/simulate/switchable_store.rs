//! The stores of tests. One can be switched off, for tests that say `store: down`.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Now;
use crate::plan::Plan;
use crate::store::{Amendment, AmendmentResults, Answer, ImmediateStore, Memory, StoreError};

/// A store that a test runs on.
pub(super) trait SwitchableStore: ImmediateStore {
    /// Switches the store off, or on again.
    fn set_down(&self, down: bool);
}

/// No test switches it off.
impl SwitchableStore for Memory {
    fn set_down(&self, _: bool) {}
}

/// A memory store that can be switched off.
#[derive(Debug, Default)]
pub(super) struct SwitchableMemory {
    memory: Memory,
    down: AtomicBool,
}

impl SwitchableStore for SwitchableMemory {
    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }
}

impl SwitchableMemory {
    fn answering(&self) -> Result<&Memory, StoreError> {
        if self.down.load(Ordering::Relaxed) {
            return Err(StoreError {
                transient: true,
                detail: "the test has switched it off".to_owned(),
            });
        }
        Ok(&self.memory)
    }
}

impl ImmediateStore for SwitchableMemory {
    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        self.answering()?.decide_now(plan)
    }

    fn amend_now(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        self.answering()?.amend_now(now, amendments)
    }

    fn announce_now(&self, families: &[u64]) {
        self.memory.announce_now(families);
    }
}
