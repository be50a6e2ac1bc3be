//! The memory store: bounded whatever keys come, and without a lock where nothing is written.
//!
//! Each limit has a table of its own, and an equal share of `max_keys`, so that a flood of made-up keys
//! on one limit cannot push another's out. A state that is empty of meaning (bucket full, window gone)
//! makes room for free; only when every key is live, the one goes that has used least of its limit, or
//! of those the one that ends first, and is counted. In a small table it is that of all, in a large one
//! that of some, and so never one that is at its limit while others were asked once.
//!
//! The way of a check: [`answer`] (a plan), [`view`] and [`charge`] (a level), [`table`] (the keys of a
//! limit), [`segment`] (some of them, under one lock), [`pages`], [`cell`] and [`slot`] (what is written of
//! one).

mod amend;
mod answer;
mod body;
mod cell;
mod changes;
mod charge;
mod check;
mod look;
mod pages;
mod rate;
mod record;
mod segment;
mod shelf;
mod slot;
mod snapshot;
mod specs;
mod stand_in;
mod table;
mod tables;
mod version;
mod view;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;

pub use changes::{Changes, SavedChange};
pub use look::{Page, Place};
pub use snapshot::{Export, ImportSummary, SavedKey};
pub(crate) use table::Table;
pub use tables::Tables;

use super::{Amended, Amendment, Answer, ImmediateStore, StoreError};
use crate::algorithm::Spec;
use crate::clock::Now;
use crate::fold::Folded;
use crate::key::Key;
use crate::plan::{LEVELS_MAX, Level, Mode, PerLevel, Plan};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// How many keys a store holds unless told otherwise.
const MAX_KEYS_DEFAULT: usize = 1_000_000;

/// States in this process's memory.
#[derive(Debug)]
pub struct Memory {
    families: ArcSwap<Families>,
    /// Held by whoever changes which limits there are.
    changing: Mutex<()>,
    max_keys: usize,
    /// How many keys of a limit are known to come.
    expected: usize,
    evicted: Arc<AtomicU64>,
    /// Whether somebody is told of changes.
    tracked: Arc<AtomicBool>,
    /// Whether more went than could be noted.
    lost: Arc<AtomicBool>,
    /// The keys of limits that are gone, then.
    gone: Mutex<Vec<(u64, Key)>>,
}

/// Which limits there are.
#[derive(Clone, Debug, Default)]
struct Families {
    tables: HashMap<u64, Arc<Table>, Folded>,
    /// Those that somebody has announced. They share the room.
    announced: HashSet<u64>,
}

impl Memory {
    /// A store of at most a million keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with_max_keys(MAX_KEYS_DEFAULT)
    }

    /// A store of at most this many keys, shared equally among the limits; each has room for at
    /// least one.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self {
            families: ArcSwap::default(),
            changing: Mutex::default(),
            max_keys,
            expected: 0,
            evicted: Arc::default(),
            tracked: Arc::default(),
            lost: Arc::default(),
            gone: Mutex::default(),
        }
    }

    /// The same, where so many keys of a limit are known to come: they are moved less often then.
    pub(crate) fn expecting(self, keys: usize) -> Self {
        Self { expected: keys, ..self }
    }

    /// How many keys it holds, those that are empty of meaning included.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.families.load().tables.values().map(|table| table.keys()).sum()
    }

    /// How many live keys had to go because their limit's share was full.
    #[must_use]
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// The tables of all limits.
    fn tables(&self) -> Vec<(u64, Arc<Table>)> {
        let families = self.families.load();
        families.tables.iter().map(|(family, table)| (*family, Arc::clone(table))).collect()
    }

    /// The keys of a limit, if there is a table for them.
    fn table(&self, family: u64) -> Option<Arc<Table>> {
        self.families.load().tables.get(&family).cloned()
    }

    /// The keys of a limit.
    fn table_for(&self, family: u64) -> Arc<Table> {
        if let Some(table) = self.table(family) {
            return table;
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let families = self.families.load_full();
        if let Some(table) = families.tables.get(&family) {
            return Arc::clone(table);
        }
        let mut families = Families::clone(&families);
        let table = Arc::new(self.new_table(self.share(families.announced.len())));
        families.tables.insert(family, Arc::clone(&table));
        self.families.store(Arc::new(families));
        table
    }

    fn new_table(&self, share: usize) -> Table {
        let (evicted, tracked) = (Arc::clone(&self.evicted), Arc::clone(&self.tracked));
        let table = Table::new(share, evicted, tracked, Arc::clone(&self.lost));
        table.expecting(self.expected)
    }

    /// How many keys of one limit there may be.
    fn share(&self, families: usize) -> usize {
        (self.max_keys / families.max(1)).max(1)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Decides a plan. Memory always answers.
    pub(crate) fn answer(&self, plan: &Plan) -> Answer {
        debug_assert!(plan.levels.len() <= LEVELS_MAX, "a plan has a bound");
        self.answer_with(plan, plan.mode == Mode::Charge)
    }

    /// The same; where a limit has no table yet, it is made first, if one is wanted.
    #[inline]
    fn answer_with(&self, plan: &Plan, tables: bool) -> Answer {
        let families = self.families.load();
        let mut steps = PerLevel::new();
        for level in &plan.levels {
            let table = families.tables.get(&level.family).map(|table| &**table);
            if tables && table.is_none() && stores(level) {
                return self.answer_new(plan);
            }
            steps.push(answer::Step::new(level, table));
        }
        let mut answer = Answer { now: plan.now, replies: PerLevel::new() };
        answer::answer(plan, &mut steps, &mut answer.replies);
        answer
    }

    #[cold]
    fn answer_new(&self, plan: &Plan) -> Answer {
        for level in plan.levels.iter().filter(|level| stores(level)) {
            self.table_for(level.family);
        }
        // Once is enough: whoever takes a table away meanwhile wants none.
        self.answer_with(plan, false)
    }
}

/// Whether something is kept of a level.
const fn stores(level: &Level) -> bool {
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
            let step = tables.get(level).map(|table| answer::Step::new(level, Some(table)));
            if step.is_none_or(|step| steps.try_push(step).is_err()) {
                *answer = self.answer(plan);
                return Ok(());
            }
        }
        answer.now = plan.now;
        answer::answer(plan, &mut steps, &mut answer.replies);
        Ok(())
    }

    fn tables_now(&self, families: &[u64]) -> Tables {
        Tables::of(&self.families.load(), families)
    }

    fn amend_now(&self, now: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        let amend = |amendment: &Amendment| self.amend(amendment, now);
        Ok(amendments.iter().take(LEVELS_MAX).map(amend).collect())
    }

    /// Limits that are gone take their keys with them, and limits that are new have their share at
    /// once.
    fn announce_now(&self, families: &[u64]) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let announced: HashSet<u64> = families.iter().copied().collect();
        let share = self.share(announced.len());
        let mut tables = self.families.load().tables.clone();
        tables.retain(|family, table| {
            let stays = announced.contains(family);
            if !stays {
                self.note_all(*family, table);
                table.retire();
            }
            stays
        });
        for family in &announced {
            tables.entry(*family).or_insert_with(|| Arc::new(self.new_table(share)));
        }
        for table in tables.values() {
            table.shrink_to(share);
        }
        self.families.store(Arc::new(Families { tables, announced }));
    }
}

#[cfg(test)]
mod tests;
