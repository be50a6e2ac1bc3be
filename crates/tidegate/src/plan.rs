//! A plan: all that a store needs to decide one request, as numbers that can travel.

mod outline;
mod per_level;
mod planner;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use outline::Outline;
pub use per_level::{IntoIter, PerLevel};
pub(crate) use planner::{Applicability, Inapplicability, Planner, field_of, key_names};

use crate::algorithm::{self, Verdict};
use crate::clock::Now;
use crate::key::Key;
use crate::policy::model::OnStoreFailure;
use crate::units::Amount;

/// At most this many limits apply to one request; a policy that could have more does not compile.
pub const LEVELS_MAX: usize = 16;

/// What to do with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Charge every level, or none.
    Charge,
    /// Only look.
    Peek,
}

/// Whether a level that is over refuses the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enforcement {
    /// It does.
    Reject,
    /// It lets the request through and says so.
    Warn,
    /// It counts and reports, and does nothing.
    Shadow,
}

/// One limit's part in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// The limit's place in its policy.
    pub limit: u16,
    /// All keys of the limit: what shares one part of a store's memory.
    pub family: u64,
    /// Whose state.
    pub key: Key,
    /// The numbers in force.
    pub spec: algorithm::Spec,
    /// What the request costs here; for a ceiling, the value compared.
    #[serde(with = "algorithm::as_micros")]
    pub cost: Amount,
    /// Whether all charges of its key may well be given back, as where only failures count: a refusal
    /// may then end before the time that was told.
    pub refundable: bool,
    /// Whether this charge is an estimate, of which the rest is given back. Others of the same key may
    /// be none.
    pub reserved: bool,
    /// Whether a shared store may lend tokens of it in advance. Only of a bucket it does.
    pub leased: bool,
    /// What being over means.
    pub enforcement: Enforcement,
    /// What to do when the store is lost.
    pub on_store_failure: OnStoreFailure,
}

impl Level {
    /// A level that costs nothing and refuses nobody: it names a key and its algorithm, to inspect or to
    /// reset the key.
    #[must_use]
    pub const fn of_key(family: u64, key: Key, spec: algorithm::Spec) -> Self {
        Self {
            limit: 0,
            family,
            key,
            spec,
            cost: Amount::ZERO,
            refundable: false,
            reserved: false,
            leased: false,
            enforcement: Enforcement::Shadow,
            on_store_failure: OnStoreFailure::Local,
        }
    }

    /// Whether what is charged here may well be given back.
    #[must_use]
    pub const fn is_given_back(&self) -> bool {
        self.refundable || self.reserved
    }

    /// The clock that this level runs on.
    #[must_use]
    pub fn time_us(&self, now: Now) -> u64 {
        if self.spec.uses_wall_clock() { now.unix_us } else { now.steady_us }
    }
}

/// All levels of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Charge or look.
    pub mode: Mode,
    /// When it was made. A shared store uses its own clock instead.
    pub now: Now,
    /// Who would hold a place in the `concurrency` levels.
    pub holder: u64,
    /// The limits that apply, in the order of the policy.
    pub levels: PerLevel<Level>,
    /// What their keys are called, for a store that [names its
    /// keys](crate::store::Store::names_keys); empty for others.
    pub names: Vec<Arc<str>>,
}

impl Plan {
    /// A plan without levels, to be filled.
    #[inline(always)]
    pub(crate) fn new(mode: Mode) -> Self {
        let now = Now { steady_us: 0, unix_us: 0 };
        Self { mode, now, holder: 0, levels: PerLevel::new(), names: Vec::new() }
    }

    /// Whether the levels are charged: none that is enforced denies (rule 1).
    #[must_use]
    pub fn commits(&self, verdicts: &[Verdict]) -> bool {
        let refuses = |(level, verdict): (&Level, &Verdict)| {
            level.enforcement == Enforcement::Reject && *verdict != Verdict::Allowed
        };
        self.mode == Mode::Charge && !self.levels.iter().zip(verdicts).any(refuses)
    }
}
