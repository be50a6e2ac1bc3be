//! The keys of one limit.
//!
//! They are spread over segments by their hash. There are as many segments as the keys need: one for a
//! small limit, and from then on each further one takes half of the keys of one before it, in turn
//! (linear hashing), so that no request ever waits for a table to be copied.

mod glances;
mod room;
mod walk;
mod worth;

use std::sync::{Arc, PoisonError};

pub(super) use glances::{AT_ONCE, Several, Sought};
pub(super) use walk::place_of;

use super::changes::{GONE_MIN, Gone};
use super::pages::{Line, Pages};
use super::record::Record;
use super::segment::{Found, Held, Segment, hash_of};
use super::shelf::Shelf;
use super::slot::Words;
use super::specs::Specs;
use crate::key::Key;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};

/// The keys of one limit.
#[derive(Debug)]
pub(crate) struct Table {
    segments: Shelf<Segments>,
    /// One without keys, in place of one that is not there: which none in use is.
    nobodys: Segment,
    /// A line that nobody is in.
    nowhere: Line,
    /// How many segments are in use.
    count: AtomicUsize,
    /// The largest power of two that is no larger.
    whole: AtomicUsize,
    pages: Pages,
    pub(super) specs: Specs,
    keys: AtomicUsize,
    /// How many keys there may be.
    share: AtomicUsize,
    /// How many are known to come.
    expected: usize,
    /// Whether the store has done away with it.
    retired: AtomicBool,
    /// When a key was last put in.
    latest_us: AtomicU64,
    /// The segment that is asked next for a key that can go, where another has none.
    roving: AtomicUsize,
    /// Of the whole store.
    evicted: Arc<AtomicU64>,
    /// Held by whoever splits a segment.
    growing: Mutex<()>,
    /// Whether somebody is told of changes.
    tracked: Arc<AtomicBool>,
    /// Whether more were reset than could be noted, then.
    lost: Arc<AtomicBool>,
    /// Whether a key made room that nobody is told of, then.
    untold: AtomicBool,
    /// The keys that went and did not just end, then; some may be there twice.
    gone: Mutex<Vec<Key>>,
}

/// How many segments are made at once.
const LOT: usize = 256;

#[derive(Debug)]
struct Segments(Box<[Segment; LOT]>);

impl Default for Segments {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| Segment::default())))
    }
}

/// How many segments there are, and the largest power of two that is no larger.
pub(super) type Extent = (usize, usize);

/// What was seen of a key without holding its segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glance<'t> {
    pub(super) segment: &'t Segment,
    pub(super) version: u32,
    pub(super) found: Option<Found<'t>>,
}

impl Glance<'_> {
    /// Whether the key says what it said.
    pub(super) fn is_as_seen(&self) -> bool {
        self.found.is_none_or(|found| found.cell.words() == found.words)
    }
}

impl Table {
    pub(super) fn new(
        share: usize,
        evicted: Arc<AtomicU64>,
        tracked: Arc<AtomicBool>,
        lost: Arc<AtomicBool>,
    ) -> Self {
        let segments = Shelf::default();
        segments.make(0);
        Self {
            segments,
            nobodys: Segment::default(),
            nowhere: Line::default(),
            count: AtomicUsize::new(1),
            whole: AtomicUsize::new(1),
            pages: Pages::default(),
            specs: Specs::default(),
            keys: AtomicUsize::new(0),
            share: AtomicUsize::new(share),
            expected: 0,
            retired: AtomicBool::new(false),
            latest_us: AtomicU64::new(0),
            roving: AtomicUsize::new(0),
            evicted,
            growing: Mutex::default(),
            tracked,
            lost,
            untold: AtomicBool::new(false),
            gone: Mutex::default(),
        }
    }

    /// The same, where so many keys are known to come.
    pub(super) fn expecting(self, keys: usize) -> Self {
        Self { expected: keys, ..self }
    }

