//! The marks of one kind, in a sharded map of bounded size. A live mark is never evicted: a full table
//! takes no more marks.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::subject::{Subject, SubjectKind};
use crate::fold::Folded;
use crate::key::Key;
use crate::shards::Shards;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// How many expired marks one call drops. Requests call it, and none of them should wait for a million.
const DROPPED_MAX: usize = 64;

/// One mark, in the time of this process's steady clock.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) policy: Option<Arc<str>>,
    pub(super) subject: Subject,
    pub(super) source: Arc<str>,
    pub(super) reason: Arc<str>,
    pub(super) flag: Option<Arc<str>>,
    pub(super) since_us: u64,
    /// [`u64::MAX`] for a mark without an end.
    pub(super) until_us: u64,
    pub(super) factor_ppm: Option<u64>,
}

/// What setting a mark did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetOutcome {
    /// The subject had no such mark.
    New,
    /// The subject's mark was replaced.
    Changed,
    /// The subject's mark lasts at least as long, or the new one has ended already.
    Unchanged,
    /// The table is full.
    Full,
}

impl SetOutcome {
    /// True if the new mark is in force.
    pub(crate) const fn is_set(self) -> bool {
        matches!(self, Self::New | Self::Changed)
    }
}

/// When a new mark replaces the one that its subject has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replace {
    IfLonger,
    Always,
}

#[derive(Debug)]
pub(super) struct Table {
    count: AtomicUsize,
    max: usize,
    subjects: SubjectCounts,
    /// No mark ends earlier.
    next_end_us: AtomicU64,
    refused: AtomicU64,
    shards: Shards<Shard>,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<Key, Entry, Folded>,
    /// The marks that have an end, in its order.
    ends: BTreeSet<(u64, Key)>,
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self {
            count: AtomicUsize::new(0),
            max,
            subjects: SubjectCounts::default(),
            next_end_us: AtomicU64::new(u64::MAX),
            refused: AtomicU64::new(0),
            shards: Shards::default(),
        }
    }

    /// How many marks there are. Some may have expired just now.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Which kinds of subjects have marks here.
    pub(super) const fn subjects(&self) -> &SubjectCounts {
        &self.subjects
    }

    /// How many marks found no room.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sets a mark. `on_set` runs before another thread can change the mark.
    pub(super) fn set(
        &self,
        key: Key,
        entry: Entry,
        replace: Replace,
        now_us: u64,
        on_set: impl FnOnce(&Entry),
    ) -> SetOutcome {
        self.drop_expired(now_us);
        if entry.until_us <= now_us {
            return SetOutcome::Unchanged;
        }
        let mut shard = self.shards.lock(key);
        let outcome = match shard.entries.get(&key).map(|before| before.until_us) {
            Some(until_us) if replace == Replace::IfLonger && until_us >= entry.until_us => {
                return SetOutcome::Unchanged;
            }
            Some(until_us) if until_us > now_us => SetOutcome::Changed,
            Some(_) => SetOutcome::New,
            None if !self.claim_room() => return SetOutcome::Full,
            None => SetOutcome::New,
        };
        on_set(&entry);
        self.insert(&mut shard, key, entry);
        outcome
    }

    /// Removes a mark; returns whether there was one. `on_remove` runs in any case, before another
    /// thread can change the mark.
    pub(super) fn remove(&self, key: Key, on_remove: impl FnOnce()) -> bool {
        let mut shard = self.shards.lock(key);
        on_remove();
        let Some(entry) = shard.entries.remove(&key) else { return false };
        shard.ends.remove(&(entry.until_us, key));
        self.release(&entry);
        true
    }

    /// Reads a mark that has not ended.
    pub(super) fn get<T>(
        &self,
        key: Key,
        now_us: u64,
        read: impl FnOnce(&Entry) -> T,
    ) -> Option<T> {
        if self.count() == 0 {
            return None;
        }
        self.shards.lock(key).entries.get(&key).filter(|entry| entry.until_us > now_us).map(read)
    }

    /// Drops some of the expired marks, if there are any. The next call drops more; readers see none of
    /// them.
    pub(super) fn drop_expired(&self, now_us: u64) {
        if now_us < self.next_end_us.load(Ordering::Acquire) {
            return;
        }
        // A mark that is set meanwhile lowers it again.
        self.next_end_us.store(u64::MAX, Ordering::Release);
        let mut left = DROPPED_MAX;
        for mut shard in self.shards.lock_each() {
            while let Some((until_us, key)) = shard.ends.first().copied() {
                if until_us > now_us || left == 0 {
                    self.next_end_us.fetch_min(until_us, Ordering::AcqRel);
                    break;
                }
                left -= 1;
                shard.ends.pop_first();
                if let Some(entry) = shard.entries.remove(&key) {
                    self.release(&entry);
                }
            }
            if left == 0 {
                // Other shards may have expired marks too.
                self.next_end_us.store(0, Ordering::Release);
                return;
            }
        }
    }

    /// At most `limit` marks behind a key, in the order of their keys.
    pub(super) fn page<T>(
        &self,
        after: Option<Key>,
        limit: usize,
        now_us: u64,
        mut read: impl FnMut(Key, &Entry) -> T,
    ) -> Vec<T> {
        let mut page = Vec::new();
        for shard in self.shards.lock_each_from(after.unwrap_or(Key(0))) {
            if page.len() >= limit {
                break;
            }
            let is_behind = |(key, entry): &(&Key, &Entry)| {
                entry.until_us > now_us && after.is_none_or(|after| **key > after)
            };
            let mut entries: Vec<(&Key, &Entry)> = shard.entries.iter().filter(is_behind).collect();
            entries.sort_unstable_by_key(|(key, _)| **key);
            let room = limit - page.len();
            page.extend(entries.into_iter().take(room).map(|(key, entry)| read(*key, entry)));
        }
        page
    }

    /// Several threads at once cannot exceed the bound either.
    fn claim_room(&self) -> bool {
        let claimed = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < self.max).then_some(count + 1)
        });
        if claimed.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        claimed.is_ok()
    }

    /// Inserts a mark, or replaces the one that is there.
    fn insert(&self, shard: &mut Shard, key: Key, entry: Entry) {
        // Before the mark can be found, so that no reader misses it.
        self.subjects.add(&entry);
        if entry.until_us != u64::MAX {
            shard.ends.insert((entry.until_us, key));
            self.next_end_us.fetch_min(entry.until_us, Ordering::AcqRel);
        }
        let until_us = entry.until_us;
        if let Some(before) = shard.entries.insert(key, entry) {
            if before.until_us != until_us {
                shard.ends.remove(&(before.until_us, key));
            }
            self.subjects.remove(&before);
        }
    }

    /// Gives up the room of a mark that is gone.
    fn release(&self, entry: &Entry) {
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.subjects.remove(entry);
    }
}

