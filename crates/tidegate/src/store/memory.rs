//! The memory store: sharded, and bounded whatever keys come.
//!
//! Each limit owns an equal share of `max_keys`, so that a flood of made-up keys on one limit
//! cannot push another's out. A state that is empty of meaning (bucket full, window gone) makes
//! room for free; only when every key of the limit is live, the one nearest to that goes, and is
//! counted. (Where more than a hundred have been charged since anybody looked, it is the nearest of
//! those that were looked at.) All keys of a limit are in one shard, so that this holds for the limit as a whole.

mod changes;
mod look;
mod snapshot;
mod stand_in;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use changes::{Changes, SavedChange};
pub use look::{Page, Place};
pub use snapshot::{Export, Imported, SavedKey};

use changes::Noted;

use super::{Amended, Amendment, Answer, Change, ImmediateStore, Reply, StoreError};
use crate::algorithm::{self, Ledger, Reading, Verdict, ceiling};
use crate::clock::Now;
use crate::fold::Folded;
use crate::key::Key;
use crate::plan::{LEVELS_MAX, Level, PerLevel, Plan};
use crate::units::Amount;

/// How many keys a store holds unless told otherwise.
const MAX_KEYS_DEFAULT: usize = 1_000_000;
/// Limits that are in different shards do not wait for each other.
const SHARDS: u64 = 64;
/// How many states that are empty of meaning an insertion clears away in passing.
const SWEPT_PER_INSERT: usize = 2;
/// How long such a state is left where it is while there is room: its key may well come again.
const LINGERS_US: u64 = 1_000_000;
/// How many keys that were charged since they were ordered are put in their place at once.
const REORDERED_AT_ONCE: usize = 64;

/// States in this process's memory.
#[derive(Debug)]
pub struct Memory {
    shards: Vec<Mutex<Shard>>,
    max_keys: usize,
    /// How many limits share the room; read for every new key.
    families: AtomicUsize,
    /// Which they are; read when saved keys come back.
    announced: Mutex<HashSet<u64>>,
    evicted: AtomicU64,
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
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let announced = Mutex::default();
        let (families, evicted) = (AtomicUsize::new(1), AtomicU64::new(0));
        Self { shards, max_keys, families, announced, evicted }
    }

    /// How many keys it holds, those that are empty of meaning included.
    #[must_use]
    pub fn keys(&self) -> usize {
        let keys = |shard: &Mutex<Shard>| {
            lock(shard).tables.values().map(|table| table.slots.len()).sum::<usize>()
        };
        self.shards.iter().map(keys).sum()
    }

    /// How many live keys had to go because their limit's share was full.
    #[must_use]
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// How many keys of one limit there may be.
    fn share(&self) -> usize {
        let families = self.families.load(Ordering::Relaxed).max(1);
        (self.max_keys / families).max(1)
    }

    /// The shard of a limit; its family is a hash already.
    fn shard_of(family: u64) -> usize {
        usize::try_from(family % SHARDS).unwrap_or(0)
    }

    /// Locks the shards of all levels in the order of their index, so that no two plans wait for
    /// each other.
    fn lock_all(&self, levels: &[Level]) -> Locked<'_> {
        let mut indices: PerLevel<usize> =
            levels.iter().map(|level| Self::shard_of(level.family)).collect();
        indices.sort_unstable();
        let mut guards = PerLevel::new();
        for index in indices {
            if guards.last().is_none_or(|(last, _): &(usize, _)| *last != index) {
                guards.push((index, lock(&self.shards[index])));
            }
        }
        Locked { store: self, guards }
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
        let mut locked = self.lock_all(&plan.levels);
        let verdicts: PerLevel<Verdict> =
            plan.levels.iter().map(|level| locked.evaluate(level, plan.now)).collect();
        let commits = plan.commits(&verdicts);
        let mut replies = PerLevel::new();
        for (level, verdict) in plan.levels.iter().zip(verdicts) {
            let charged = commits && verdict == Verdict::Allowed && !level.cost.is_zero();
            let (charged_at_us, reading) = if charged {
                locked.charge(level, plan.now, plan.holder)
            } else {
                if verdict != Verdict::Allowed {
                    locked.open(level, plan.now);
                }
                (0, locked.reading(level, plan.now))
            };
            replies.push(Reply { verdict, charged, charged_at_us, reading });
        }
        Answer { now: plan.now, replies }
    }
}

