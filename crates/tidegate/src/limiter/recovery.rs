//! Giving the store its due once it is back: what was admitted without it.

use super::Limiter;
use crate::plan::LEVELS_MAX;
use crate::store::Store;

/// What this node admitted without the store, and has not told it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreDebt {
    /// How many keys the store is to be charged for.
    pub keys: usize,
    /// When the last request was admitted without it, in steady time.
    pub latest_us: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeSummary {
    /// How many keys the store was charged for.
    pub keys: u64,
    /// For how many it is not known whether it was, or there was no room to remember them.
    pub lost: u64,
    /// Whether all that could be told was told. What was not is owed still.
    pub done: bool,
}

impl<S: Store> Limiter<S> {
    /// What the store does not know of yet.
    #[must_use]
    pub fn owed(&self) -> StoreDebt {
        let debts = &self.inner.fallback.debts;
        StoreDebt { keys: debts.keys(), latest_us: debts.latest_us() }
    }

    /// How many keys this node counts by itself, those that are empty of meaning included.
    #[must_use]
    pub fn local_keys(&self) -> usize {
        self.inner.fallback.keys()
    }

    /// Charges the store with what was admitted while it was lost, at most one limit a key. Each key is
    /// sent once, whether that is answered or not. What this node has spent of its shares it goes on
    /// knowing: the store may be lost again before they are new.
    pub async fn merge(&self) -> MergeSummary {
        let inner = &*self.inner;
        let debts = inner.fallback.debts.take();
        let mut merged =
            MergeSummary { lost: inner.fallback.debts.take_untold(), ..MergeSummary::default() };
        let mut batches = debts.chunks(LEVELS_MAX);
        while let Some(batch) = batches.next() {
            let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
            if inner.store.amend(inner.clock.now(), batch).await.is_ok() {
                merged.keys += count;
                continue;
            }
            merged.lost += count;
            let now_us = inner.clock.now().steady_us;
            batches.for_each(|rest| inner.fallback.debts.put_back(rest, now_us));
            return merged;
        }
        MergeSummary { done: true, ..merged }
    }

    /// Forgets what the store is owed, as where it was only late to answer and has charged it itself.
    pub fn forgive(&self) {
        _ = self.inner.fallback.debts.take();
    }
}
