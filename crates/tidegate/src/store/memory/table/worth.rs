//! How much keys mean, where one of them has to go.

use super::Table;
use crate::store::memory::segment::Held;
use crate::store::memory::slot::Words;
use crate::sync::Ordering;

/// Among the keys of how many slots of a segment the one that goes is chosen, where there are several
/// segments.
const COMPARED: usize = 24;
/// Among how many keys at least. Where a segment has fewer, others are asked too: it has so few only in
/// a table that had many more once, and the first that is found there may be the one that means most.
pub(super) const COMPARED_MIN: usize = 8;

/// How much a key means: nothing when it has ended, else the more the nearer it is to its limit, and the
/// longer it will be so. Of a bucket, its end alone says both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Worth {
    /// One more than how much of its limit is used, of 255; zero when it has ended.
    fullness: u16,
    end_us: u64,
}

impl Table {
    /// How much a key means at an instant.
    pub(super) fn worth(&self, held: &Held<'_>, words: Words, now_us: u64) -> Worth {
        let end_us = words.end_us(&self.specs);
        if end_us <= now_us {
            return Worth { fullness: 0, end_us };
        }
        let fullness = match words.place() {
            Some(place) => held.look(place, |record| record.ledger.fullness(now_us)),
            None => words.fullness(&self.specs, now_us),
        };
        Worth { fullness: 1 + u16::from(fullness.unwrap_or(0)), end_us }
    }

    /// The key of a segment that means least, and its slot: of all, or of some in a table of many
    /// segments, but never of so few that it might be the one that means most.
    pub(super) fn least(&self, held: &Held<'_>, now_us: u64) -> Option<(Worth, usize)> {
        let all = self.count.load(Ordering::Relaxed) == 1;
        let (mut least, mut compared) = (None, 0);
        for looked_at in 0..held.slots() {
            if !all && looked_at >= COMPARED && compared >= COMPARED_MIN {
                break;
            }
            let Some(slot) = held.next_slot() else { break };
            let Some((_, words)) = held.read(&self.pages, slot) else { continue };
            let found = (self.worth(held, words, now_us), slot);
            least = Some(least.map_or(found, |least: (Worth, usize)| least.min(found)));
            compared += 1;
        }
        least
    }
}
