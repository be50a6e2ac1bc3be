//! The reaper: ends the connections of one listener that exceed a timeout, and all of them once a drain
//! has started.
//!
//! One task looks at every connection now and then. A timer in each connection would be reset whenever
//! one of its requests comes or goes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::timeouts::{ActivityState, ConnectionActivity, ConnectionTimeouts, ExceededTimeout};
use crate::drain::Drain;

/// How long a connection may stay idle during a drain: its next request may be on the way already.
const DRAIN_IDLE: Duration = Duration::from_millis(500);
/// How often connections are looked at during a drain.
const DRAIN_CHECK: Duration = Duration::from_millis(50);
/// How long a finishing connection without a request may take: HTTP/2 waits for a last word of the peer.
const FINISH_IDLE: Duration = Duration::from_secs(1);

pub(super) struct Reaper {
    timeouts: ConnectionTimeouts,
    next: AtomicU64,
    connections: Mutex<HashMap<u64, ReaperEntry>>,
}

struct ReaperEntry {
    activity: Arc<ConnectionActivity>,
    end: watch::Sender<Option<ConnectionEnd>>,
    finishing_since: Option<Instant>,
}

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// Once its requests are answered.
    Finish,
    Drop,
}

/// A connection's registration with the reaper, until it is dropped.
pub(super) struct Registration {
    reaper: Arc<Reaper>,
    number: u64,
    end: watch::Receiver<Option<ConnectionEnd>>,
}

impl Reaper {
    pub(super) fn new(timeouts: ConnectionTimeouts) -> Arc<Self> {
        Arc::new(Self { timeouts, next: AtomicU64::new(0), connections: Mutex::default() })
    }

    pub(super) fn register(self: &Arc<Self>, activity: Arc<ConnectionActivity>) -> Registration {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, end) = watch::channel(None);
        let entry = ReaperEntry { activity, end: sender, finishing_since: None };
        self.connections().insert(number, entry);
        Registration { reaper: Arc::clone(self), number, end }
    }

    /// Looks at all connections again and again; never returns.
    pub(super) async fn run(&self, drain: &Drain) {
        while timeout(self.timeouts.check_interval(), drain.started()).await.is_err() {
            self.check_all(None);
        }
        let draining_since = Instant::now();
        let mut check = interval(DRAIN_CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            check.tick().await;
            self.check_all(Some(draining_since));
        }
    }

    fn check_all(&self, draining_since: Option<Instant>) {
        for entry in self.connections().values_mut() {
            entry.check(&self.timeouts, draining_since);
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, ReaperEntry>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaperEntry {
    fn check(&mut self, timeouts: &ConnectionTimeouts, draining_since: Option<Instant>) {
        let activity = self.activity.lock();
        let Some(mut end) = due_end(&activity, timeouts, draining_since) else { return };
        if end == ConnectionEnd::Finish {
            let since = *self.finishing_since.get_or_insert_with(Instant::now);
            let idle_for = activity.idle_for().map(|idle_for| idle_for.min(since.elapsed()));
            if idle_for.is_some_and(|idle_for| idle_for >= FINISH_IDLE) {
                end = ConnectionEnd::Drop;
            }
        }
        self.end.send_if_modified(|known| known.replace(end) != Some(end));
    }
}

/// How a connection should end, if it should.
fn due_end(
    activity: &ActivityState,
    timeouts: &ConnectionTimeouts,
    draining_since: Option<Instant>,
) -> Option<ConnectionEnd> {
    match activity.exceeded(timeouts) {
        Some(ExceededTimeout::Head | ExceededTimeout::Stalled) => return Some(ConnectionEnd::Drop),
        Some(ExceededTimeout::Idle) => return Some(ConnectionEnd::Finish),
        None => {}
    }
    // HTTP/2 can announce the end; in HTTP/1.1 the next request may be on the way already.
    let idle_for = activity.idle_for().unwrap_or_default().min(draining_since?.elapsed());
    let is_quiet = idle_for >= DRAIN_IDLE && !activity.is_inside_head();
    (activity.is_http2() || is_quiet).then_some(ConnectionEnd::Finish)
}

impl Registration {
    /// Waits until the reaper says how the connection is to end, or changes its mind.
    pub(super) async fn next_end(&mut self) -> ConnectionEnd {
        // The sender is in the reaper until the registration is dropped, so this cannot fail.
        while self.end.changed().await.is_ok() {
            if let Some(end) = *self.end.borrow_and_update() {
                return end;
            }
        }
        std::future::pending().await
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.reaper.connections().remove(&self.number);
    }
}
