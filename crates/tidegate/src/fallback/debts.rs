//! What the store is to be charged with once it is back: what this node admitted without it, for each
//! key, at most one limit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::fold::Folded;
use crate::key::Key;
use crate::plan::Level;
use crate::shards::{SHARDS, Shards};
use crate::store::{Amendment, Change};
use crate::units::Amount;

/// How many keys a shard has.
const SHARD_KEYS_MAX: usize = 65_536 / SHARDS;

/// What is owed to the store.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    shards: Shards<HashMap<Key, Debt, Folded>>,
    keys: AtomicUsize,
    /// When something was last added, in steady time.
    latest_us: AtomicU64,
    /// How many keys there was no room for.
    untold: AtomicU64,
}

#[derive(Debug)]
struct Debt {
    level: Level,
    name: Option<Arc<str>>,
    amount: Amount,
}

impl Debts {
    /// A request was admitted here. The level is as the store knows it.
    pub(super) fn add(&self, level: &Level, name: Option<&Arc<str>>, now_us: u64) {
        self.latest_us.fetch_max(now_us, Ordering::Relaxed);
        let mut debts = self.shards.lock(level.key);
        let room = debts.len() < SHARD_KEYS_MAX;
        match debts.entry(level.key) {
            Entry::Occupied(mut debt) => {
                let debt = debt.get_mut();
                debt.level = *level;
                debt.amount = debt.amount.saturating_add(level.cost);
            }
            Entry::Vacant(place) if room => {
                place.insert(Debt { level: *level, name: name.cloned(), amount: level.cost });
                self.keys.fetch_add(1, Ordering::SeqCst);
            }
            Entry::Vacant(_) => {
                self.untold.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// What was charged here is corrected here.
    pub(super) fn amend(&self, amendment: &Amendment) {
        let mut debts = self.shards.lock(amendment.level.key);
        let Entry::Occupied(mut found) = debts.entry(amendment.level.key) else { return };
        let debt = found.get_mut();
        match amendment.change {
            Change::Refund(amount) => debt.amount = debt.amount.saturating_sub(amount),
            Change::Surcharge(amount) | Change::Debit(amount) => {
                debt.amount = debt.amount.saturating_add(amount);
            }
            Change::Reset => debt.amount = Amount::ZERO,
            _ => {}
        }
        if debt.amount.is_zero() {
            found.remove();
            self.keys.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Takes everything that is owed, the largest first.
    pub(crate) fn take(&self) -> Vec<Amendment> {
        let mut amendments = Vec::new();
        for mut shard in self.shards.lock_each() {
            let taken = std::mem::take(&mut *shard);
            self.keys.fetch_sub(taken.len(), Ordering::SeqCst);
            amendments.extend(taken.into_values().map(Debt::into_amendment));
        }
        amendments.sort_by_key(|amendment| std::cmp::Reverse(owed(amendment)));
        amendments
    }

    /// Owes again what could not be asked for.
    pub(crate) fn put_back(&self, amendments: &[Amendment], now_us: u64) {
        for amendment in amendments {
            let level = Level { cost: owed(amendment), ..amendment.level };
            self.add(&level, amendment.name.as_ref(), now_us);
        }
    }

    /// How many keys owe something.
    pub(crate) fn keys(&self) -> usize {
        self.keys.load(Ordering::SeqCst)
    }

    /// When something was last added.
    pub(crate) fn latest_us(&self) -> u64 {
        self.latest_us.load(Ordering::Relaxed)
    }

    /// How often there was no room, since this was last asked.
    pub(crate) fn take_untold(&self) -> u64 {
        self.untold.swap(0, Ordering::Relaxed)
    }
}

impl Debt {
    fn into_amendment(self) -> Amendment {
        let Self { level, name, amount } = self;
        let change = Change::Debit(amount.min(level.spec.capacity()));
        Amendment { level, name, charged_at_us: 0, holder: 0, change }
    }
}

fn owed(amendment: &Amendment) -> Amount {
    match amendment.change {
        Change::Debit(amount) => amount,
        _ => Amount::ZERO,
    }
}
