//! What this node knows of the steps that subjects have reached, so that it seldom has to ask the store.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fold::Folded;
use crate::key::Key;
use crate::policy::protection::Penalty;

/// How many steps of subjects are cached. The store is asked again for any other.
pub(super) const ENTRIES_MAX: usize = 65_536;

/// Steps by the key that says that they are applied.
#[derive(Debug, Default)]
pub(crate) struct StepCache {
    entries: Mutex<HashMap<Key, StepState, Folded>>,
}

/// The state of a step, in steady time.
#[derive(Clone, Copy, Debug)]
pub(super) enum StepState {
    /// The step is applied, as the store was last told.
    Applied { at_us: u64 },
    /// No node had applied the step when the store was asked.
    Unapplied { since_us: u64 },
}

/// What to do about a step that a count has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepDuty {
    /// The step is applied, or the node that reached it still has time to apply it.
    Nothing,
    /// Ask the store whether the step is applied.
    LookUp,
    /// Tell the store again that the step is applied.
    Renew,
    /// Apply the step: no other node did.
    Apply,
}

impl StepCache {
    /// What to do about a step of a penalty that a count has passed.
    pub(super) fn duty(&self, key: Key, penalty: &Penalty, now_us: u64) -> StepDuty {
        let (from_us, wait_us, then) = match self.entries().get(&key) {
            None => return StepDuty::LookUp,
            Some(StepState::Applied { at_us }) => {
                (*at_us, penalty.step_renewal_us(), StepDuty::Renew)
            }
            Some(StepState::Unapplied { since_us }) => {
                (*since_us, penalty.step_patience_us(), StepDuty::Apply)
            }
        };
        match now_us.saturating_sub(from_us) {
            age_us if age_us < wait_us => StepDuty::Nothing,
            age_us if age_us < penalty.step_lease_us() => then,
            // So long ago that the count has started anew since.
            _ => StepDuty::LookUp,
        }
    }

    /// A step is applied, and the store knows it.
    pub(super) fn set_applied(&self, key: Key, now_us: u64) {
        self.set(key, StepState::Applied { at_us: now_us });
    }

    /// A count has passed a step, and no node has applied it.
    pub(super) fn set_unapplied(&self, key: Key, now_us: u64) {
        self.set(key, StepState::Unapplied { since_us: now_us });
    }

    /// Forgets a step; returns whether it was here.
    pub(super) fn remove(&self, key: Key) -> bool {
        self.entries().remove(&key).is_some()
    }

    fn set(&self, key: Key, state: StepState) {
        let mut entries = self.entries();
        // Emptying the cache costs questions to the store, and is never wrong.
        if entries.len() >= ENTRIES_MAX && !entries.contains_key(&key) {
            entries.clear();
        }
        entries.insert(key, state);
    }

    pub(super) fn entries(&self) -> MutexGuard<'_, HashMap<Key, StepState, Folded>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
