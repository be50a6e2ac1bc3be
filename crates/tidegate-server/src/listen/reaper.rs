//! The reaper: ends the connections of one listener that exceed a timeout, and all of them once a drain
//! has started.
//!
//! One task looks at every connection now and then. A timer in each connection would be reset whenever
//! one of its requests comes or goes.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::engine::identity::ClientNetwork;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::ListenerBounds;
use super::registry::Registry;
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
    /// What all connections hold of their answers, in bytes.
    untaken_bytes: Arc<AtomicUsize>,
    registry: Mutex<Registry>,
}

#[derive(Debug)]
pub(super) struct ReaperEntry {
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
    client: Option<ClientNetwork>,
    number: u64,
    activity: Arc<ConnectionActivity>,
    end: watch::Receiver<Option<ConnectionEnd>>,
}

/// The place of a connection among those of its listener, until it is dropped.
pub(super) struct ConnectionPlace {
    reaper: Arc<Reaper>,
    client: Option<ClientNetwork>,
}

impl Reaper {
    pub(super) fn new(bounds: &ListenerBounds) -> Arc<Self> {
        let registry = Registry::new(bounds.connections_max, bounds.address_share);
        let (timeouts, registry) = (bounds.timeouts, Mutex::new(registry));
        Arc::new(Self { timeouts, untaken_bytes: Arc::default(), registry })
    }

    /// Takes a new connection from a client, unless the client has its share of them. An address that
    /// stands for everybody is no client.
    pub(super) fn register(
        self: &Arc<Self>,
        client: Option<ClientNetwork>,
    ) -> Option<(Registration, ConnectionPlace)> {
        let mut registry = self.registry();
        if !registry.take_place(client) {
            return None;
        }
        let place = ConnectionPlace { reaper: Arc::clone(self), client };
        let activity = ConnectionActivity::new(&self.timeouts, Arc::clone(&self.untaken_bytes));
        let (entry, end) = ReaperEntry::new(Arc::clone(&activity));
        let number = registry.add(client, entry);
        Some((Registration { reaper: Arc::clone(self), client, number, activity, end }, place))
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
        for entry in self.registry().entries.values_mut() {
            entry.check(&self.timeouts, draining_since);
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaperEntry {
    pub(super) fn new(
        activity: Arc<ConnectionActivity>,
    ) -> (Self, watch::Receiver<Option<ConnectionEnd>>) {
        let (sender, end) = watch::channel(None);
        (Self { activity, end: sender, finishing_since: None }, end)
    }

    #[cfg(test)]
    pub(super) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }

    /// Since when no request is being answered, if none is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.activity.lock().idle_since()
    }

    /// True if the connection is about to be dropped.
    pub(super) fn is_dropped(&self) -> bool {
        *self.end.borrow() == Some(ConnectionEnd::Drop)
    }

    /// Tells the connection how to end. One that is dropped cannot finish.
    pub(super) fn end(&self, end: ConnectionEnd) {
        self.end.send_if_modified(|known| {
            *known != Some(ConnectionEnd::Drop) && known.replace(end) != Some(end)
        });
    }

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
        drop(activity);
        self.end(end);
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
    pub(super) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }

    /// Waits until the connection is to be dropped.
    pub(super) async fn dropped(&mut self) {
        while self.next_end().await != ConnectionEnd::Drop {}
    }

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
        self.reaper.registry().remove(self.number, self.client);
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.reaper.registry().give_back(self.client);
    }
}
