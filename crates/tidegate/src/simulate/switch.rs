//! A store that can be switched off, for `store: down`.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Now;
use crate::plan::Plan;
use crate::store::{Amended, Amendment, Answer, ImmediateStore, Memory, StoreError};

#[derive(Debug, Default)]
pub(super) struct Switch {
    memory: Memory,
    down: AtomicBool,
}

impl Switch {
    pub(super) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

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

impl ImmediateStore for Switch {
    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        self.answering()?.decide_now(plan)
    }

    fn amend_now(&self, now: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        self.answering()?.amend_now(now, amendments)
    }

    fn announce_now(&self, families: &[u64]) {
        self.memory.announce_now(families);
    }
}