impl ImmediateStore for Memory {
    const NEVER_LOST: bool = true;

    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        Ok(self.answer(plan))
    }

    fn amend_now(&self, now: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        let amend = |amendment: &Amendment| {
            let mut locked = self.lock_all(std::slice::from_ref(&amendment.level));
            locked.amend(amendment, now)
        };
        Ok(amendments.iter().take(LEVELS_MAX).map(amend).collect())
    }

    /// Limits that are gone take their keys with them, and limits that are new have their share at
    /// once.
    fn announce_now(&self, families: &[u64]) {
        *lock(&self.announced) = families.iter().copied().collect();
        self.families.store(families.len().max(1), Ordering::Relaxed);
        let share = self.share();
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.keep_only(families);
            let evicted = shard.tables.values_mut().map(|table| table.shrink_to(share)).sum();
            self.evicted.fetch_add(evicted, Ordering::Relaxed);
        }
    }
}

/// The shards of one plan, held together.
struct Locked<'s> {
    store: &'s Memory,
    guards: PerLevel<(usize, MutexGuard<'s, Shard>)>,
}

impl Locked<'_> {
    fn evaluate(&mut self, level: &Level, now: Now) -> Verdict {
        if let algorithm::Spec::Ceiling(spec) = &level.spec {
            return ceiling::evaluate(spec, level.cost);
        }
        self.with_ledger(level, |ledger| {
            ledger.evaluate(&level.spec, level.time_us(now), level.cost)
        })
        .unwrap_or(Verdict::Allowed)
    }

    fn reading(&mut self, level: &Level, now: Now) -> Reading {
        if let algorithm::Spec::Ceiling(spec) = &level.spec {
            return ceiling::reading(spec, level.cost);
        }
        self.with_ledger(level, |ledger| ledger.reading(&level.spec, level.time_us(now)))
            .unwrap_or(Reading { available: level.spec.capacity(), reset_us: None })
    }

    /// Charges a level; returns when, which is never before what was charged to the same state, and
    /// what the level shows then.
    fn charge(&mut self, level: &Level, now: Now, holder: u64) -> (u64, Reading) {
        let now_us = level.time_us(now);
        match self.with_slot(level, now_us, |slot| slot.charge(level, now_us, holder)) {
            Some(charged) => charged,
            None => (now_us, self.reading(level, now)),
        }
    }

    /// Charges an amount that nobody asked for; returns whether there is something to charge.
    fn debit(&mut self, level: &Level, now_us: u64, amount: Amount) -> bool {
        let places = matches!(level.spec, algorithm::Spec::Concurrency(_));
        if places || amount.is_zero() {
            return false;
        }
        self.with_slot(level, now_us, |slot| slot.debit(level, now_us, amount)).is_some()
    }

    /// Charges the slot of a level, which is made if there is none; `None` where nothing is stored.
    fn with_slot<T>(
        &mut self,
        level: &Level,
        now_us: u64,
        charge: impl FnOnce(&mut Slot) -> T,
    ) -> Option<T> {
        let store = self.store;
        let table = self.shard(level.family)?.table(level.family);
        table.noted.note(level.key);
        if let Some(slot) = table.slots.get_mut(&level.key) {
            let charged = charge(slot);
            if slot.ends_early() {
                table.order(level.key);
            }
            return Some(charged);
        }
        let ledger = Ledger::new(&level.spec)?;
        let evicted = table.make_room(now_us, store.share());
        store.evicted.fetch_add(evicted, Ordering::Relaxed);
        let mut slot = Slot::new(ledger, now_us);
        let charged = charge(&mut slot);
        table.insert(level.key, slot);
        Some(charged)
    }

    /// A key that is refused under other numbers than it was charged with must last as long as these
    /// say, or it would be as new before its wait is over.
    fn open(&mut self, level: &Level, now: Now) {
        let Some(table) = self.table(level) else { return };
        let slot = table.slots.get(&level.key);
        if slot.is_some_and(|slot| !slot.ledger.has_pace_of(&level.spec)) {
            table.change(level.key, |ledger| {
                ledger.open(&level.spec, level.time_us(now));
                true
            });
        }
    }

    fn amend(&mut self, amendment: &Amendment, now: Now) -> bool {
        let Amendment { level, charged_at_us, holder, change, .. } = amendment;
        let (spec, now_us) = (&level.spec, level.time_us(now));
        match change {
            Change::Reset => self.table(level).is_some_and(|table| table.reset(level.key)),
            Change::Debit(amount) => self.debit(level, now_us, *amount),
            Change::Refund(amount) => self.correct(amendment, |ledger| {
                ledger.refund(spec, now_us, *charged_at_us, *amount);
            }),
            Change::Surcharge(amount) => self.correct(amendment, |ledger| {
                ledger.surcharge(spec, now_us, *charged_at_us, *amount);
            }),
            Change::Release => self.change(level, |ledger| {
                // A place whose lease has run out is no longer held, though still listed.
                let held = ledger.renew(spec, now_us, *holder);
                ledger.release(*holder) && held
            }),
            Change::Renew => self.change(level, |ledger| ledger.renew(spec, now_us, *holder)),
        }
    }

    /// Corrects a charge, unless it was made to a state that is gone.
    fn correct(&mut self, amendment: &Amendment, correct: impl FnOnce(&mut Ledger)) -> bool {
        let Amendment { level, charged_at_us, .. } = amendment;
        let slot = self.table(level).and_then(|table| table.slots.get(&level.key));
        if slot.is_none_or(|slot| *charged_at_us < slot.born_us) {
            return false;
        }
        self.change(level, |ledger| {
            correct(ledger);
            true
        })
    }

    fn change(&mut self, level: &Level, change: impl FnOnce(&mut Ledger) -> bool) -> bool {
        self.table(level).is_some_and(|table| table.change(level.key, change))
    }

    /// Looks at the ledger of a level; a key that is not there has a new one.
    fn with_ledger<T>(&mut self, level: &Level, look: impl FnOnce(&Ledger) -> T) -> Option<T> {
        let table = self.shard(level.family).and_then(|shard| shard.tables.get(&level.family));
        match table.and_then(|table| table.slots.get(&level.key)) {
            Some(slot) => Some(look(&slot.ledger)),
            None => Ledger::new(&level.spec).map(|ledger| look(&ledger)),
        }
    }

    /// The keys of a level's limit, if there are any.
    fn table(&mut self, level: &Level) -> Option<&mut Table> {
        self.shard(level.family)?.tables.get_mut(&level.family)
    }

    fn shard(&mut self, family: u64) -> Option<&mut Shard> {
        let index = Memory::shard_of(family);
        self.guards.iter_mut().find(|(held, _)| *held == index).map(|(_, shard)| &mut **shard)
    }
}

