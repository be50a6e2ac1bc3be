//! The memory store: bounded whatever keys come, and without a lock where nothing is written.
//!
//! ```text
//! Memory ── one Table for each limit, each with an equal share of max_keys
//!   │           │
//!   └─ Pool ────┘    lends what a table does not use of its share to others; has all pages
//!
//! Table      segment 0   segment 1   segment 2 …    by the low bits of a key's hash;
//!               │                                   grows by splitting one segment at a time
//! Segment    ┌──┴────────────────────────────────┐
//!            │ version (seqlock), len, depth     │  one cache line; odd version: a writer holds it
//!            │ pages ────────────┐   overflow ─┐ │
//!            └───────────────────┼─────────────┼─┘
//! Page       32 lines of 2 slots │             │    a key stands in one of two candidate lines,
//!            ┌────────┬────────┐ │             │    or else behind the first (linear probing)
//!            │ slot   │ slot   │◄┘             │
//!            └───┬────┴────────┘               │
//! Slot       ┌───┴───┬───────┬────────┬─────────┐
//!            │ key   │ key   │ header │ payload │   header: last charge, spec, kind; also the slot lock
//!            │ upper │ lower │        │         │   payload: what is owed, or an index ──┐
//!            └───────┴───────┴────────┴─────────┘                                        │
//! Overflow   full records: exact windows, places, charges that may be given back ◄───────┘
//! ```
//!
//! A check goes through the files in this order:
//!
//! 1. [`decide`]: a plan, all levels or none. [`fast_path`]: a single bucket, which is most of the traffic.
//! 2. [`table`]: from the key's hash to its segment. `table/growth` splits segments; `table/eviction` inserts keys, and
//!    evicts expired keys, or else those that have used least of their limit. The [`pool`] says which table gives up a key.
//! 3. [`segment`]: the lookup, under the [`seqlock`]. `segment/guard` is the locked segment, `segment/placement` says
//!    where a key stands, `segment/overflow` has what does not fit.
//! 4. [`slot`]: the words and the slot lock; [`packed_state`]: what they say, under a spec from the [`spec_registry`].
//! 5. [`level`]: the verdict, the reading and the charge, by the pure functions of [`algorithm`](crate::algorithm).
//!
//! Readers take no lock: they note the segment's version, read, and validate the version. A charge locks its slots only.
//! A new key, and a record in the overflow, take the lock of the segment.
//!
//! Beside decisions: [`corrections`] of earlier charges, [`inspection`] by operators, a [`snapshot`] of all keys, and a
//! [`journal`] of what changed since.

mod chunks;
mod corrections;
mod decide;
mod fast_path;
mod inspection;
mod journal;
mod level;
mod packed_state;
mod pages;
mod pool;
mod record;
mod segment;
mod seqlock;
mod slot;
mod snapshot;
mod spec_registry;
mod table;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;

pub use inspection::{KeyCursor, KeyPage};
pub use journal::{Changes, SavedChange};
use pool::Pool;
pub use snapshot::{Export, ImportSummary, SavedKey};
pub(crate) use table::Table;

use super::{Amendment, AmendmentResults, Answer, ImmediateStore, StoreError};
use crate::algorithm::Spec;
use crate::clock::Now;
use crate::key::Key;
use crate::plan::{LEVELS_MAX, Level, Mode, PerLevel, Plan};
use crate::sync::{Mutex, Ordering};

/// How many keys a store holds by default.
const MAX_KEYS_DEFAULT: usize = 1_000_000;

/// States in this process's memory.
#[derive(Debug)]
pub struct Memory {
    limits: ArcSwap<Limits>,
    /// Held while the set of limits changes.
    changing: Mutex<()>,
    max_keys: usize,
    /// How many keys of a limit will come, where that is known.
    expected_keys: usize,
    pool: Arc<Pool>,
    /// The keys of dropped limits, for the journal.
    removed: Mutex<Vec<(u64, Key)>>,
}

/// Which limits there are.
#[derive(Clone, Debug, Default)]
struct Limits {
    tables: HashMap<u64, Arc<Table>, foldhash::fast::RandomState>,
}

