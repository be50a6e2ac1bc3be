//! Stores: where states live. A store takes a plan and answers it, all levels or none.

mod key_usage;
mod memory;

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

pub use key_usage::KeyUsage;
pub(crate) use memory::Table;
pub use memory::{
    Changes, Export, ImportSummary, KeyCursor, KeyPage, Memory, SavedChange, SavedKey, Tables,
};

use crate::algorithm::{Reading, Verdict};
use crate::clock::Now;
use crate::plan::{Level, PerLevel, Plan};
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
    #[inline(always)]
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
    /// What its key is called, for a store that [names its keys](Store::names_keys).
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
pub type AmendmentResults = PerLevel<bool>;

/// A store that may have to wait for its answer.
///
/// A denial is an answer; only a store that cannot answer returns an error.
pub trait Store: Send + Sync + 'static {
    /// True if operators look into the store, so that its keys have names instead of numbers.
    fn names_keys(&self) -> bool;

    /// How long a request that [waits](crate::Limiter::acquire) may sleep before it looks again, where
    /// other nodes give back what this process does not hear of; `None` where it hears of everything.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }

    /// True if the store always answers, so that a node need not remember readings for an outage.
    fn is_never_lost(&self) -> bool {
        false
    }

    /// True if [`try_decide`](Self::try_decide) answers every plan.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Decides a plan without waiting, and writes the answer where it stands; `None` where
    /// [`decide`](Self::decide) must be asked. The plan has no names here. `tables` are those of the
    /// plan's policy.
    fn try_decide(
        &self,
        plan: &Plan,
        tables: Option<&Tables>,
        answer: &mut Answer,
    ) -> Option<Result<(), StoreError>> {
        _ = (plan, tables, answer);
        None
    }

    /// Decides a plan: every level is charged, or none.
    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send;

    /// Makes corrections, at most [`LEVELS_MAX`](crate::plan::LEVELS_MAX) of them, each by itself.
    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<AmendmentResults, StoreError>> + Send;

    /// Names the limits that there are, so that each can have its share of the memory.
    fn announce(&self, families: &[u64]);

    /// Where the store keeps the keys of limits that have been announced, if it can say so once for all
    /// requests.
    fn tables(&self, families: &[u64]) -> Tables {
        _ = families;
        Tables::default()
    }
}

/// A store that answers at once. Every such store is a [`Store`] whose future is always ready.
pub trait ImmediateStore: Send + Sync + 'static {
    /// As [`Store::is_never_lost`].
    fn is_never_lost(&self) -> bool {
        false
    }

    /// As [`Store::decide`].
    ///
    /// # Errors
    /// The store cannot answer.
    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError>;

    /// As [`decide_now`](Self::decide_now), for limits that have these tables. The answer is written
    /// where it stands: it is too large to be copied.
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

    /// As [`Store::amend`].
    ///
    /// # Errors
    /// The store cannot answer.
    fn amend_now(&self, now: Now, amendments: &[Amendment])
    -> Result<AmendmentResults, StoreError>;

    /// As [`Store::announce`].
    fn announce_now(&self, families: &[u64]);
}

impl<S: ImmediateStore> Store for S {
    fn names_keys(&self) -> bool {
        false
    }

    fn is_never_lost(&self) -> bool {
        ImmediateStore::is_never_lost(self)
    }

    fn is_immediate(&self) -> bool {
        true
    }

    #[inline]
    fn try_decide(
        &self,
        plan: &Plan,
        tables: Option<&Tables>,
        answer: &mut Answer,
    ) -> Option<Result<(), StoreError>> {
        Some(match tables {
            Some(tables) => self.decide_in(tables, plan, answer),
            None => self.decide_now(plan).map(|decided| *answer = decided),
        })
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        ready(self.decide_now(plan))
    }

    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<AmendmentResults, StoreError>> + Send {
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
    fn is_never_lost(&self) -> bool {
        ImmediateStore::is_never_lost(&**self)
    }

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

    fn amend_now(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
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
