//! How much keys mean, where one of them has to go.

use std::sync::atomic::Ordering;

use super::Table;
use crate::store::memory::segment::Held;
use crate::store::memory::slot::Words;

/// Among how many keys of a segment the one that goes is chosen, where there are several segments.
const COMPARED: usize = 24;
/// Where a segment has fewer keys, others are asked too: it has so few only in a table that had many
/// more once, and the first that is found there may be the one that means most.
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
    /// segments.
    pub(super) fn least(&self, held: &Held<'_>, now_us: u64) -> Option<(Worth, usize)> {
        let (slots, all) = (held.slots(), self.count.load(Ordering::Relaxed) == 1);
        let few = all || held.len() < COMPARED_MIN;
        let worth = |_| {
            let slot = held.next_slot()?;
            let (_, words) = held.read(&self.pages, slot)?;
            Some((self.worth(held, words, now_us), slot))
        };
        let looked_at = if few { slots } else { COMPARED.min(slots) };
        let least = (0..looked_at).filter_map(worth).min();
        least.or_else(|| (looked_at..slots).filter_map(worth).min())
    }
}
