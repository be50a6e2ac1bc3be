//! A table: the keys of one limit, spread over segments by their hash.
//!
//! A small limit has one segment. From then on each further segment takes half of the keys of an earlier one, in
//! turn (linear hashing), so that no request waits for a table to be copied.

mod eviction;
mod growth;

use std::sync::Arc;

use super::chunks::Chunks;
use super::journal::RemovalLog;
use super::packed_state::PackedState;
use super::pool::{Pool, Usage};
use super::record::Record;
use super::segment::{KeyList, LookupHit, Segment, SegmentGuard, hash_of};
use super::spec_registry::SpecRegistry;
use crate::key::Key;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};

/// The keys of one limit.
#[derive(Debug)]
pub(crate) struct Table {
    segments: Chunks<SegmentChunk>,
    /// How many segments are in use.
    segment_count: AtomicUsize,
    /// The largest power of two that is not larger. Stored, because the instruction that computes it waits for its
    /// target register, which may hold a word that is still on its way from memory.
    segment_power: AtomicUsize,
    pub(super) specs: SpecRegistry,
    pub(super) usage: Arc<Usage>,
    /// How many keys will come, where that is known.
    expected_keys: usize,
    /// Set if the times of all keys are of the wall clock.
    uses_wall_clock: AtomicBool,
    /// Set when the store has dropped the table.
    is_retired: AtomicBool,
    /// The segment that the next eviction from another segment begins with.
    eviction_cursor: AtomicUsize,
    /// Held while a segment is split.
    splitting: Mutex<()>,
    pub(super) removals: RemovalLog,
    pub(super) pool: Arc<Pool>,
}

impl Drop for Table {
    fn drop(&mut self) {
        self.pool.subtract(&self.usage, self.keys());
    }
}

/// How many segments are allocated at once.
const CHUNK: usize = 256;

#[derive(Debug)]
struct SegmentChunk(Box<[Segment; CHUNK]>);

impl Default for SegmentChunk {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| Segment::default())))
    }
}

/// The result of a lookup that locked nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup<'t> {
    pub(super) segment: &'t Segment,
    /// The segment's version from before the lookup.
    pub(super) version: u32,
    pub(super) hit: Option<LookupHit<'t>>,
}

impl Lookup<'_> {
    /// True if the key still has the state that was read.
    pub(super) fn is_current(&self) -> bool {
        self.hit.is_none_or(|hit| hit.is_current())
    }
}

impl Table {
    pub(super) fn new(share: usize, expected_keys: usize, pool: Arc<Pool>) -> Self {
        let segments = Chunks::default();
        segments.get_or_create(0);
        Self {
            segments,
            segment_count: AtomicUsize::new(1),
            segment_power: AtomicUsize::new(1),
            specs: SpecRegistry::default(),
            usage: Arc::new(Usage::new(share)),
            expected_keys,
            uses_wall_clock: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
            eviction_cursor: AtomicUsize::new(0),
            splitting: Mutex::default(),
            removals: RemovalLog::default(),
            pool,
        }
    }

    /// A table that belongs to no store.
    pub(crate) fn standalone(max_keys: usize) -> Self {
        Self::new(max_keys, 0, Arc::new(Pool::new(max_keys)))
    }

    /// How many keys the table has, expired ones included.
    pub(crate) fn keys(&self) -> usize {
        self.usage.keys()
    }

    /// Drops the table from its store: a caller that still has it must ask the store again. Its keys are the first that
    /// make room for others.
    pub(super) fn retire(&self) {
        self.usage.set_share(0);
        self.is_retired.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn is_journaling(&self) -> bool {
        self.pool.is_journaling.load(Ordering::Relaxed)
    }

    /// Looks for a key without locking anything.
    #[inline(always)]
    pub(super) fn lookup(&self, key: Key) -> Lookup<'_> {
        self.lookup_in(self.locate(key), key)
    }