impl Memory {
    /// A store of at most a million keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with_max_keys(MAX_KEYS_DEFAULT)
    }

    /// A store of at most this many keys. Each limit has an equal share of them, at least one, and lends what it does not
    /// use.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self {
            limits: ArcSwap::default(),
            changing: Mutex::default(),
            max_keys,
            expected_keys: 0,
            pool: Arc::new(Pool::new(max_keys)),
            removed: Mutex::default(),
        }
    }

    /// The same store, where so many keys of each limit are known to come. They are moved less often then.
    pub(crate) fn with_expected_keys(self, expected_keys: usize) -> Self {
        Self { expected_keys, ..self }
    }

    /// How many keys the store holds, expired ones included.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.limits.load().tables.values().map(|table| table.keys()).sum()
    }

    /// How many live keys were evicted because the store was full.
    #[must_use]
    pub fn evicted_keys(&self) -> u64 {
        self.pool.evicted.load(Ordering::Relaxed)
    }

    fn tables(&self) -> Vec<(u64, Arc<Table>)> {
        let limits = self.limits.load();
        limits.tables.iter().map(|(family, table)| (*family, Arc::clone(table))).collect()
    }

    fn table(&self, family: u64) -> Option<Arc<Table>> {
        self.limits.load().tables.get(&family).cloned()
    }

    fn table_or_create(&self, family: u64) -> Arc<Table> {
        if let Some(table) = self.table(family) {
            return table;
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = self.table(family) {
            return table;
        }
        let mut limits = Limits::clone(&self.limits.load());
        let table = self.new_table();
        limits.tables.insert(family, Arc::clone(&table));
        self.share_out(&limits);
        self.limits.store(Arc::new(limits));
        table
    }

    fn new_table(&self) -> Arc<Table> {
        let table = Arc::new(Table::new(0, self.expected_keys, Arc::clone(&self.pool)));
        self.pool.enrol(&table);
        table
    }

    /// Gives every table an equal share, and at least one key.
    fn share_out(&self, limits: &Limits) {
        let count = limits.tables.len().max(1);
        let share = (self.max_keys / count).max(1);
        self.pool.set_max_keys(self.max_keys.max(count));
        limits.tables.values().for_each(|table| table.usage.set_share(share));
    }

    /// Decides a plan. A memory store always answers.
    pub(crate) fn answer(&self, plan: &Plan) -> Answer {
        debug_assert!(plan.levels.len() <= LEVELS_MAX, "a plan has a bound");
        let has_table = |level: &Level| self.limits.load().tables.contains_key(&level.family);
        if plan.mode == Mode::Charge {
            let stored = plan.levels.iter().filter(|level| is_stored(level));
            for level in stored.filter(|level| !has_table(level)) {
                self.table_or_create(level.family);
            }
        }
        // A table that is dropped meanwhile is not created again: its limit is gone.
        let limits = self.limits.load();
        let table = |level: &Level| limits.tables.get(&level.family).map(|table| &**table);
        let mut steps: PerLevel<_> =
            plan.levels.iter().map(|level| decide::Step::new(level, table(level))).collect();
        let mut answer = Answer { now: plan.now, replies: PerLevel::new() };
        decide::decide(plan, &mut steps, &mut answer.replies);
        answer
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// True if the level keeps a state.
const fn is_stored(level: &Level) -> bool {
    !matches!(level.spec, Spec::Ceiling(_))
}

impl ImmediateStore for Memory {
    fn is_never_lost(&self) -> bool {
        true
    }

    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        Ok(self.answer(plan))
    }

    fn decide_in(
        &self,
        tables: &Tables,
        plan: &Plan,
        answer: &mut Answer,
    ) -> Result<(), StoreError> {
        let mut steps: ArrayVec<_, LEVELS_MAX> = ArrayVec::new();
        for level in &plan.levels {
            let step = tables.get(level).map(|table| decide::Step::new(level, Some(table)));
            if step.is_none_or(|step| steps.try_push(step).is_err()) {
                *answer = self.answer(plan);
                return Ok(());
            }
        }
        answer.now = plan.now;
        decide::decide(plan, &mut steps, &mut answer.replies);
        Ok(())
    }

    fn tables_now(&self, families: &[u64]) -> Tables {
        let limits = self.limits.load();
        let tables = families.iter().map(|family| limits.tables.get(family).cloned());
        Tables(tables.collect::<Option<_>>().unwrap_or_default())
    }

    fn amend_now(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        let amend = |amendment: &Amendment| self.amend(amendment, now);
        Ok(amendments.iter().take(LEVELS_MAX).map(amend).collect())
    }

    /// Drops the tables of limits that are gone, and gives new limits their share at once.
    fn announce_now(&self, families: &[u64]) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let announced: HashSet<u64> = families.iter().copied().collect();
        let mut tables = self.limits.load().tables.clone();
        tables.retain(|family, table| {
            let stays = announced.contains(family);
            if !stays {
                self.note_dropped_table(*family, table);
                table.retire();
            }
            stays
        });
        for family in &announced {
            tables.entry(*family).or_insert_with(|| self.new_table());
        }
        let limits = Limits { tables };
        self.share_out(&limits);
        self.limits.store(Arc::new(limits));
    }
}

/// The tables of a policy's limits, in their order: looked up when the policy comes into force, and not for every
/// request. Empty if a limit has no table.
#[derive(Clone, Debug, Default)]
pub struct Tables(Vec<Arc<Table>>);

impl Tables {
    /// The table of a level's limit, unless the store has dropped it.
    #[inline]
    fn get(&self, level: &Level) -> Option<&Table> {
        let table = self.0.get(usize::from(level.limit))?;
        (!table.is_retired()).then_some(&**table)
    }
}

#[cfg(test)]
mod tests;
