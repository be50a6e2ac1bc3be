//! What the store last said of keys, for as many as there is room: a key has one place, which the
//! latest takes. Writing costs a decision next to nothing.

use std::sync::{Mutex, PoisonError};

use crate::algorithm::Reading;
use crate::clock::Now;
use crate::key::Key;
use crate::plan::Level;
use crate::units::Amount;

/// Keys in different shards do not wait for each other.
const SHARDS: usize = 16;
/// How many places a shard has.
const PLACES: usize = 4096;

/// What was last heard of keys.
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// Empty until something is heard.
    shards: [Mutex<Vec<Place>>; SHARDS],
}

/// Where one key is remembered.
type Place = Option<(Key, Owing)>;

/// What a key owed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owing {
    pub(super) owed: Amount,
    pub(super) at: Now,
}

impl Readings {
    pub(super) fn note(&self, level: &Level, reading: &Reading, at: Now) {
        let owed = level.spec.capacity().saturating_sub(reading.available);
        self.with(level.key, |place| *place = Some((level.key, Owing { owed, at })));
    }

    pub(super) fn of(&self, key: Key) -> Option<Owing> {
        self.with(key, |place| place.filter(|(held, _)| *held == key).map(|(_, owing)| owing))
    }

    pub(super) fn forget(&self, key: Key) {
        self.with(key, |place| *place = place.filter(|(held, _)| *held != key));
    }

    /// Does something with the place of a key. A key is a hash already.
    fn with<T>(&self, key: Key, act: impl FnOnce(&mut Place) -> T) -> T {
        #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let (shard, place) = ((key.0 >> 64) as usize % SHARDS, key.0 as usize % PLACES);
        let mut places = self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner);
        if places.is_empty() {
            places.resize(PLACES, None);
        }
        act(&mut places[place])
    }
}
