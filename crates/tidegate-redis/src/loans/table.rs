//! All that this node has borrowed, bucket by bucket.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate::Amount;
use tidegate::engine::Key;
use tidegate::engine::algorithm::Spec;
use tidegate::engine::fold::{Fold, Folded};
use tidegate::engine::plan::Level;
use tidegate::engine::store::{Amendment, Change};
use tokio::sync::Notify;

use super::bucket::{BorrowedBucket, LoanTerms, LocalSpend};
use super::{LoanHealth, LoanReply, LoanRequest};
use crate::lock;

/// How many buckets may be borrowed from; the store decides the others exactly.
const BUCKETS_MAX: usize = 100_000;
/// Requests of buckets in different shards do not wait for each other's lock.
const SHARDS: usize = 64;
/// A bucket is worth dividing if each node can have this many tokens.
const BURST_UNITS_MIN: u64 = 4;

/// The tokens that this node has borrowed.
#[derive(Debug)]
pub struct LoanTable {
    shards: Vec<Mutex<TableShard>>,
    nodes: AtomicU32,
    grant_ids: AtomicU64,
    /// Buckets for which it is time to borrow.
    due: Mutex<Vec<BucketId>>,
    /// Notified when a bucket becomes due.
    pub(super) wake: Notify,
    closed: AtomicBool,
    met_too_small: AtomicBool,
}

#[derive(Debug, Default)]
struct TableShard {
    buckets: HashMap<BucketId, BorrowedBucket, Folded>,
    counts: LoanHealth,
}

/// A bucket, as plans identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BucketId {
    family: u64,
    key: Key,
}

impl BucketId {
    fn of(level: &Level) -> Self {
        Self { family: level.family, key: level.key }
    }

    /// The index of its shard. It uses other bits of the hash than the map in the shard, which would
    /// collide otherwise.
    fn shard(self) -> usize {
        let mut fold = Fold::default();
        fold.write_u64(self.family);
        fold.write_u128(self.key.0);
        usize::try_from(fold.finish() >> 57).unwrap_or(0) % SHARDS
    }
}

impl Default for LoanTable {
    fn default() -> Self {
        Self::new(1)
    }
}