    /// How many keys it holds, those that are empty of meaning included.
    pub(crate) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Does away with it: whoever still has it asks the store again.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Looks for a key without holding anything.
    #[inline(always)]
    pub(super) fn glance(&self, key: Key) -> Glance<'_> {
        let hash = hash_of(key);
        loop {
            if let Some((number, segment)) = self.segment_of(hash) {
                let version = segment.version();
                if segment.owns(number, hash) {
                    let found = segment.find(&self.pages, key, hash);
                    return Glance { segment, version, found };
                }
            }
        }
    }

    /// The segment of a key by now; another by the time that it is held, maybe.
    pub(super) fn segment(&self, key: Key) -> Option<&Segment> {
        self.segment_of(hash_of(key)).map(|(_, segment)| segment)
    }

    /// Whether a segment that is held is the one of a key.
    pub(super) fn is_held(&self, held: &Held<'_>, key: Key) -> bool {
        let hash = hash_of(key);
        self.segment_of(hash).is_some_and(|(number, segment)| {
            std::ptr::eq(segment, &raw const **held) && held.owns(number, hash)
        })
    }

    /// Holds the segment of a key.
    pub(super) fn hold(&self, key: Key) -> Held<'_> {
        let hash = hash_of(key);
        loop {
            if let Some((number, segment)) = self.segment_of(hash) {
                let held = segment.hold();
                if held.owns(number, hash) {
                    return held;
                }
            }
        }
    }

    /// Looks for a key in its segment.
    pub(super) fn find(&self, held: &Held<'_>, key: Key) -> Option<Found<'_>> {
        held.find(&self.pages, key, hash_of(key))
    }

    /// Writes what a key owes now.
    #[inline]
    pub(super) fn set(&self, held: &Held<'_>, found: Found<'_>, words: Words) {
        held.set(found, words.marked(self.is_tracked()));
    }

    /// Whether somebody is told of changes.
    #[inline]
    pub(super) fn is_tracked(&self) -> bool {
        self.tracked.load(Ordering::Relaxed)
    }

    /// Puts a record in, of a key that is not there, unless it means nothing.
    pub(super) fn put(&self, held: &Held<'_>, key: Key, record: Record, now_us: u64) {
        if record.end_us() > 0 {
            let packed = Words::pack_record(&record, &self.specs);
            let words = packed.unwrap_or_else(|| self.keep(held, record));
            self.put_words(held, key, words, now_us);
        }
    }

    /// Keeps a record in full; returns what its slot says.
    pub(super) fn keep(&self, held: &Held<'_>, record: Record) -> Words {
        Words::boxed(&record, &self.specs).at_place(held.keep(record))
    }

    /// All that is known of a key.
    pub(super) fn record(&self, held: &Held<'_>, words: Words) -> Option<Record> {
        match words.place() {
            Some(place) => held.look(place, |record| record.clone()),
            None => words.record(&self.specs),
        }
    }

    /// Looks at the record of a key.
    pub(super) fn look<T>(
        &self,
        held: &Held<'_>,
        words: Words,
        look: impl FnOnce(&Record) -> T,
    ) -> Option<T> {
        match words.place() {
            Some(place) => held.look(place, |record| look(record)),
            None => words.record(&self.specs).map(|record| look(&record)),
        }
    }

    /// Changes the record of a key; a key that means nothing afterwards goes.
    pub(super) fn change<T>(
        &self,
        held: &Held<'_>,
        found: Found<'_>,
        change: impl FnOnce(&mut Record) -> T,
    ) -> Option<T> {
        let Some(place) = found.words.place() else {
            let mut record = found.words.record(&self.specs)?;
            let changed = change(&mut record);
            if record.end_us() == 0 {
                self.remove(held, found);
            } else {
                let packed = Words::pack_record(&record, &self.specs);
                self.set(held, found, packed.unwrap_or_else(|| self.keep(held, record)));
            }
            return Some(changed);
        };
        let (changed, end_us, packed, boxed) = held.look(place, |record| {
            let changed = change(record);
            let packed = Words::pack_record(record, &self.specs);
            (changed, record.end_us(), packed, Words::boxed(record, &self.specs))
        })?;
        if end_us == 0 {
            self.remove(held, found);
        } else if let Some(packed) = packed {
            held.take(place);
            self.set(held, found, packed);
        } else {
            self.set(held, found, boxed.at_place(place));
        }
        Some(changed)
    }

    /// Marks a key that somebody is to be told of, or takes the mark off.
    pub(super) fn mark(&self, held: &Held<'_>, key: Key, changed: bool) {
        if let Some(found) = self.find(held, key) {
            held.set(found, found.words.marked(changed));
        }
    }

    /// Takes a key out that somebody has reset or given all back.
    pub(super) fn remove(&self, held: &Held<'_>, found: Found<'_>) {
        let Some(slot) = held.slot_of(&self.pages, found) else { return };
        self.note_reset(found.cell.key());
        self.forget(held, slot);
    }

    /// Notes that a key must not come back, whether it is there or not. Where there is no room for that, who
    /// is told must begin anew.
    pub(super) fn note_reset(&self, key: Key) {
        if !self.note(key, 2 * self.notes_max()) {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a key may come back that has made room, because nobody is told of it.
    pub(super) fn has_untold(&self) -> bool {
        self.untold.load(Ordering::Relaxed)
    }

    /// The keys that went since the last call.
    pub(super) fn take_gone(&self) -> Gone {
        let gone = std::mem::take(&mut *self.gone.lock().unwrap_or_else(PoisonError::into_inner));
        gone.into_iter().collect()
    }

    /// How many keys are noted that had to make room, until somebody looks.
    fn notes_max(&self) -> usize {
        (self.share.load(Ordering::Relaxed) / 4).max(GONE_MIN)
    }

    /// Notes that a key went, where somebody is told; false where so many are noted that there is no room.
    fn note(&self, key: Key, max: usize) -> bool {
        if !self.is_tracked() {
            return true;
        }
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = gone.len() < max;
        if has_room {
            gone.push(key);
        }
        has_room
    }

    /// Lets a key go.
    fn forget(&self, held: &Held<'_>, slot: usize) {
        held.remove(&self.pages, slot);
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// The segment that keys of a hash belong to, and its number, by the number of segments that there
    /// are just now.
    #[inline]
    fn segment_of(&self, hash: u64) -> Option<(usize, &Segment)> {
        self.segment_within(self.extent(), hash)
    }

    /// How many segments there are, and the largest power of two that is no larger.
    ///
    /// That is not worked out here: the instruction for it waits for whatever its register held before,
    /// which may be a word that is on its way from memory, and then nothing overlaps.
    #[inline]
    pub(super) fn extent(&self) -> Extent {
        (self.count.load(Ordering::Acquire), self.whole.load(Ordering::Acquire))
    }

    #[inline]
    fn segment_within(&self, extent: Extent, hash: u64) -> Option<(usize, &Segment)> {
        let (count, whole) = extent;
        let number = low_bits(hash, whole * 2);
        let number = if number < count { number } else { low_bits(hash, whole) };
        Some((number, self.segment_at(number)?))
    }

    #[inline]
    fn segment_at(&self, number: usize) -> Option<&Segment> {
        self.segments.get(number / LOT)?.0.get(number % LOT)
    }

    fn make_segment(&self, number: usize) -> Option<&Segment> {
        self.segments.make(number / LOT)?.0.get(number % LOT)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a power of two below the size of a table")]
fn low_bits(hash: u64, power: usize) -> usize {
    hash as usize & (power - 1)
}
