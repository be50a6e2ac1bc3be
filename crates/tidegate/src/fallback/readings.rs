//! What the store last said of keys, for as many as there is room: a key has one place, which the
//! latest takes. Writing costs a decision next to nothing.

use crate::algorithm::Reading;
use crate::clock::Now;
use crate::key::Key;
use crate::plan::Level;
use crate::shards::{SHARDS, Shards};
use crate::units::Amount;

/// How many places a shard has.
const SHARD_PLACES: usize = 65_536 / SHARDS;

/// What was last heard of keys.
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// Empty until something is heard.
    shards: Shards<Vec<Place>>,
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
        let place = key.0 as usize % SHARD_PLACES;
        let mut places = self.shards.lock(key);
        if places.is_empty() {
            places.resize(SHARD_PLACES, None);
        }
        act(&mut places[place])
    }
}