#[derive(Debug, Default)]
struct Shard {
    tables: HashMap<u64, Table, Folded>,
    /// The keys that went with their limits, where changes are tracked.
    gone: Option<Vec<(u64, Key)>>,
}

/// The keys of one limit in one shard, also in the order in which they lose their meaning.
#[derive(Debug, Default)]
struct Table {
    slots: HashMap<Key, Slot, Folded>,
    /// A charge only makes a key last longer, and leaves it where it is until it comes first.
    by_meaning: BTreeSet<(u64, Key)>,
    /// When a key was last put in.
    latest_us: u64,
    noted: Noted,
}

#[derive(Debug)]
struct Slot {
    ledger: Ledger,
    meaningless_at_us: u64,
    /// Where it stands in the order: no later than its end.
    ordered_at_us: u64,
    /// When it was put in: a charge from before that was made to a state that is gone.
    born_us: u64,
    /// When it was last charged.
    charged_us: u64,
}

impl Slot {
    fn new(ledger: Ledger, born_us: u64) -> Self {
        Self { ledger, meaningless_at_us: 0, ordered_at_us: 0, born_us, charged_us: born_us }
    }

    fn charge(&mut self, level: &Level, now_us: u64, holder: u64) -> (u64, Reading) {
        self.ledger.charge(&level.spec, now_us, holder, level.cost);
        self.charged(now_us);
        (self.charged_us, self.ledger.reading(&level.spec, now_us))
    }

