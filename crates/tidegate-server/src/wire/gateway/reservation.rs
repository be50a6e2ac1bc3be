//! The reservation of an admitted request: its answer settles it. Its place is released once the client
//! has taken the answer, or has left.
//!
//! Both happen before the client can know of the end, so that a client that sends its next request at
//! once finds the place free. Dropping the guards is enough: cancellation, panics and broken connections
//! need no code of their own.

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

/// Holds a reservation until it is dropped, and settles it then at the latest. If it is dropped before the
/// answer is known, the request was aborted.
pub(super) struct ReservationGuard {
    shared: Arc<SharedReservation>,
    /// How the request has ended so far; `None` once that is settled.
    settlement: Option<Settlement>,
    place: Option<Arc<PlaceGuard>>,
}

/// Holds the place of a reservation until it is dropped.
pub(super) struct PlaceGuard {
    shared: Arc<SharedReservation>,
    /// The task that renews the place.
    renewal: AbortHandle,
}

struct SharedReservation {
    app: Arc<App>,
    reservation: Mutex<Reservation>,
}

impl ReservationGuard {
    pub(super) fn new(app: Arc<App>, reservation: Reservation) -> Self {
        let within = reservation.holds_place().then(|| reservation.renew_within()).flatten();
        let shared = Arc::new(SharedReservation { app, reservation: Mutex::new(reservation) });
        let place = within.map(|within| {
            let every = (within / 3).max(Duration::from_millis(1));
            let renewal = tokio::spawn(Arc::clone(&shared).renew(every)).abort_handle();
            Arc::new(PlaceGuard { shared: Arc::clone(&shared), renewal })
        });
        Self { shared, settlement: Some(Settlement::Aborted), place }
    }

    /// The place, which may be kept for longer than the rest.
    pub(super) fn place(&self) -> Option<Arc<PlaceGuard>> {
        self.place.clone()
    }

    /// The answer has begun with this status, which counts unless the upstream aborts the answer. A
    /// client that leaves changes nothing, or it could choose what is counted.
    pub(super) fn set_status(&mut self, status: StatusCode) {
        self.set(Settlement::Status(status.as_u16()));
    }

    /// The upstream did not finish its answer.
    pub(super) fn set_aborted(&mut self) {
        self.set(Settlement::Aborted);
    }

    /// Settles the reservation: nothing that happens from now on counts.
    pub(super) fn settle(&mut self) {
        if let Some(settlement) = self.settlement.take() {
            run_now_or_spawn(Arc::clone(&self.shared).settle(settlement));
        }
    }

    fn set(&mut self, settlement: Settlement) {
        if self.settlement.is_some() {
            self.settlement = Some(settlement);
        }
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        self.renewal.abort();
        run_now_or_spawn(Arc::clone(&self.shared).release());
    }
}

impl SharedReservation {
    async fn settle(self: Arc<Self>, settlement: Settlement) {
        let mut reservation = self.reservation.lock().await;
        if let Err(error) = self.app.engine.settle_async(&mut reservation, settlement).await {
            self.app.store_failed(&error, "an answer is not settled; its request stays charged");
        }
    }

    async fn release(self: Arc<Self>) {
        let mut reservation = self.reservation.lock().await;
        if let Err(error) = self.app.engine.release_async(&mut reservation).await {
            self.app.store_failed(&error, "a place is not given back; it frees itself");
        }
    }

    async fn renew(self: Arc<Self>, every: Duration) {
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let reservation = self.reservation.lock().await;
            if !reservation.holds_place() {
                return;
            }
            match self.app.engine.renew_async(&reservation).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!(
                        event = "place_lost",
                        "a place was lost while its request went on"
                    );
                }
                Err(error) => {
                    self.app.store_failed(&error, "a place is not renewed; it is tried again");
                }
            }
        }
    }
}

/// Runs a future at once where the store answers at once, and else in a task of its own, which goes on
/// when the client leaves.
fn run_now_or_spawn(act: impl Future<Output = ()> + Send + 'static) {
    let mut act = Box::pin(act);
    let polled = act.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    if polled == Poll::Pending {
        tokio::spawn(act);
    }
}
