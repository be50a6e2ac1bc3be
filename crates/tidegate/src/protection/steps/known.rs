//! What this node knows of the steps of subjects, so that it seldom has to ask.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Spans;
use crate::fold::Folded;
use crate::key::Key;

/// How many steps of subjects are known at once. One that is not is asked for once more.
pub(super) const KNOWN_MAX: usize = 65_536;

/// By the key that says that a step is taken.
#[derive(Debug, Default)]
pub(crate) struct Known {
    steps: Mutex<HashMap<Key, Seen, Folded>>,
}

/// What is known of a step, by steady time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    /// It is taken, as the store was last told.
    Taken { at_us: u64 },
    /// Nobody had taken it when this was first seen.
    Missing { since_us: u64 },
}

/// What is to be done about a step that a count is above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing: it is known to be taken, or left to whoever reached it.
    Nothing,
    /// To ask whether it is taken.
    Ask,
    /// To say again that it is taken.
    Say,
    /// To take it: nobody else did.
    Take,
}

impl Known {
    /// What is to be done about a step that a count is found above.
    pub(crate) fn due(&self, key: Key, spans: Spans, now_us: u64) -> Due {
        match self.steps().get(&key) {
            Some(Seen::Taken { at_us }) => {
                let age_us = now_us.saturating_sub(*at_us);
                match age_us {
                    _ if age_us < spans.said_us() => Due::Nothing,
                    _ if age_us < spans.lasts_us() => Due::Say,
                    // So long ago that it was another run.
                    _ => Due::Ask,
                }
            }
            Some(Seen::Missing { since_us }) => {
                let age_us = now_us.saturating_sub(*since_us);
                match age_us {
                    _ if age_us < spans.late_us() => Due::Nothing,
                    _ if age_us < spans.lasts_us() => Due::Take,
                    _ => Due::Ask,
                }
            }
            None => Due::Ask,
        }
    }

    /// A step is taken, and the store was told so.
    pub(crate) fn taken(&self, key: Key, now_us: u64) {
        self.note(key, Seen::Taken { at_us: now_us });
    }

    /// Nobody has taken a step that a count is above.
    pub(crate) fn missing(&self, key: Key, now_us: u64) {
        self.note(key, Seen::Missing { since_us: now_us });
    }

    /// Forgets a step; returns whether it was known.
    pub(crate) fn forget(&self, key: Key) -> bool {
        self.steps().remove(&key).is_some()
    }

    fn note(&self, key: Key, seen: Seen) {
        let mut steps = self.steps();
        // What is not known is asked for: to forget all of it is dear, but wrong for nobody.
        if steps.len() >= KNOWN_MAX && !steps.contains_key(&key) {
            steps.clear();
        }
        steps.insert(key, seen);
    }

    pub(super) fn steps(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Seen, Folded>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
