//! A mark as users, other nodes and the state directory see it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Subject;
use crate::clock::Now;
use crate::key::Key;

/// What a mark does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkKind {
    /// Every request of the subject is refused.
    Ban,
    /// Somebody should look at the subject.
    Flag,
    /// The subject's limits are larger or smaller.
    Factor,
}

/// A ban, a flag or a personal factor that is in force on a subject. Its times are Unix times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Mark {
    /// A keyed hash of kind, policy, name and subject.
    pub id: Key,
    /// What the mark does.
    pub kind: MarkKind,
    /// The policy that the mark is in force in; all policies without it.
    pub policy: Option<String>,
    /// The subject.
    pub subject: Subject,
    /// The penalty, ratio or factor that set the mark, or `operator`.
    pub source: String,
    /// Why, for people.
    pub reason: String,
    /// The name of a flag.
    pub flag: Option<String>,
    /// The start.
    pub since_unix_us: u64,
    /// The end; without it, the mark stays until somebody removes it.
    pub until_unix_us: Option<u64>,
    /// The value of a factor, in millionths.
    pub factor_ppm: Option<u64>,
}

/// A change of a mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkChange {
    /// The mark is set.
    Set(Mark),
    /// The mark is removed.
    Removed {
        /// Its id.
        id: Key,
        /// Its kind.
        kind: MarkKind,
    },
}

/// Hears of the marks that this process sets and removes, to replicate them.
pub trait MarkSink: Send + Sync {
    /// Is called for each change, in the order of the changes of each mark. Requests wait for this call,
    /// so it must not block, and it must not read marks.
    fn changed(&self, change: &MarkChange);
}

impl Mark {
    /// What tells marks of one kind and subject apart: the name of the flag, or of the factor.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self.kind {
            MarkKind::Ban => None,
            MarkKind::Flag => self.flag.as_deref(),
            MarkKind::Factor => Some(&self.source),
        }
    }

    /// How long the mark still lasts; `None` for a mark without an end.
    #[must_use]
    pub fn time_left(&self, now: Now) -> Option<Duration> {
        let left_us = |until_us: u64| until_us.saturating_sub(now.unix_us);
        self.until_unix_us.map(|until_us| Duration::from_micros(left_us(until_us)))
    }
}
