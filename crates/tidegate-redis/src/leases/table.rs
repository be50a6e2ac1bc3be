//! All that this node has borrowed, key by key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::algorithm::Spec;
use tidegate::fold::Folded;
use tidegate::plan::Level;
use tidegate::store::{Amendment, Change};
use tidegate::units::Amount;

use super::entry::{Entry, Loans, Spent};
use super::health::LeaseHealth;
use super::id::Id;
use super::loan::{Lent, Loan};

/// How many keys may be borrowed from; others are asked for exactly.
const KEYS_MAX: usize = 100_000;
/// Keys that are in different shards do not wait for each other.
const SHARDS: usize = 64;
/// Only a bucket of so many tokens for each node is worth dividing.
const BURST_UNITS_MIN: u64 = 4;

/// What this node has borrowed.
#[derive(Debug)]
pub struct Table {
    shards: Vec<Mutex<Shard>>,
    nodes: AtomicU32,
    ids: AtomicU64,
    /// Keys for which it is time to borrow, and whether there are any.
    due: Mutex<Vec<Id>>,
    is_due: AtomicBool,
    closed: AtomicBool,
    too_small: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    entries: HashMap<Id, Entry, Folded>,
    counts: LeaseHealth,
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// One that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            nodes: AtomicU32::new(1),
            ids: AtomicU64::new(1),
            due: Mutex::default(),
            is_due: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            too_small: AtomicBool::new(false),
        }
    }

    /// How many nodes share the store.
    pub fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// Whether tokens of a level may be borrowed: of a bucket that is large enough.
    #[must_use]
    pub fn lends(&self, level: &Level) -> bool {
        let Spec::TokenBucket(spec) = &level.spec else { return false };
        if !level.leased || self.closed.load(Ordering::Relaxed) {
            return false;
        }
        let nodes = u64::from(self.nodes.load(Ordering::Relaxed));
        let units = spec.burst.micros() / Amount::ONE.micros();
        let large = units >= BURST_UNITS_MIN * nodes;
        if !large && !self.too_small.load(Ordering::Relaxed) {
            self.too_small.store(true, Ordering::Relaxed);
        }
        large
    }

    /// Whether a leased bucket was met that is too small to be divided among so many nodes.
    #[must_use]
    pub fn met_too_small(&self) -> bool {
        self.too_small.load(Ordering::Relaxed)
    }

    /// The loans for which it is time.
    #[must_use]
    pub fn due(&self, now_us: u64) -> Vec<Loan> {
        self.is_due.store(false, Ordering::SeqCst);
        let due = std::mem::take(&mut *locked(&self.due));
        let loan = |id: Id| {
            let mut shard = self.shard(id);
            let entry = shard.entries.get_mut(&id)?;
            let loan = entry.loan(now_us, &self.loans());
            shard.note(loan.as_ref());
            loan
        };
        due.into_iter().filter_map(loan).collect()
    }

    /// Gives back what nobody asks for, and forgets it.
    #[must_use]
    pub fn sweep(&self, now_us: u64) -> Vec<Loan> {
        let mut loans = Vec::new();
        for shard in &self.shards {
            let mut shard = locked(shard);
            let Shard { entries, counts } = &mut *shard;
            entries.retain(|_, entry| {
                counts.expired += entry.expire(now_us);
                if !entry.is_idle(now_us) {
                    return true;
                }
                let owes = entry.owes_report();
                if owes && let Some(loan) = entry.give_back(now_us, &self.loans()) {
                    counts.note(&loan);
                    loans.push(loan);
                }
                owes
            });
        }
        loans
    }

    /// Gives everything back, and borrows nothing any more.
    #[must_use]
    pub fn close(&self, now_us: u64) -> Vec<Loan> {
        self.closed.store(true, Ordering::SeqCst);
        let mut loans = Vec::new();
        for shard in &self.shards {
            let mut shard = locked(shard);
            let Shard { entries, counts } = &mut *shard;
            for (_, mut entry) in entries.drain() {
                counts.expired += entry.expire(now_us);
                if let Some(loan) = entry.give_back(now_us, &self.loans()) {
                    counts.note(&loan);
                    loans.push(loan);
                }
            }
        }
        loans
    }

    /// What became of a loan: what the store said, or nothing.
    pub fn lent(&self, loan: &Loan, lent: Option<&Lent>, now_us: u64) {
        let id = Id::of(&loan.level);
        let mut shard = self.shard(id);
        match lent {
            Some(lent) if lent.granted > 0 => shard.counts.granted += 1,
            _ if loan.wish > 0 => shard.counts.refused += 1,
            _ => {}
        }
        let Some(entry) = shard.entries.get_mut(&id) else { return };
        match lent {
            Some(lent) => entry.lent(loan, lent, now_us, &self.loans()),
            None => entry.failed(now_us),
        }
    }

    /// Whether [`amend`](Self::amend) could make a correction.
    #[must_use]
    pub fn could_amend(&self, amendment: &Amendment, now_us: u64) -> bool {
        let Amendment { level, holder, change, .. } = amendment;
        let id = Id::of(level);
        let shard = self.shard(id);
        let entry = if level.leased { shard.entries.get(&id) } else { None };
        entry.is_some_and(|entry| match change {
            Change::Refund(_) => entry.knows(*holder, now_us),
            Change::Surcharge(extra) => entry.has(*extra, now_us),
            _ => false,
        })
    }

    /// Makes a correction, where what it corrects was spent from a lease that is still held; whether
    /// it did. The store makes the others.
    pub fn amend(&self, amendment: &Amendment, now_us: u64) -> bool {
        let Amendment { level, holder, change, .. } = amendment;
        if !level.leased {
            return false;
        }
        let id = Id::of(level);
        let mut shard = self.shard(id);
        let Some(entry) = shard.entries.get_mut(&id) else { return false };
        match change {
            Change::Refund(amount) => entry.refund(*holder, *amount, now_us),
            Change::Surcharge(extra) => entry.surcharge(level, *extra, now_us),
            _ => false,
        }
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> LeaseHealth {
        let mut all = LeaseHealth::default();
        for shard in &self.shards {
            let shard = locked(shard);
            let left = shard.entries.values().map(Entry::left).filter(|left| *left > 0);
            for left in left {
                all.held += 1;
                all.outstanding += left;
            }
            all.add(&shard.counts);
        }
        all
    }

    /// How much could be spent at this time, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn spendable(&self, now_us: u64) -> u64 {
        let of = |shard: &Mutex<Shard>| {
            locked(shard).entries.values().map(|entry| entry.spendable(now_us)).sum::<u64>()
        };
        self.shards.iter().map(of).sum()
    }

    /// Spends the cost of a level, or only looks without a holder.
    pub(super) fn spend(&self, level: &Level, holder: Option<u64>, now_us: u64) -> Option<Spent> {
        let id = Id::of(level);
        let mut shard = self.shard(id);
        let Shard { entries, counts } = &mut *shard;
        let entry = entries.get_mut(&id)?;
        counts.expired += entry.expire(now_us);
        let spent = entry.spend(level, holder, now_us)?;
        counts.spent += u64::from(holder.is_some());
        drop(shard);
        if spent.due {
            self.becomes_due(id);
        }
        Some(spent)
    }

    /// Notes that the store is asked for a level, and what must be told it before.
    pub(super) fn asked(
        &self,
        level: &Level,
        name: Option<&Arc<str>>,
        now_us: u64,
    ) -> Option<Loan> {
        let id = Id::of(level);
        let mut shard = self.shard(id);
        shard.counts.exact += 1;
        if shard.entries.len() >= KEYS_MAX / SHARDS && !shard.entries.contains_key(&id) {
            return None;
        }
        let entry =
            shard.entries.entry(id).or_insert_with(|| Entry::new(level, name.cloned(), now_us));
        let (loan, due) = entry.asked(level, name, now_us, &self.loans());
        shard.note(loan.as_ref());
        drop(shard);
        if due {
            self.becomes_due(id);
        }
        loan
    }

    pub(super) fn put_back(&self, level: &Level, batch: u64, now_us: u64) {
        let id = Id::of(level);
        let mut shard = self.shard(id);
        shard.counts.spent = shard.counts.spent.saturating_sub(1);
        if let Some(entry) = shard.entries.get_mut(&id) {
            entry.expire(now_us);
            entry.put_back(batch, level.cost);
        }
    }

    /// Whether there is something for [`due`](Self::due) to give.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    fn becomes_due(&self, id: Id) {
        locked(&self.due).push(id);
        self.is_due.store(true, Ordering::SeqCst);
    }

    fn loans(&self) -> Loans<'_> {
        Loans {
            nodes: self.nodes.load(Ordering::Relaxed),
            may_borrow: !self.closed.load(Ordering::Relaxed),
            ids: &self.ids,
        }
    }

    fn shard(&self, id: Id) -> MutexGuard<'_, Shard> {
        let index = id.shard(SHARDS);
        locked(&self.shards[index])
    }
}

impl Shard {
    fn note(&mut self, loan: Option<&Loan>) {
        if let Some(loan) = loan {
            self.counts.note(loan);
        }
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
