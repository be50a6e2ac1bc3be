//! Making room: growing, letting go of what means nothing, and of what means least where a limit's
//! share is full.

use super::Table;
use super::worth::{COMPARED_MIN, Worth};
use crate::key::Key;
use crate::store::memory::segment::{Held, KEYS_MAX, Keys, Segment, hash_of};
use crate::store::memory::slot::Words;
use crate::sync::Ordering;

/// The first segment is split when it has so many keys: until then it is exact who has to go.
const FIRST_SPLIT_AT: usize = 320;
/// How many keys there are for each segment, then. Those whose turn has not come have up to twice as
/// many, and so nearly always fewer than fit.
const KEYS_PER_SEGMENT: usize = 160;
/// How few there may be while saved keys come back, in the order of their segments.
const KEYS_WHERE_SPARSE: usize = 16;
/// How long a key that means nothing is left where it is: while there is room it may well come again. And
/// how many slots an insertion looks at for such keys in turn, beside those in which its own may stand.
const CALM: (u64, usize) = (60_000_000, 0);
/// The same where the share is nearly full.
const HURRIED: (u64, usize) = (500_000, 4);
/// How many other segments that have keys are asked.
const NEIGHBOURS: usize = 64;

impl Table {
    /// Puts a key in that is not there. Where the share is full, another goes.
    pub(in super::super) fn put_words(&self, held: &Held<'_>, key: Key, words: Words, now_us: u64) {
        self.latest_us.store(now_us, Ordering::Relaxed);
        let share = self.share.load(Ordering::Relaxed);
        if self.keys.fetch_add(1, Ordering::Relaxed) < share {
            self.sweep(held, key, now_us);
        } else {
            self.evict(held, now_us);
            // Somebody before may have found none that could go.
            if self.keys() > share {
                self.evict(held, now_us);
            }
        }
        let words = words.marked(self.is_tracked());
        if held.insert(&self.pages, key, words) {
            return;
        }
        // The segment is full before its turn to be split has come.
        self.evict(held, now_us);
        if !held.insert(&self.pages, key, words) {
            words.place().and_then(|place| held.take(place));
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Puts a key back that was saved. Where the share is full, the one goes that means least, and that
    /// may be this one.
    pub(in super::super) fn restore(&self, held: &Held<'_>, key: Key, words: Words, now_us: u64) {
        let is_full = self.keys() >= self.share.load(Ordering::Relaxed);
        let least = if is_full { self.least(held, now_us) } else { None };
        if least.is_some_and(|(least, _)| self.worth(held, words, now_us) < least) {
            words.place().and_then(|place| held.take(place));
            self.evicted.fetch_add(1, Ordering::Relaxed);
        } else {
            self.put_words(held, key, words, now_us);
        }
    }

    /// Splits the segment whose turn it is, if there are many keys by now. Nobody who calls this
    /// holds a segment.
    pub(in super::super) fn grow(&self) {
        let count = self.count.load(Ordering::Relaxed);
        if self.keys() > (count * KEYS_PER_SEGMENT).max(FIRST_SPLIT_AT) {
            self.split();
            // Those that are known to come are then put where they stay.
            let is_small = || self.count.load(Ordering::Relaxed) * KEYS_PER_SEGMENT < self.expected;
            while is_small() && self.split() {}
        }
    }

    /// Splits segments until there is room for a key that is put back. Saved keys come in the order of
    /// the segments that they were in, and fill one of a small table long before its turn.
    pub(in super::super) fn widen(&self, key: Key) {
        let share = self.share.load(Ordering::Relaxed);
        let is_full = || self.hold(key).len() >= KEYS_MAX && self.keys() < share;
        // Not for ever, where a file holds keys that no hash can tell apart.
        let may_split = || self.count.load(Ordering::Relaxed) < share / KEYS_WHERE_SPARSE;
        while is_full() && may_split() && self.split() {}
    }

    /// Splits the segment whose turn it is; returns whether there may be more. Nobody who calls this
    /// holds a segment.
    fn split(&self) -> bool {
        // Whoever else is at it does it for all.
        let Ok(_growing) = self.growing.try_lock() else { return true };
        let count = self.count.load(Ordering::Relaxed);
        let bits = count.ilog2();
        let old = self.segment_at(count - (1 << bits));
        let Some((old, new)) = old.zip(self.make_segment(count)) else { return false };
        let (old, new) = (old.hold(), new.hold());
        for held in [&old, &new] {
            held.set_depth(bits + 1);
        }
        self.divide(&old, &new, bits);
        self.count.store(count + 1, Ordering::Release);
        self.whole.store(1 << (count + 1).ilog2(), Ordering::Release);
        true
    }

    /// Moves the keys whose hash has this bit.
    fn divide(&self, old: &Held<'_>, new: &Held<'_>, bit: u32) {
        let (mut keys, mut moved) = (Keys::new(), Keys::new());
        old.read_keys(&self.pages, &mut keys);
        keys.retain(|(key, words)| {
            let moves = hash_of(*key) >> bit & 1 == 1;
            if moves {
                let record = words.place().and_then(|place| old.take(place));
                let kept = record.map(|record| self.keep(new, record).marked(words.is_changed()));
                moved.push((*key, kept.unwrap_or(*words)));
            }
            !moves
        });
        old.replace_all(&self.pages, &keys);
        new.replace_all(&self.pages, &moved);
    }

    /// From now on there may be so many keys: those that mean least go at once.
    pub(in super::super) fn shrink_to(&self, share: usize) {
        self.share.store(share, Ordering::Relaxed);
        let excess = self.keys().saturating_sub(share);
        if excess == 0 {
            return;
        }
        let latest_us = self.latest_us.load(Ordering::Relaxed);
        let mut worths: Vec<Worth> = Vec::with_capacity(self.keys());
        self.walk(|held, _, words| worths.push(self.worth(held, words, latest_us)));
        let last = excess.min(worths.len()).saturating_sub(1);
        let Some((_, &mut last, _)) =
            (!worths.is_empty()).then(|| worths.select_nth_unstable(last))
        else {
            return;
        };
        let less = worths.iter().filter(|worth| **worth < last).count();
        let mut ties = excess.saturating_sub(less);
        self.walk(|held, key, words| {
            let worth = self.worth(held, words, latest_us);
            let is_tie = worth == last && ties > 0;
            ties -= usize::from(is_tie);
            if (worth < last || is_tie)
                && let Some(found) = self.find(held, key)
                && let Some(slot) = held.slot_of(&self.pages, found)
            {
                self.let_go(held, slot, latest_us);
            }
        });
        self.give_pages_back();
    }

    /// Gives back the pages that segments do not need any more: what has few slots is soon looked
    /// through.
    fn give_pages_back(&self) {
        let mut next = Some(0);
        while let Some(position) = next {
            let (held, behind) = self.hold_at(position);
            let mut keys = Keys::new();
            held.read_keys(&self.pages, &mut keys);
            held.replace_all(&self.pages, &keys);
            next = behind;
        }
    }

    /// Lets go of what has meant nothing for a while where a key is going to stand: that is at hand.
    fn sweep(&self, held: &Held<'_>, key: Key, now_us: u64) {
        let share = self.share.load(Ordering::Relaxed);
        let (lingers_us, others) = if self.keys() > share - share / 8 { HURRIED } else { CALM };
        let others = (0..others).filter_map(|_| held.next_slot());
        for slot in held.slots_at_home(key).chain(others) {
            let Some((_, words)) = held.read(&self.pages, slot) else { continue };
            // No key ends before it was last charged, and when it ends takes longer to say.
            let has_lingered = |us: u64| us.saturating_add(lingers_us) <= now_us;
            if has_lingered(words.at_us()) && has_lingered(words.end_us(&self.specs)) {
                self.let_go(held, slot, now_us);
            }
        }
    }

    /// Lets go of the key that means least, in this segment or in another.
    fn evict(&self, held: &Held<'_>, now_us: u64) {
        let (mut least, mut elsewhere) = (self.least(held, now_us), None);
        let mut seen = held.len();
        let mut neighbours = self.neighbours();
        while seen < COMPARED_MIN
            && let Some(segment) = neighbours.next()
        {
            // It is not waited for: whoever has it may be waiting for this one.
            let Some(other) = segment.try_hold() else { continue };
            seen += other.len();
            let least_there = self.least(&other, now_us);
            if least_there.is_some() && (least.is_none() || least_there < least) {
                (least, elsewhere) = (least_there, Some(other));
            }
        }
        if let Some((_, slot)) = least {
            self.let_go(elsewhere.as_ref().unwrap_or(held), slot, now_us);
        }
    }

    /// Some segments that have keys, from where the last who asked has stopped.
    fn neighbours(&self) -> impl Iterator<Item = &Segment> {
        let count = self.count.load(Ordering::Relaxed);
        let start = self.roving.load(Ordering::Relaxed);
        let segment = move |offset| {
            let number = (start + offset) % count;
            let segment = self.segment_at(number).filter(|segment| segment.len() > 0)?;
            self.roving.store(number + 1, Ordering::Relaxed);
            Some(segment)
        };
        (0..count).filter_map(segment).take(NEIGHBOURS)
    }

    /// Lets a key go that makes room, which counts where it is live.
    fn let_go(&self, held: &Held<'_>, slot: usize, now_us: u64) {
        let Some((key, words)) = held.read(&self.pages, slot) else { return };
        let is_live = words.end_us(&self.specs) > now_us;
        if is_live {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        // What was told of a key before it changed may say that it lasts for longer. Where too many go to be
        // noted, it may come back with that: in a flood, better than that nothing can be told any more.
        if (is_live || words.is_changed()) && !self.note(key, self.notes_max()) {
            self.untold.store(true, Ordering::Relaxed);
        }
        self.forget(held, slot);
    }
}
