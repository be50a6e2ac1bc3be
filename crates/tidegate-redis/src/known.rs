//! Refusals that still hold: a key that was denied until some time is denied here until then, without
//! asking.
//!
//! A refusal is remembered as the whole answer to its plan, and is given again only to a plan of the
//! same keys and specs whose costs cannot fare better. It ends where the first of its levels may be
//! free again, and after a second at the latest: whatever befalls the server without a word, such as
//! a key that is deleted by hand, is seen by then. What nodes change themselves they tell each other
//! ([`Changed`]), and a node that does not hear that remembers nothing.
//!
//! It never remembers what is given back as a matter of course: places, totals, what counts by its
//! outcome or was reserved.

mod announcer;
mod changed;
mod listener;
mod table;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::algorithm::{Spec, Verdict};
use tidegate::plan::{Enforcement, Level, Plan};
use tidegate::store::{Amendment, Answer, Change};

pub(crate) use announcer::{Announcer, keep_announcing};
pub use changed::Changed;
pub(crate) use listener::Listener;

use crate::health::KnownHealth;
use table::{Ended, Refusal, Table, id_of};

/// How long a refusal is remembered at most.
const LASTS_US_MAX: u64 = 1_000_000;
/// Requests of different keys do not wait for each other.
const SHARDS: usize = 16;

/// The refusals that this node knows of.
#[derive(Debug, Default)]
pub(crate) struct Known {
    shards: [Mutex<Table>; SHARDS],
    /// How many there are in all, those that are over included: while there are none, nobody looks.
    refusals: AtomicUsize,
    /// Goes up with everything that may end a refusal early.
    generation: AtomicU64,
    /// Whether this node hears what others change.
    hears: AtomicBool,
    /// Set in tests that set the server's clock, which is not this node's then.
    off: AtomicBool,
    answered: AtomicU64,
    heard: AtomicU64,
}

/// What was so when the store was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    sent_us: u64,
    generation: u64,
}

impl Known {
    /// The answer to a plan that is known to be refused still. While nothing is known, no clock is
    /// read.
    pub(crate) fn recall(&self, plan: &Plan, now_us: impl FnOnce() -> u64) -> Option<Answer> {
        if self.refusals.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let id = id_of(plan);
        let answer = self.shard(id).recall(id, plan, now_us())?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        Some(answer)
    }

    /// The store is about to be asked.
    pub(crate) fn asking(&self, now_us: u64) -> Asking {
        Asking { sent_us: now_us, generation: self.generation.load(Ordering::SeqCst) }
    }

    /// Remembers a refusal. Its time counts from when the store was asked, which it cannot have
    /// answered before; what is told of it, from now.
    pub(crate) fn note(&self, plan: &Plan, answer: &Answer, asking: Asking, now_us: u64) {
        let Some(lasts_us) = lasts_us(plan, answer) else { return };
        let until_us = asking.sent_us.saturating_add(lasts_us);
        if until_us <= now_us || self.off.load(Ordering::Relaxed) {
            return;
        }
        let id = id_of(plan);
        let mut table = self.shard(id);
        // While the table is held: whoever tells of a change from now on finds the refusal there.
        let changed = self.generation.load(Ordering::SeqCst) != asking.generation;
        if changed || !self.hears.load(Ordering::SeqCst) {
            return;
        }
        let before = table.len();
        table.insert(id, Refusal::new(plan, answer, until_us, now_us), now_us);
        self.count(before, table.len());
    }

    /// Forgets what a change may have ended.
    pub(crate) fn forget(&self, changed: &Changed) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        if self.refusals.load(Ordering::SeqCst) == 0 {
            return;
        }
        let ended = Ended::by(changed);
        for shard in &self.shards {
            let mut table = locked(shard);
            let before = table.len();
            table.forget(ended);
            self.count(before, table.len());
        }
    }

    /// Another node, or this one, told of changes.
    pub(crate) fn hear(&self, message: &[u8]) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        changed::read(message).iter().for_each(|changed| self.forget(changed));
    }

    /// Whether changes are heard from now on.
    pub(crate) fn set_hears(&self, hears: bool) {
        self.hears.store(hears, Ordering::SeqCst);
        if !hears {
            self.forget(&Changed::Everything);
        }
    }

    /// Remembers nothing from now on; for tests.
    pub(crate) fn switch_off(&self) {
        self.off.store(true, Ordering::Relaxed);
        self.forget(&Changed::Everything);
    }

    pub(crate) fn health(&self) -> KnownHealth {
        KnownHealth {
            hears: self.hears.load(Ordering::Relaxed),
            refusals: self.refusals.load(Ordering::Relaxed),
            answered: self.answered.load(Ordering::Relaxed),
            heard: self.heard.load(Ordering::Relaxed),
        }
    }

    fn shard(&self, id: u128) -> MutexGuard<'_, Table> {
        // The remainder of a division by sixteen is an index of sixteen.
        #[allow(clippy::cast_possible_truncation, reason = "it is below sixteen")]
        locked(&self.shards[(id % SHARDS as u128) as usize])
    }

    fn count(&self, before: usize, after: usize) {
        if after >= before {
            self.refusals.fetch_add(after - before, Ordering::SeqCst);
        } else {
            self.refusals.fetch_sub(before - after, Ordering::SeqCst);
        }
    }
}

/// What corrections may end: a refund gives something back, a reset everything. Of keys that are given
/// back as a matter of course nobody remembers anything; of what one request reserved others may.
pub(crate) fn changes(amendments: &[Amendment]) -> impl Iterator<Item = Changed> {
    let gives = |amendment: &&Amendment| {
        let gives = matches!(amendment.change, Change::Refund(_) | Change::Reset);
        gives && !amendment.level.refundable && is_steady(&amendment.level.spec)
    };
    let changed = |amendment: &Amendment| Changed::of(amendment.name.as_ref(), &amendment.level);
    amendments.iter().filter(gives).map(changed)
}

/// How long a refusal holds as it is; `None` where the answer is none, or is not to be remembered.
fn lasts_us(plan: &Plan, answer: &Answer) -> Option<u64> {
    let (mut refused, mut lasts_us) = (false, LASTS_US_MAX);
    for (level, reply) in plan.levels.iter().zip(&answer.replies) {
        if let Verdict::Denied { retry_after_us } = reply.verdict {
            if !holds(level) {
                return None;
            }
            refused |= level.enforcement == Enforcement::Reject;
            lasts_us = lasts_us.min(retry_after_us.unwrap_or(LASTS_US_MAX));
        }
    }
    (refused && plan.levels.len() == answer.replies.len()).then_some(lasts_us)
}

/// Whether a refusal here holds until the time that is told.
fn holds(level: &Level) -> bool {
    !level.is_given_back() && is_steady(&level.spec)
}

/// Whether only time gives back what was charged, as a rule.
fn is_steady(spec: &Spec) -> bool {
    !matches!(spec, Spec::Concurrency(_) | Spec::Total(_))
}

/// Nothing that runs under the lock panics.
fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
