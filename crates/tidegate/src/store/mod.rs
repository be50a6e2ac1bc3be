//! Stores: where states live. A store takes a plan and answers it, all levels or none.

mod key_usage;
mod memory;

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;

use arrayvec::ArrayVec;

pub use key_usage::KeyUsage;
pub(crate) use memory::Table;
pub use memory::{
    Changes, Export, ImportSummary, Memory, Page, Place, SavedChange, SavedKey, Tables,
};

use crate::algorithm::{Reading, Verdict};
use crate::clock::Now;
use crate::plan::{LEVELS_MAX, Level, PerLevel, Plan};
use crate::units::Amount;

/// A store's answer to a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The store's time, on which receipts and resets are based.
    pub now: Now,
    /// One reply per level, in the plan's order.
    pub replies: PerLevel<Reply>,
}

impl Answer {
    /// Without replies, to be filled.
    pub(crate) fn empty() -> Self {
        Self { now: Now { steady_us: 0, unix_us: 0 }, replies: PerLevel::new() }
    }
}

/// What became of one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reply {
    /// Whether its cost fitted.
    pub verdict: Verdict,
    /// Whether it was charged.
    pub charged: bool,
    /// When it was charged, by the clock that the level runs on: not before anything else was
    /// charged to the same state, however the plans raced.
    pub charged_at_us: u64,
    /// What it shows afterwards.
    pub reading: Reading,
}

impl Reply {
    /// Whether its cost fitted.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// Microseconds until the same cost would fit; `None` if it does now, or never will.
    #[must_use]
    pub fn retry_after_us(&self) -> Option<u64> {
        self.verdict.retry_after_us()
    }
}

/// A correction of something that was charged before.
#[derive(Clone, Debug, PartialEq)]
pub struct Amendment {
    /// The level as it was charged.
    pub level: Level,
    /// What its key is called, for a store that [names its keys](Store::NAMES_KEYS).
    pub name: Option<Arc<str>>,
    /// When it was charged, by the store's clock that the level runs on.
    pub charged_at_us: u64,
    /// Who holds the place.
    pub holder: u64,
    /// What to do about it.
    pub change: Change,
}

/// What an amendment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Gives this much back, as far as the charge still has an effect.
    Refund(Amount),
    /// Charges this much more, into debt of at most one further limit.
    Surcharge(Amount),
    /// Charges this much now, whether it fits or not, into debt of at most one further limit; also
    /// to a key that nobody has used. A concurrency limit has nobody to hold a place, and is left
    /// alone. The instant of the amendment does not matter.
    Debit(Amount),
    /// Gives a concurrency place back.
    Release,
    /// Keeps a concurrency place for another lease.
    Renew,
    /// Forgets the key's state altogether.
    Reset,
}

/// One result per amendment: whether it found what it was to change.
pub type Amended = ArrayVec<bool, LEVELS_MAX>;

/// A store that may have to wait for its answer.
///
/// A denial is an answer; only a store that cannot answer returns an error.
pub trait Store: Send + Sync + 'static {
    /// Whether operators look into it, so that its keys have names instead of numbers.
    const NAMES_KEYS: bool;

    /// How long a request that [waits](crate::Limiter::acquire) may sleep before it looks again,
    /// where others give back what this process does not hear of; `None` where it hears of all.
    const LOOK_AGAIN_US: Option<u64> = None;

    /// Whether it always answers, so that nothing need be remembered for when it does not.
    const NEVER_LOST: bool = false;

    /// Decides a plan without waiting, where this process holds all that it takes; `None` where
    /// [`decide`](Self::decide) must be asked. The plan has no names here.
    fn decide_at_once(&self, plan: &Plan) -> Option<Answer> {
        _ = plan;
        None
    }

    /// Decides a plan: every level is charged, or none.
    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send;

    /// Makes corrections, at most [`LEVELS_MAX`] of them, each by itself.
    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<Amended, StoreError>> + Send;

    /// Tells which limits there are, so that each can have its share of the memory.
    fn announce(&self, families: &[u64]);

    /// Where it keeps the keys of limits that have been announced, if it can say so once for all
    /// requests.
    fn tables(&self, families: &[u64]) -> Tables {
        _ = families;
        Tables::default()
    }
}

/// A store that answers at once. Every such store is a [`Store`] whose future is always ready.
pub trait ImmediateStore: Send + Sync + 'static {
    /// As [`Store::NEVER_LOST`].
    const NEVER_LOST: bool = false;

    /// As [`Store::decide`].
    ///
    /// # Errors
    /// The store cannot answer.
    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError>;

    /// As [`decide_now`](Self::decide_now), of a plan for limits that have these tables. The answer is
    /// written where it stands: it is too large to be moved.
    ///
    /// # Errors
    /// The store cannot answer.
    fn decide_in(
        &self,
        tables: &Tables,
        plan: &Plan,
        answer: &mut Answer,
    ) -> Result<(), StoreError> {
        _ = tables;
        *answer = self.decide_now(plan)?;
        Ok(())
    }

    /// As [`Store::tables`].
    fn tables_now(&self, families: &[u64]) -> Tables {
        _ = families;
        Tables::default()
    }

    /// A plan will be decided shortly: its memory may be fetched meanwhile.
    fn foresee(&self, plan: &Plan) {
        _ = plan;
    }

    /// As [`foresee`](Self::foresee), of plans that will be decided one after the other.
    fn foresee_all(&self, plans: &[Plan]) {
        plans.iter().filter(|plan| !plan.levels.is_empty()).for_each(|plan| self.foresee(plan));
    }

    /// As [`Store::amend`].
    ///
    /// # Errors
    /// The store cannot answer.
    fn amend_now(&self, now: Now, amendments: &[Amendment]) -> Result<Amended, StoreError>;

    /// As [`Store::announce`].
    fn announce_now(&self, families: &[u64]);
}

impl<S: ImmediateStore> Store for S {
    const NAMES_KEYS: bool = false;
    const NEVER_LOST: bool = <S as ImmediateStore>::NEVER_LOST;

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        ready(self.decide_now(plan))
    }

    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<Amended, StoreError>> + Send {
        ready(self.amend_now(now, amendments))
    }

    fn announce(&self, families: &[u64]) {
        self.announce_now(families);
    }

    fn tables(&self, families: &[u64]) -> Tables {
        self.tables_now(families)
    }
}

impl<S: ImmediateStore> ImmediateStore for Arc<S> {
    const NEVER_LOST: bool = <S as ImmediateStore>::NEVER_LOST;

    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        (**self).decide_now(plan)
    }

    fn decide_in(
        &self,
        tables: &Tables,
        plan: &Plan,
        answer: &mut Answer,
    ) -> Result<(), StoreError> {
        (**self).decide_in(tables, plan, answer)
    }

    fn tables_now(&self, families: &[u64]) -> Tables {
        (**self).tables_now(families)
    }

    fn foresee(&self, plan: &Plan) {
        (**self).foresee(plan);
    }

    fn foresee_all(&self, plans: &[Plan]) {
        (**self).foresee_all(plans);
    }

    fn amend_now(&self, now: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        (**self).amend_now(now, amendments)
    }

    fn announce_now(&self, families: &[u64]) {
        (**self).announce_now(families);
    }
}

/// A store that could not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// Whether trying again may help.
    pub transient: bool,
    /// What happened.
    pub detail: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.transient { "the store did not answer" } else { "the store refused" };
        write!(f, "{kind}: {}", self.detail)
    }
}

impl std::error::Error for StoreError {}