    fn debit(&mut self, level: &Level, now_us: u64, amount: Amount) {
        self.ledger.debit(&level.spec, now_us, amount);
        self.charged(now_us);
    }

    fn charged(&mut self, now_us: u64) {
        self.meaningless_at_us = self.ledger.meaningless_at_us().unwrap_or(u64::MAX);
        self.charged_us = self.charged_us.max(now_us);
    }

    /// Whether it ends before its place in the order says.
    fn ends_early(&self) -> bool {
        self.meaningless_at_us < self.ordered_at_us
    }
}

impl Table {
    /// Makes room for a key that is not there yet; returns how many live keys had to go.
    fn make_room(&mut self, now_us: u64, share: usize) -> u64 {
        for _ in 0..SWEPT_PER_INSERT {
            match self.first() {
                Some((meaningless_at_us, oldest))
                    if meaningless_at_us.saturating_add(LINGERS_US) <= now_us =>
                {
                    self.remove(oldest)
                }
                _ => break,
            };
        }
        self.latest_us = now_us;
        self.shrink_to(share.saturating_sub(1))
    }

    /// Lets go of the keys nearest to their end; returns how many of them were live.
    fn shrink_to(&mut self, keys: usize) -> u64 {
        let mut evicted = 0;
        while self.slots.len() > keys {
            let Some((meaningless_at_us, nearest)) = self.first() else { break };
            self.remove(nearest);
            if meaningless_at_us > self.latest_us {
                self.noted.note(nearest);
                evicted += 1;
            }
        }
        evicted
    }

    /// The key nearest to its end. Where very many keys have been charged since they were ordered,
    /// it is the nearest of some: nobody waits until all are in their place.
    fn first(&mut self) -> Option<(u64, Key)> {
        for _ in 0..REORDERED_AT_ONCE {
            let (ordered_at_us, key) = *self.by_meaning.first()?;
            let meaningless_at_us = self.slots.get(&key)?.meaningless_at_us;
            if meaningless_at_us <= ordered_at_us {
                return Some((meaningless_at_us, key));
            }
            self.order(key);
        }
        let end = |(_, key): &(u64, Key)| Some((self.slots.get(key)?.meaningless_at_us, *key));
        self.by_meaning.iter().take(REORDERED_AT_ONCE).filter_map(end).min()
    }

    fn insert(&mut self, key: Key, mut slot: Slot) {
        // A state that was charged into no meaning need not be kept.
        if slot.meaningless_at_us > 0 {
            slot.ordered_at_us = slot.meaningless_at_us;
            self.by_meaning.insert((slot.ordered_at_us, key));
            self.slots.insert(key, slot);
        }
    }

    /// Changes the state of a key. Returns whether there was one, and it had what was to be changed.
    fn change(&mut self, key: Key, change: impl FnOnce(&mut Ledger) -> bool) -> bool {
        let Some(slot) = self.slots.get_mut(&key) else { return false };
        let changed = change(&mut slot.ledger);
        self.noted.note(key);
        slot.meaningless_at_us = slot.ledger.meaningless_at_us().unwrap_or(u64::MAX);
        if slot.ends_early() {
            self.order(key);
        }
        changed
    }

    /// Puts a key in its place, or lets it go if it means nothing.
    fn order(&mut self, key: Key) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        if slot.meaningless_at_us == 0 {
            self.remove(key);
        } else {
            self.by_meaning.remove(&(slot.ordered_at_us, key));
            slot.ordered_at_us = slot.meaningless_at_us;
            self.by_meaning.insert((slot.ordered_at_us, key));
        }
    }

    fn remove(&mut self, key: Key) -> bool {
        let Some(slot) = self.slots.remove(&key) else { return false };
        self.by_meaning.remove(&(slot.ordered_at_us, key))
    }
}

/// A panic while a shard was held cannot leave it half-written: states change in one assignment
/// each, and nothing that runs under the lock panics.
fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
