//! The negative cache: refusals that still hold, which are answered without asking the store.
//!
//! A refusal is cached as the whole answer to its plan. It answers only plans of the same keys and specs
//! whose costs cannot fare better. It ends when the first of its levels may have room again, and after
//! one second at the latest: by then a node notices a change that no node announced, such as a key that
//! an operator deleted by hand. Changes that nodes make themselves are published to all nodes as
//! [`Invalidation`]s, and a node that is not subscribed caches nothing.
//!
//! Levels that are given back as a matter of course are never cached: places, totals, and charges that
//! count by their outcome or are reserved.

mod invalidation;
mod publisher;
mod refusals;
mod subscriber;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tidegate::clock::micros;
use tidegate::engine::algorithm::{Spec, Verdict};
use tidegate::engine::plan::{Enforcement, Level, Plan};
use tidegate::engine::store::{Amendment, Answer, Change};

pub(crate) use invalidation::Invalidation;
pub(crate) use publisher::keep_publishing;
pub(crate) use subscriber::Subscriber;

use crate::health::NegativeCacheHealth;
use crate::{keys, lock};
use publisher::InvalidationQueue;
use refusals::{Refusal, RefusalTable, plan_id};

/// How long a refusal is cached at most.
const TTL_US_MAX: u64 = 1_000_000;
/// Requests of different keys do not wait for each other's lock.
const SHARDS: usize = 16;

/// The refusals that this node can repeat.
#[derive(Debug, Default)]
pub(crate) struct NegativeCache {
    shards: [Mutex<RefusalTable>; SHARDS],
    /// How many refusals are cached, expired ones included. While it is zero, lookups take no lock.
    refusals: AtomicUsize,
    /// Incremented by every invalidation.
    generation: AtomicU64,
    /// True while this node receives the invalidations of others.
    subscribed: AtomicBool,
    /// True in tests that set the server's clock, which then differs from this node's.
    disabled: AtomicBool,
    hits: AtomicU64,
    messages: AtomicU64,
    /// What other nodes are still to be told.
    outgoing: InvalidationQueue,
}

/// What was true when a call began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallStart {
    sent_us: u64,
    generation: u64,
}

impl NegativeCache {
    /// The cached refusal of a plan. While nothing is cached, no clock is read.
    pub(crate) fn find(&self, plan: &Plan, now_us: impl FnOnce() -> u64) -> Option<Answer> {
        if self.refusals.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let id = plan_id(plan);
        let answer = lock(self.shard(id)).find(id, plan, now_us())?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(answer)
    }

    /// Notes when the store is asked.
    pub(crate) fn start_call(&self, now_us: u64) -> CallStart {
        CallStart { sent_us: now_us, generation: self.generation.load(Ordering::SeqCst) }
    }

    /// Caches an answer that is a refusal. Its lifetime counts from when the store was asked, which is
    /// before the store answered; the waiting times that clients are told count from `now_us`.
    pub(crate) fn insert(&self, plan: &Plan, answer: &Answer, start: CallStart, now_us: u64) {
        let Some(ttl_us) = refusal_ttl_us(plan, answer) else { return };
        let until_us = start.sent_us.saturating_add(ttl_us);
        if until_us <= now_us || self.disabled.load(Ordering::Relaxed) {
            return;
        }
        let id = plan_id(plan);
        let mut table = lock(self.shard(id));
        // Under the lock: an invalidation that is not counted yet will find the refusal in the table.
        let is_stale = self.generation.load(Ordering::SeqCst) != start.generation;
        if is_stale || !self.subscribed.load(Ordering::SeqCst) {
            return;
        }
        let before = table.len();
        table.insert(id, Refusal::new(plan, answer, until_us, now_us), now_us);
        self.count(before, table.len());
    }

    /// Forgets what a change may have ended, here and on all other nodes.
    pub(crate) fn invalidate(&self, change: Invalidation) {
        self.forget(&change);
        self.outgoing.push(change);
    }

    /// Forgets what amendments may have ended: a refund gives something back, a reset everything.
    pub(crate) fn invalidate_amended(&self, amendments: &[Amendment]) {
        for Amendment { level, name, change, .. } in amendments {
            let gives_back = matches!(change, Change::Refund(_) | Change::Reset);
            // A level that this request reserved may be cached for another request.
            if gives_back && !level.refundable && only_time_restores(&level.spec) {
                let name = keys::state_name(name.as_ref(), level);
                self.invalidate(Invalidation::Key(name.into()));
            }
        }
    }

    fn forget(&self, change: &Invalidation) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        if self.refusals.load(Ordering::SeqCst) == 0 {
            return;
        }
        for shard in &self.shards {
            let mut table = lock(shard);
            let before = table.len();
            table.forget(change);
            self.count(before, table.len());
        }
    }

    /// Reads a message that a node published, possibly this one.
    fn receive(&self, message: &[u8]) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        invalidation::read(message).iter().for_each(|change| self.forget(change));
    }

    fn set_subscribed(&self, subscribed: bool) {
        self.subscribed.store(subscribed, Ordering::SeqCst);
        if !subscribed {
            self.forget(&Invalidation::All);
        }
    }

    /// Caches nothing from now on; for tests.
    pub(crate) fn disable(&self) {
        self.disabled.store(true, Ordering::Relaxed);
        self.forget(&Invalidation::All);
    }

    pub(crate) fn health(&self) -> NegativeCacheHealth {
        NegativeCacheHealth {
            subscribed: self.subscribed.load(Ordering::Relaxed),
            refusals: self.refusals.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            messages: self.messages.load(Ordering::Relaxed),
        }
    }

    fn shard(&self, id: u128) -> &Mutex<RefusalTable> {
        #[allow(clippy::cast_possible_truncation, reason = "the remainder is below sixteen")]
        &self.shards[(id % SHARDS as u128) as usize]
    }

    fn count(&self, before: usize, after: usize) {
        // The counter wraps around, so that it can fall.
        self.refusals.fetch_add(after.wrapping_sub(before), Ordering::SeqCst);
    }
}

/// How long a refusal holds; `None` if the answer is no refusal, or must not be cached.
fn refusal_ttl_us(plan: &Plan, answer: &Answer) -> Option<u64> {
    let (mut is_refused, mut ttl_us) = (false, TTL_US_MAX);
    for (level, reply) in plan.levels.iter().zip(&answer.replies) {
        if let Verdict::Denied { retry_after } = reply.verdict {
            if !is_cacheable(level) {
                return None;
            }
            is_refused |= level.enforcement == Enforcement::Reject;
            let wait_us = retry_after.map_or(TTL_US_MAX, micros);
            ttl_us = ttl_us.min(wait_us);
        }
    }
    (is_refused && plan.levels.len() == answer.replies.len()).then_some(ttl_us)
}

/// True if a denial of this level holds until the time that the store tells.
fn is_cacheable(level: &Level) -> bool {
    !level.is_given_back() && only_time_restores(&level.spec)
}

fn only_time_restores(spec: &Spec) -> bool {
    !matches!(spec, Spec::Concurrency(_) | Spec::Total(_))
}

#[cfg(test)]
mod tests;
