//! The store of a test, which can be switched off where it says `store: down`.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Now;
use crate::plan::Plan;
use crate::store::{Amended, Amendment, Answer, ImmediateStore, Memory, StoreError};

/// A store that a test runs on.
pub(super) trait Switched: ImmediateStore {
    /// From now on it does not answer, or it does again.
    fn set_down(&self, down: bool);
}

/// Nobody switches it off, so that what it says need not be remembered.
impl Switched for Memory {
    fn set_down(&self, _: bool) {}
}

/// One that can be switched off.
#[derive(Debug, Default)]
pub(super) struct Switch {
    memory: Memory,
    down: AtomicBool,
}

impl Switched for Switch {
    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }
}

impl Switch {
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