/// How many marks there are on each kind of subject, so that requests look for those alone.
#[derive(Debug, Default)]
pub(super) struct SubjectCounts {
    /// In one policy, and in all.
    counts: [[AtomicUsize; 2]; SubjectKind::COUNT],
    /// The prefix lengths that marked networks have had, a bit each: of IPv4, and of IPv6.
    prefix_lengths: [[AtomicU64; 3]; 2],
}

impl SubjectCounts {
    pub(super) fn has(&self, kind: SubjectKind, everywhere: bool) -> bool {
        self.counts[kind as usize][usize::from(everywhere)].load(Ordering::Acquire) > 0
    }

    /// The prefix lengths of marked networks that may contain an address.
    pub(super) fn prefix_lengths(&self, ip: IpAddr) -> impl Iterator<Item = u8> + use<> {
        let words = self.prefix_lengths[usize::from(ip.is_ipv6())].each_ref();
        let words = words.map(|word| word.load(Ordering::Acquire));
        let longest = if ip.is_ipv6() { 128 } else { 32 };
        (0..=longest)
            .filter(move |length| words[usize::from(length / 64)] >> (length % 64) & 1 == 1)
    }

    fn add(&self, entry: &Entry) {
        if let Some(net) = entry.subject.as_network() {
            let (length, words) = (net.prefix_len(), &self.prefix_lengths);
            let word = &words[usize::from(net.addr().is_ipv6())][usize::from(length / 64)];
            word.fetch_or(1 << (length % 64), Ordering::AcqRel);
        }
        self.count_of(entry).fetch_add(1, Ordering::AcqRel);
    }

    fn remove(&self, entry: &Entry) {
        self.count_of(entry).fetch_sub(1, Ordering::AcqRel);
    }

    fn count_of(&self, entry: &Entry) -> &AtomicUsize {
        &self.counts[entry.subject.kind() as usize][usize::from(entry.policy.is_none())]
    }
}
