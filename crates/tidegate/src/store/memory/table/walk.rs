//! Going through the keys of a table, segment by segment, while it is in use.
//!
//! The order is that of their hashes read backwards: the keys of a segment then stand together, and
//! stay in their places when it is split, so that whoever goes on where they stopped meets every key
//! once.

use super::Table;
use crate::key::Key;
use crate::store::memory::segment::{Held, Keys, hash_of};
use crate::store::memory::slot::Words;

/// The place of a key in the order.
pub(in super::super) fn place_of(key: Key) -> (u64, Key) {
    (hash_of(key).reverse_bits(), key)
}

impl Table {
    /// Holds the segment that a place in the order belongs to; says where the next one begins.
    pub(in super::super) fn hold_at(&self, position: u64) -> (Held<'_>, Option<u64>) {
        let hash = position.reverse_bits();
        loop {
            let Some((number, segment)) = self.segment_of(hash) else { continue };
            let held = segment.hold();
            if held.owns(number, hash) {
                let last = position | u64::MAX.checked_shr(held.depth()).unwrap_or(0);
                return (held, last.checked_add(1));
            }
        }
    }

    /// The keys of a segment that is held.
    pub(in super::super) fn keys_of(
        &self,
        held: &Held<'_>,
    ) -> impl Iterator<Item = (Key, Words)> + use<> {
        let mut keys = Keys::new();
        held.read_keys(&self.pages, &mut keys);
        keys.into_iter()
    }

    /// All keys there are.
    pub(in super::super) fn all_keys(&self) -> Vec<Key> {
        let (mut keys, mut next) = (Vec::with_capacity(self.keys()), Some(0));
        while let Some(position) = next {
            let (held, behind) = self.hold_at(position);
            keys.extend(self.keys_of(&held).map(|(key, _)| key));
            next = behind;
        }
        keys
    }

    /// Goes through all keys.
    pub(super) fn walk(&self, mut each: impl FnMut(&Held<'_>, Key, Words)) {
        let mut next = Some(0);
        while let Some(position) = next {
            let (held, behind) = self.hold_at(position);
            next = behind;
            self.keys_of(&held).for_each(|(key, words)| each(&held, key, words));
        }
    }
}

#[cfg(test)]
impl Table {
    /// When each key ends, in no order.
    pub(in super::super) fn ends_us(&self) -> Vec<u64> {
        let mut ends_us = Vec::new();
        self.walk(|_, _, words| ends_us.push(words.end_us(&self.specs)));
        ends_us
    }

    /// Lets go of some keys.
    pub(in super::super) fn let_go_where(
        &self,
        over: impl Fn(&crate::store::memory::record::Record) -> bool,
    ) {
        self.walk(|held, key, words| {
            if self.look(held, words, &over) == Some(true)
                && let Some(found) = self.find(held, key)
                && let Some(slot) = held.slot_of(&self.pages, found)
            {
                self.forget(held, slot);
            }
        });
    }
}
