//! The marks of one kind: sharded by their keys, and bounded. What is live is never evicted: a full
//! table takes no more.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use super::subject::Subject;
use crate::fold::Folded;
use crate::key::Key;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};

/// Marks in different shards do not wait for each other. A shard has those whose keys begin with its
/// number, so that shard by shard is also in order.
const SHARDS: usize = 64;
const SHARD_BITS: u32 = 6;
/// How many ended marks one call forgets: requests do it, and none is to wait for a million.
const SWEPT_MAX: usize = 64;

/// One mark, by the steady clock of this process.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) policy: Option<Arc<str>>,
    pub(super) subject: Subject,
    pub(super) source: Arc<str>,
    pub(super) reason: Arc<str>,
    pub(super) flag: Option<Arc<str>>,
    pub(super) since_us: u64,
    /// [`u64::MAX`] for one that does not end by itself.
    pub(super) until_us: u64,
    pub(super) factor_ppm: Option<u64>,
    /// What the filter knows it by.
    pub(super) trace: u64,
}

/// What became of a mark that was to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// There was none.
    New,
    /// There was one, which is another now.
    Changed,
    /// There was one that holds at least as long.
    Kept,
    /// There is no room.
    Full,
}

/// What a mark that is set does to one that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onto {
    /// The one that ends later stays.
    Later,
    /// It takes its place.
    Replace,
}

#[derive(Debug)]
pub(super) struct Table {
    count: AtomicUsize,
    max: usize,
    /// When the next mark ends; early is harmless.
    next_us: AtomicU64,
    refused: AtomicU64,
    shards: Vec<Mutex<Shard>>,
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<Key, Entry, Folded>,
    /// Those that end by themselves, by when.
    ends: BTreeSet<(u64, Key)>,
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self {
            count: AtomicUsize::new(0),
            max,
            next_us: AtomicU64::new(u64::MAX),
            refused: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// How many there are, those that have just ended included.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// How many there was no room for.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sets a mark; `gone` hears of those that are forgotten for it. `told` is called if it is set,
    /// before anybody else can change it.
    pub(super) fn set(
        &self,
        key: Key,
        entry: Entry,
        onto: Onto,
        now_us: u64,
        mut gone: impl FnMut(&Entry),
        told: impl FnOnce(),
    ) -> Set {
        self.sweep(now_us, &mut gone);
        if entry.until_us <= now_us {
            return Set::Kept;
        }
        let mut shard = self.shard(key);
        if let Some(held) = shard.slots.get(&key).cloned() {
            if onto == Onto::Later && held.until_us >= entry.until_us {
                return Set::Kept;
            }
            gone(&held);
            shard.ends.remove(&(held.until_us, key));
            self.insert(&mut shard, key, entry);
            told();
            return if held.until_us > now_us { Set::Changed } else { Set::New };
        }
        // Several threads at once cannot exceed the bound either.
        let claimed = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < self.max).then_some(count + 1)
        });
        if claimed.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Set::Full;
        }
        self.insert(&mut shard, key, entry);
        told();
        Set::New
    }

    fn insert(&self, shard: &mut Shard, key: Key, entry: Entry) {
        if entry.until_us != u64::MAX {
            shard.ends.insert((entry.until_us, key));
            self.next_us.fetch_min(entry.until_us, Ordering::AcqRel);
        }
        shard.slots.insert(key, entry);
    }

    /// Takes a mark away; what it was. `told` is called before anybody else can change it.
    pub(super) fn remove(&self, key: Key, told: impl FnOnce()) -> Option<Entry> {
        let mut shard = self.shard(key);
        told();
        let entry = shard.slots.remove(&key)?;
        shard.ends.remove(&(entry.until_us, key));
        self.count.fetch_sub(1, Ordering::AcqRel);
        Some(entry)
    }

    /// Reads a mark that has not ended.
    pub(super) fn get<T>(
        &self,
        key: Key,
        now_us: u64,
        read: impl FnOnce(&Entry) -> T,
    ) -> Option<T> {
        if self.len() == 0 {
            return None;
        }
        self.shard(key).slots.get(&key).filter(|entry| entry.until_us > now_us).map(read)
    }

    /// Forgets what has ended, if anything can have: a part of it, and the rest next time. Nobody
    /// finds what is still there.
    pub(super) fn sweep(&self, now_us: u64, mut gone: impl FnMut(&Entry)) {
        if now_us < self.next_us.load(Ordering::Acquire) {
            return;
        }
        // Whatever is set meanwhile lowers it again.
        self.next_us.store(u64::MAX, Ordering::Release);
        let mut left = SWEPT_MAX;
        for shard in &self.shards {
            let shard = &mut *locked(shard);
            while let Some((until_us, key)) = shard.ends.first().copied() {
                if until_us > now_us {
                    self.next_us.fetch_min(until_us, Ordering::AcqRel);
                    break;
                }
                if left == 0 {
                    self.next_us.fetch_min(until_us, Ordering::AcqRel);
                    return;
                }
                left -= 1;
                shard.ends.pop_first();
                if let Some(entry) = shard.slots.remove(&key) {
                    self.count.fetch_sub(1, Ordering::AcqRel);
                    gone(&entry);
                }
            }
        }
    }

    /// Those behind a key, in order, at most so many.
    pub(super) fn page<T>(
        &self,
        after: Option<Key>,
        limit: usize,
        now_us: u64,
        mut read: impl FnMut(Key, &Entry) -> T,
    ) -> Vec<T> {
        let (mut page, first) = (Vec::new(), after.map_or(0, shard_of));
        for shard in self.shards.iter().skip(first) {
            if page.len() >= limit {
                break;
            }
            let shard = locked(shard);
            let behind = |(key, entry): &(&Key, &Entry)| {
                entry.until_us > now_us && after.is_none_or(|after| **key > after)
            };
            let mut found: Vec<(&Key, &Entry)> = shard.slots.iter().filter(behind).collect();
            found.sort_unstable_by_key(|(key, _)| **key);
            let room = limit - page.len();
            page.extend(found.into_iter().take(room).map(|(key, entry)| read(*key, entry)));
        }
        page
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        locked(&self.shards[shard_of(key)])
    }
}

fn shard_of(key: Key) -> usize {
    // Six bits are the index of a shard.
    usize::try_from(key.0 >> (128 - SHARD_BITS)).unwrap_or(0)
}

fn locked<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
