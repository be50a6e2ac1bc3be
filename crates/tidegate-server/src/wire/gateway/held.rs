//! What an admitted request holds: to be settled by its answer, and to be given back at its end.
//!
//! Both happen before the client can know of it: one that sends its next request as soon as it has
//! its answer finds the place free. Dropping the guard is enough, so that nothing that happens to
//! the request, be it cancelled or panicking, leaves a place taken.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::StatusCode;
use tidegate::{Reservation, Settlement};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::app::App;

/// Holds a lease until it is dropped, and settles it then at the latest. Dropped before its answer
/// is known, the request was cut off.
pub(super) struct LeaseGuard {
    kept: Arc<Kept>,
    /// What has become of the request so far; `None` once that is settled.
    outcome: Option<Settlement>,
    /// Keeps a place beyond its lease.
    renewing: Option<AbortHandle>,
}

struct Kept {
    app: Arc<App>,
    lease: Mutex<Reservation>,
}

impl LeaseGuard {
    pub(super) fn new(app: Arc<App>, lease: Reservation) -> Self {
        let every = lease.holds_place().then(|| lease.renew_within()).flatten();
        let kept = Arc::new(Kept { app, lease: Mutex::new(lease) });
        let renewing = every.map(|within| {
            let every = (within / 3).max(Duration::from_millis(1));
            tokio::spawn(renew(Arc::clone(&kept), every)).abort_handle()
        });
        Self { kept, outcome: Some(Settlement::Aborted), renewing }
    }

    /// The answer has begun with this status, which counts unless the upstream breaks it off. A client
    /// that goes away in the middle changes nothing, or it could choose what is counted.
    pub(super) fn answered(&mut self, status: StatusCode) {
        self.set(Settlement::Status(status.as_u16()));
    }

    /// The upstream did not bring its answer to an end.
    pub(super) fn broken_off(&mut self) {
        self.set(Settlement::Aborted);
    }

    /// Nothing that happens from now on counts.
    pub(super) fn settle(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            let kept = Arc::clone(&self.kept);
            now_or_soon(async move { kept.settle(outcome).await });
        }
    }

    fn set(&mut self, outcome: Settlement) {
        if let Some(known) = &mut self.outcome {
            *known = outcome;
        }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.settle();
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
            let kept = Arc::clone(&self.kept);
            now_or_soon(async move { kept.release().await });
        }
    }
}

impl Kept {
    async fn settle(&self, outcome: Settlement) {
        let mut lease = self.lease.lock().await;
        if let Err(error) = self.app.engine.settle(&mut lease, outcome).await {
            self.app.store_failed(&error, "an answer is not settled; its request stays charged");
        }
    }

    async fn release(&self) {
        let mut lease = self.lease.lock().await;
        if let Err(error) = self.app.engine.release(&mut lease).await {
            self.app.store_failed(&error, "a place is not given back; it frees itself");
        }
    }
}

async fn renew(kept: Arc<Kept>, every: Duration) {
    let mut renewal = interval_at(Instant::now() + every, every);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        renewal.tick().await;
        let lease = kept.lease.lock().await;
        if !lease.holds_place() {
            return;
        }
        match kept.app.engine.renew(&lease).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(event = "place_lost", "a place was lost while its request went on");
            }
            Err(error) => {
                kept.app.store_failed(&error, "a place is not renewed; it is tried again");
            }
        }
    }
}

/// Does something at once where the store answers at once, and else in a task of its own, which a
/// client that goes away does not take with it.
fn now_or_soon(act: impl Future<Output = ()> + Send + 'static) {
    let mut act = Box::pin(act);
    let at_once = act.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    if at_once == Poll::Pending {
        tokio::spawn(act);
    }
}