impl LoanTable {
    /// A table without loans, of one of `nodes` nodes.
    #[must_use]
    pub fn new(nodes: u32) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            nodes: AtomicU32::new(nodes.max(1)),
            grant_ids: AtomicU64::new(1),
            due: Mutex::default(),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            met_too_small: AtomicBool::new(false),
        }
    }

    /// How many nodes share the store.
    pub fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// True if tokens of a level may be borrowed: it is leased, and its bucket is large enough.
    #[must_use]
    pub fn is_lendable(&self, level: &Level) -> bool {
        let Spec::TokenBucket(spec) = &level.spec else { return false };
        if !level.leased || self.closed.load(Ordering::Relaxed) {
            return false;
        }
        let nodes = u64::from(self.nodes.load(Ordering::Relaxed));
        let is_large = spec.burst.micros() / Amount::ONE.micros() >= BURST_UNITS_MIN * nodes;
        if !is_large && !self.met_too_small.load(Ordering::Relaxed) {
            self.met_too_small.store(true, Ordering::Relaxed);
        }
        is_large
    }

    /// True once a leased bucket was met that is too small to be divided among the nodes.
    #[must_use]
    pub fn met_too_small(&self) -> bool {
        self.met_too_small.load(Ordering::Relaxed)
    }

    /// True if it is time to borrow for a bucket.
    #[cfg(test)]
    pub(super) fn has_due(&self) -> bool {
        !lock(&self.due).is_empty()
    }

    /// The loan requests for which it is time.
    #[must_use]
    pub fn take_due(&self, now_us: u64) -> Vec<LoanRequest> {
        let due = std::mem::take(&mut *lock(&self.due));
        let request = |id: BucketId| {
            let TableShard { buckets, counts } = &mut *self.shard(id);
            let request = buckets.get_mut(&id)?.request(now_us, &self.terms())?;
            counts.count_returned(&request);
            Some(request)
        };
        due.into_iter().filter_map(request).collect()
    }

    /// Gives back the tokens of idle buckets.
    #[must_use]
    pub fn sweep(&self, now_us: u64) -> Vec<LoanRequest> {
        self.give_back(now_us, |bucket| bucket.is_idle(now_us))
    }

    /// Gives everything back, and borrows nothing any more.
    #[must_use]
    pub fn close(&self, now_us: u64) -> Vec<LoanRequest> {
        self.closed.store(true, Ordering::SeqCst);
        self.give_back(now_us, |_| true)
    }

    /// Gives back the tokens of some buckets. Those that have nothing to report are forgotten.
    fn give_back(
        &self,
        now_us: u64,
        is_wanted: impl Fn(&BorrowedBucket) -> bool,
    ) -> Vec<LoanRequest> {
        let mut requests = Vec::new();
        for shard in &self.shards {
            let TableShard { buckets, counts } = &mut *lock(shard);
            buckets.retain(|_, bucket| {
                counts.expired += bucket.expire(now_us);
                if !is_wanted(bucket) {
                    return true;
                }
                let request = bucket.give_back(now_us, &self.terms());
                let has_request = request.is_some();
                if let Some(request) = request {
                    counts.count_returned(&request);
                    requests.push(request);
                }
                has_request
            });
        }
        requests
    }

    /// Applies the store's reply to a loan request; `None` if no reply came.
    pub fn apply_reply(&self, request: &LoanRequest, reply: Option<&LoanReply>, now_us: u64) {
        let id = BucketId::of(&request.level);
        let TableShard { buckets, counts } = &mut *self.shard(id);
        match reply {
            Some(reply) if reply.granted > 0 => counts.granted += 1,
            _ if request.wish > 0 => counts.refused += 1,
            _ => {}
        }
        let Some(bucket) = buckets.get_mut(&id) else { return };
        match reply {
            Some(reply) => bucket.apply_reply(request, reply, now_us, &self.terms()),
            None => bucket.note_failure(now_us),
        }
    }

    /// True if [`amend`](Self::amend) would make this correction.
    #[must_use]
    pub fn can_amend(&self, amendment: &Amendment, now_us: u64) -> bool {
        let Amendment { level, holder, change, .. } = amendment;
        self.with_bucket(level, |bucket| match change {
            Change::Refund(_) => bucket.has_holder(*holder, now_us),
            Change::Surcharge(extra) => bucket.has_tokens(*extra, now_us),
            _ => false,
        })
    }

    /// Makes a correction of tokens that were spent from a grant which this node still holds; false if
    /// the store must make it.
    pub fn amend(&self, amendment: &Amendment, now_us: u64) -> bool {
        let Amendment { level, holder, change, .. } = amendment;
        self.with_bucket(level, |bucket| match change {
            Change::Refund(amount) => bucket.refund(*holder, *amount, now_us),
            Change::Surcharge(extra) => bucket.surcharge(level, *extra, now_us),
            _ => false,
        })
    }

    fn with_bucket(&self, level: &Level, act: impl FnOnce(&mut BorrowedBucket) -> bool) -> bool {
        let id = BucketId::of(level);
        level.leased && self.shard(id).buckets.get_mut(&id).is_some_and(act)
    }

    /// The sums of all shards.
    #[must_use]
    pub fn health(&self) -> LoanHealth {
        let mut sum = LoanHealth::default();
        for shard in &self.shards {
            let shard = lock(shard);
            for left in shard.buckets.values().map(BorrowedBucket::left).filter(|left| *left > 0) {
                sum.held += 1;
                sum.outstanding += left;
            }
            sum.spent += shard.counts.spent;
            sum.exact += shard.counts.exact;
            sum.granted += shard.counts.granted;
            sum.refused += shard.counts.refused;
            sum.returned += shard.counts.returned;
            sum.expired += shard.counts.expired;
        }
        sum
    }

    /// How much could be spent at this time, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn spendable(&self, now_us: u64) -> u64 {
        let of_shard = |shard: &Mutex<TableShard>| {
            lock(shard).buckets.values().map(|bucket| bucket.spendable(now_us)).sum::<u64>()
        };
        self.shards.iter().map(of_shard).sum()
    }

    /// Spends the cost of a level, or only reads the bucket if there is no holder.
    pub(super) fn spend(
        &self,
        level: &Level,
        holder: Option<u64>,
        now_us: u64,
    ) -> Option<LocalSpend> {
        let id = BucketId::of(level);
        let mut shard = self.shard(id);
        let TableShard { buckets, counts } = &mut *shard;
        let bucket = buckets.get_mut(&id)?;
        counts.expired += bucket.expire(now_us);
        let spend = bucket.spend(level, holder, now_us)?;
        counts.spent += u64::from(holder.is_some());
        drop(shard);
        if spend.is_due {
            self.push_due(id);
        }
        Some(spend)
    }

    /// Notes that the store is asked for a level. Returns the request that must go before it.
    pub(super) fn note_exact(
        &self,
        level: &Level,
        name: Option<&Arc<str>>,
        now_us: u64,
    ) -> Option<LoanRequest> {
        let id = BucketId::of(level);
        let mut shard = self.shard(id);
        let TableShard { buckets, counts } = &mut *shard;
        counts.exact += 1;
        if buckets.len() >= BUCKETS_MAX / SHARDS && !buckets.contains_key(&id) {
            return None;
        }
        let new = || BorrowedBucket::new(level, name.cloned(), now_us);
        let bucket = buckets.entry(id).or_insert_with(new);
        let (request, is_due) = bucket.note_exact(level, name, now_us, &self.terms());
        if let Some(request) = &request {
            counts.count_returned(request);
        }
        drop(shard);
        if is_due {
            self.push_due(id);
        }
        request
    }

    /// Takes a charge back that the plan as a whole did not commit.
    pub(super) fn put_back(&self, level: &Level, grant_id: u64, now_us: u64) {
        let id = BucketId::of(level);
        let TableShard { buckets, counts } = &mut *self.shard(id);
        counts.spent = counts.spent.saturating_sub(1);
        if let Some(bucket) = buckets.get_mut(&id) {
            bucket.expire(now_us);
            bucket.put_back(grant_id, level.cost);
        }
    }

    fn push_due(&self, id: BucketId) {
        lock(&self.due).push(id);
        self.wake.notify_one();
    }

    fn terms(&self) -> LoanTerms<'_> {
        LoanTerms {
            nodes: self.nodes.load(Ordering::Relaxed),
            may_borrow: !self.closed.load(Ordering::Relaxed),
            grant_ids: &self.grant_ids,
        }
    }

    fn shard(&self, id: BucketId) -> MutexGuard<'_, TableShard> {
        lock(&self.shards[id.shard()])
    }
}

impl LoanHealth {
    fn count_returned(&mut self, request: &LoanRequest) {
        self.returned += request.reports.iter().map(|report| report.returned).sum::<u64>();
    }
}