    /// The segment of a key and its version, without locking anything.
    #[inline(always)]
    pub(super) fn locate(&self, key: Key) -> (&Segment, u32) {
        let hash = hash_of(key);
        loop {
            if let Some((number, segment)) = self.segment_of(hash) {
                let version = segment.version();
                if segment.owns(number, hash) {
                    return (segment, version);
                }
            }
        }
    }

    /// Looks for a key in the segment that was located for it.
    #[inline(always)]
    pub(super) fn lookup_in<'t>(
        &'t self,
        (segment, version): (&'t Segment, u32),
        key: Key,
    ) -> Lookup<'t> {
        Lookup { segment, version, hit: segment.find(&self.pool.pages, key, hash_of(key)) }
    }

    /// The segment of a key at this moment. It may be split before the caller locks it.
    pub(super) fn segment(&self, key: Key) -> Option<&Segment> {
        self.segment_of(hash_of(key)).map(|(_, segment)| segment)
    }

    /// True if the guard is that of the key's segment.
    pub(super) fn is_guard_of(&self, guard: &SegmentGuard<'_>, key: Key) -> bool {
        let hash = hash_of(key);
        self.segment_of(hash)
            .is_some_and(|(number, segment)| guard.is_of(segment) && guard.owns(number, hash))
    }

    /// Locks the segment of a key.
    pub(super) fn lock(&self, key: Key) -> SegmentGuard<'_> {
        self.lock_hash(hash_of(key))
    }

    fn lock_hash(&self, hash: u64) -> SegmentGuard<'_> {
        loop {
            if let Some((number, segment)) = self.segment_of(hash) {
                let guard = segment.lock();
                if guard.owns(number, hash) {
                    return guard;
                }
            }
        }
    }

    /// Looks for a key in its locked segment.
    pub(super) fn find(&self, guard: &SegmentGuard<'_>, key: Key) -> Option<LookupHit<'_>> {
        guard.find(&self.pool.pages, key, hash_of(key))
    }

    /// Locks the segment of a position in the scan order; returns where the next segment begins.
    ///
    /// Keys are scanned in the order of their hashes, read backwards. Then the keys of a segment stand together and
    /// keep their positions when it is split, so that a scan that is continued later meets every key once.
    pub(super) fn lock_at(&self, position: u64) -> (SegmentGuard<'_>, Option<u64>) {
        let guard = self.lock_hash(position.reverse_bits());
        let last = position | u64::MAX.checked_shr(guard.depth()).unwrap_or(0);
        (guard, last.checked_add(1))
    }

    /// Locks each segment in turn, in the scan order.
    pub(super) fn lock_each(&self) -> impl Iterator<Item = SegmentGuard<'_>> {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let (guard, behind) = self.lock_at(next?);
            next = behind;
            Some(guard)
        })
    }

    /// The keys of a locked segment.
    pub(super) fn keys_of(
        &self,
        guard: &SegmentGuard<'_>,
    ) -> impl Iterator<Item = (Key, PackedState)> + use<> {
        let mut keys = KeyList::new();
        guard.read_keys(&self.pool.pages, &mut keys);
        keys.into_iter()
    }

    /// Inserts the record of a new key, unless it is expired already.
    pub(super) fn insert_record(
        &self,
        guard: &SegmentGuard<'_>,
        key: Key,
        record: Record,
        now_us: u64,
    ) {
        if record.expires_us() > 0 {
            self.insert(guard, key, self.pack(guard, record), now_us);
        }
    }

    /// Packs a record, or moves it to the overflow.
    pub(super) fn pack(&self, guard: &SegmentGuard<'_>, record: Record) -> PackedState {
        PackedState::pack_record(&record, &self.specs).unwrap_or_else(|| {
            let state = PackedState::of_overflow(&record, &self.specs);
            state.with_overflow_index(guard.add_overflow(record))
        })
    }

    /// Reads the record of a key.
    pub(super) fn with_record<T>(
        &self,
        guard: &SegmentGuard<'_>,
        state: PackedState,
        read: impl FnOnce(&Record) -> T,
    ) -> Option<T> {
        match state.overflow_index() {
            Some(index) => guard.with_overflow(index, |record| read(record)),
            None => state.record(&self.specs).map(|record| read(&record)),
        }
    }

    /// Changes the record of a key, which is removed if it is expired afterwards.
    pub(super) fn change_record<T>(
        &self,
        guard: &SegmentGuard<'_>,
        hit: LookupHit<'_>,
        change: impl FnOnce(&mut Record) -> T,
    ) -> Option<T> {
        let (changed, state) = match hit.state.overflow_index() {
            None => {
                let mut record = hit.state.record(&self.specs)?;
                let changed = change(&mut record);
                (changed, (record.expires_us() > 0).then(|| self.pack(guard, record)))
            }
            Some(index) => guard.with_overflow(index, |record| {
                let changed = change(record);
                let in_place =
                    || PackedState::of_overflow(record, &self.specs).with_overflow_index(index);
                let pack =
                    || PackedState::pack_record(record, &self.specs).unwrap_or_else(in_place);
                (changed, (record.expires_us() > 0).then(pack))
            })?,
        };
        match state {
            None => self.remove(guard, hit),
            Some(state) => {
                if state.overflow_index().is_none() {
                    guard.discard_overflow(hit.state);
                }
                guard.set_state(hit, state.with_dirty(self.is_journaling()));
            }
        }
        Some(changed)
    }

    /// Marks a key as dirty, or as clean.
    pub(super) fn set_dirty(&self, guard: &SegmentGuard<'_>, key: Key, is_dirty: bool) {
        if let Some(hit) = self.find(guard, key) {
            guard.set_state(hit, hit.state.with_dirty(is_dirty));
        }
    }

    /// Removes a key that was reset, or whose charges were all given back.
    pub(super) fn remove(&self, guard: &SegmentGuard<'_>, hit: LookupHit<'_>) {
        if let Some(index) = guard.index_of(&self.pool.pages, hit) {
            self.note_reset(hit.slot.key());
            self.remove_slot(guard, index);
        }
    }

    fn remove_slot(&self, guard: &SegmentGuard<'_>, index: usize) {
        guard.remove(&self.pool.pages, index);
        self.pool.subtract(&self.usage, 1);
    }

    /// The segment of a hash and its number, as the table is just now.
    #[inline]
    fn segment_of(&self, hash: u64) -> Option<(usize, &Segment)> {
        let count = self.segment_count.load(Ordering::Acquire);
        let power = self.segment_power.load(Ordering::Acquire);
        let number = low_bits(hash, power * 2);
        let number = if number < count { number } else { low_bits(hash, power) };
        Some((number, self.segment_at(number)?))
    }

    #[inline]
    fn segment_at(&self, number: usize) -> Option<&Segment> {
        self.segments.get(number / CHUNK)?.0.get(number % CHUNK)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a power of two below the size of a table")]
fn low_bits(hash: u64, power: usize) -> usize {
    hash as usize & (power - 1)
}

/// The position of a key in the scan order.
pub(super) fn position_of(key: Key) -> (u64, Key) {
    (hash_of(key).reverse_bits(), key)
}

#[cfg(test)]
impl Table {
    /// When each key expires, in no order.
    pub(super) fn all_expires_us(&self) -> Vec<u64> {
        let expires_us =
            |guard| self.keys_of(&guard).map(|(_, state)| state.expires_us(&self.specs));
        self.lock_each().flat_map(expires_us).collect()
    }

    pub(super) fn all_keys(&self) -> Vec<Key> {
        self.lock_each().flat_map(|guard| self.keys_of(&guard).map(|(key, _)| key)).collect()
    }

    /// Removes some keys.
    pub(super) fn remove_where(&self, is_match: impl Fn(&Record) -> bool) {
        for guard in self.lock_each() {
            for (key, state) in self.keys_of(&guard) {
                if self.with_record(&guard, state, &is_match) == Some(true)
                    && let Some(hit) = self.find(&guard, key)
                    && let Some(index) = guard.index_of(&self.pool.pages, hit)
                {
                    self.remove_slot(&guard, index);
                }
            }
        }
    }
}
