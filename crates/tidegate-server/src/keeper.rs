//! Looks after all connections of a listener: those that take too long end, and all of them end once
//! draining has begun.
//!
//! One task looks at every connection now and then. A timer in each of them would be asked again
//! whenever one of its requests comes or goes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::drain::Drain;
use crate::pace::{Late, Pace, Pulse};

/// How long a drained connection may stay idle before it is closed: its next request may be on the
/// way already.
const DRAIN_IDLE: Duration = Duration::from_millis(500);
/// How often drained connections are looked at.
const DRAIN_CHECK: Duration = Duration::from_millis(50);
/// How long a connection without a request may take to end.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Looks after the connections of one listener.
pub(crate) struct Keeper {
    pace: Pace,
    next: AtomicU64,
    connections: Mutex<HashMap<u64, Kept>>,
}

/// A connection, as the keeper knows it.
struct Kept {
    pulse: Arc<Pulse>,
    told: Arc<Told>,
    finishing: Option<Instant>,
}

/// A connection's place with the keeper, until it is dropped.
pub(crate) struct Watched {
    keeper: Arc<Keeper>,
    number: u64,
    told: Arc<Told>,
}

/// What the keeper has told a connection.
#[derive(Default)]
struct Told {
    end: AtomicU8,
    waker: OnceLock<Waker>,
}

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Once its requests are answered.
    Finish = 1,
    Drop = 2,
}

impl Keeper {
    pub(crate) fn new(pace: Pace) -> Arc<Self> {
        Arc::new(Self { pace, next: AtomicU64::new(0), connections: Mutex::default() })
    }

    /// Looks after a connection from now on.
    pub(crate) fn watch(self: &Arc<Self>, pulse: Arc<Pulse>) -> Watched {
        let (number, told) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::<Told>::default());
        let kept = Kept { pulse, told: Arc::clone(&told), finishing: None };
        self.connections().insert(number, kept);
        Watched { keeper: Arc::clone(self), number, told }
    }

    /// Looks at all connections again and again; never ends.
    pub(crate) async fn keep(&self, drain: &Drain) {
        while timeout(self.pace.check_every(), drain.started()).await.is_err() {
            self.look(None);
        }
        let drained = Instant::now();
        let mut check = interval(DRAIN_CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            check.tick().await;
            self.look(Some(drained));
        }
    }

    fn look(&self, drained: Option<Instant>) {
        for kept in self.connections().values_mut() {
            if let Some(end) = kept.end(&self.pace, drained) {
                kept.told.tell(end);
            }
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Kept>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// How it is to end, if it is.
    fn end(&mut self, pace: &Pace, drained: Option<Instant>) -> Option<End> {
        if self.due(pace, drained)? == End::Drop {
            return Some(End::Drop);
        }
        let since = *self.finishing.get_or_insert_with(Instant::now);
        // HTTP/2 asks the peer for a last word, which may never come.
        let idle_for = self.pulse.idle_for().map(|idle_for| idle_for.min(since.elapsed()));
        let is_over = idle_for.is_some_and(|idle_for| idle_for >= LAST_WORD);
        Some(if is_over { End::Drop } else { End::Finish })
    }

    /// How it should end, however long that takes.
    fn due(&self, pace: &Pace, drained: Option<Instant>) -> Option<End> {
        match self.pulse.late(pace) {
            // Whoever stalls gets no further attention.
            Some(Late::Head | Late::Stalled) => return Some(End::Drop),
            Some(Late::Idle) => return Some(End::Finish),
            None => {}
        }
        // HTTP/2 has a word for it; in HTTP/1.1 the next request may be on the way already.
        let idle_for = self.pulse.idle_for().unwrap_or_default().min(drained?.elapsed());
        let is_quiet = idle_for >= DRAIN_IDLE && !self.pulse.is_inside_head();
        (self.pulse.is_multiplexed() || is_quiet).then_some(End::Finish)
    }
}

impl Watched {
    /// How the connection is to end, if it is; whenever that changes, its task is woken.
    pub(crate) fn end(&self, waker: &Waker) -> Option<End> {
        // A task has one waker as long as it lives.
        self.told.waker.get_or_init(|| waker.clone());
        match self.told.end.load(Ordering::Acquire) {
            0 => None,
            1 => Some(End::Finish),
            _ => Some(End::Drop),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.keeper.connections().remove(&self.number);
    }
}

impl Told {
    /// Told again at every look, should a first poll at that moment have missed it.
    fn tell(&self, end: End) {
        self.end.store(end as u8, Ordering::Release);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }
}
