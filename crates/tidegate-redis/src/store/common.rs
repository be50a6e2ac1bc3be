//! What all servers of a store share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate::clock::SystemClock;
use tokio::sync::watch;

use super::lanes::{Lane, Lanes};
use crate::config::{Config, Place};
use crate::script::{self, Sequence, Time};
use crate::{keys, slot};

/// The time of the server's own clock.
const SERVER_TIME: u64 = 0;

/// What all servers of a store share.
pub(crate) struct Common {
    /// What the names of all keys begin with.
    pub(crate) front: Arc<str>,
    /// What the names of all that belongs to the deployment as a whole begin with.
    pub(crate) own: String,
    pub(crate) timeout: Duration,
    pub(crate) clock: SystemClock,
    pub(super) lanes: Lanes,
    /// Whether keys lie in several slots.
    pub(super) in_slots: bool,
    /// Told whenever the state of any server changes, or which servers there are.
    pub(crate) news: watch::Sender<()>,
    /// A digest of what this node hashes keys with, once that is certain.
    pub(crate) digest: OnceLock<String>,
    /// How many nodes have another.
    pub(crate) strangers: AtomicU32,
    /// The time to go by in tests.
    fixed_us: AtomicU64,
}

impl Common {
    pub(super) fn new(config: &Config) -> Self {
        let front = config.front();
        let in_slots = matches!(config.place, Place::Cluster { .. }) && config.tag.is_none();
        Self {
            own: keys::own(&front, in_slots),
            front,
            timeout: config.timeout,
            clock: SystemClock::new(),
            lanes: Lanes::new(),
            in_slots,
            news: watch::Sender::new(()),
            digest: OnceLock::new(),
            strangers: AtomicU32::new(0),
            fixed_us: AtomicU64::new(SERVER_TIME),
        }
    }

    pub(super) fn go_by(&self, time: Time) {
        let fixed_us = match time {
            Time::Server => SERVER_TIME,
            Time::Fixed(unix_us) => unix_us,
        };
        self.fixed_us.store(fixed_us, Ordering::SeqCst);
    }

    /// The first argument of every call.
    pub(super) fn header(&self, lane: Option<&Lane<'_>>) -> Vec<u8> {
        let time = match self.fixed_us.load(Ordering::SeqCst) {
            SERVER_TIME => Time::Server,
            unix_us => Time::Fixed(unix_us),
        };
        script::header(time, lane.map(|lane| Sequence(lane.number)))
    }

    /// The key of a lane, in the same slot as everything else in the call.
    pub(super) fn key_of(&self, lane: &Lane<'_>, slot: u16) -> Vec<u8> {
        let name = lane.name();
        if self.in_slots {
            return keys::lane(&self.front, &format!("{{{}}}:{name}", slot::tag(slot)));
        }
        keys::lane(&self.front, &name)
    }
}
