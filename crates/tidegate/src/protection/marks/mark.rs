//! A mark as others see it: what it says, of whom, since when and until when.

use serde::{Deserialize, Serialize};

use super::Subject;
use crate::clock::Now;
use crate::key::Key;

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkKind {
    /// Every request of the subject is refused.
    Ban,
    /// Somebody is to look at the subject.
    Flag,
    /// The subject's limits are larger or smaller.
    Factor,
}

/// A fact about a subject, with its times in Unix time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Mark {
    /// Which mark: of this kind, in this policy, of this subject (and this flag, or factor).
    pub id: Key,
    /// What it says.
    pub kind: MarkKind,
    /// The policy that it holds in; all without it.
    pub policy: Option<String>,
    /// Whom it is of.
    pub subject: Subject,
    /// The penalty, ratio or factor that set it, or `operator`.
    pub source: String,
    /// Why, as people read it.
    pub reason: String,
    /// The name of a flag.
    pub flag: Option<String>,
    /// Since when.
    pub since_unix_us: u64,
    /// Until when; without it, until somebody takes it away.
    pub until_unix_us: Option<u64>,
    /// What a factor is, in millionths.
    pub factor_ppm: Option<u64>,
}

/// A mark set or taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkChange {
    /// It holds from now on.
    Set(Mark),
    /// It holds no more.
    Removed {
        /// Which.
        id: Key,
        /// Of which kind.
        kind: MarkKind,
    },
}

/// Hears of the marks that this process sets and takes away, to tell others.
pub trait MarkSink: Send + Sync {
    /// Is told with the change, in the order of the changes of each mark, and must neither block, as
    /// requests wait for it, nor ask for marks.
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

    /// How long it still holds; `None` where it does not end by itself.
    #[must_use]
    pub fn left_us(&self, now: Now) -> Option<u64> {
        self.until_unix_us.map(|until_us| until_us.saturating_sub(now.unix_us))
    }
}
