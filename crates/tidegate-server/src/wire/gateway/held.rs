//! What an admitted request holds: to be settled by its answer, and to be given back at its end.
//!
//! A task of its own keeps the lease, so that nothing that happens to the request, be it cancelled
//! or panicking, leaves a place taken: dropping the guard is enough.

use std::convert::Infallible;
use std::time::Duration;

use tidegate::{Lease, Limiter, Settlement};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// How often a lease is looked at that holds no place.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Holds a lease until it is dropped. Dropped before its answer is known, the request was cut off.
pub(super) struct Held {
    outcome: Option<oneshot::Sender<Settlement>>,
    /// Dropped at the end, which is all that it says.
    _open: oneshot::Sender<Infallible>,
}

impl Held {
    pub(super) fn new(limiter: Limiter, lease: Lease) -> Self {
        let (outcome, told) = oneshot::channel();
        let (open, closed) = oneshot::channel();
        tokio::spawn(keep(limiter, lease, told, closed));
        Self { outcome: Some(outcome), _open: open }
    }

    /// Tells what became of the request; the first word counts.
    pub(super) fn settle(&mut self, settlement: Settlement) {
        if let Some(outcome) = self.outcome.take() {
            // The keeper is gone only when the daemon is.
            let _ = outcome.send(settlement);
        }
    }
}

async fn keep(
    limiter: Limiter,
    mut lease: Lease,
    mut told: oneshot::Receiver<Settlement>,
    mut closed: oneshot::Receiver<Infallible>,
) {
    let every =
        lease.renew_within().map_or(NEVER, |within| within / 3).max(Duration::from_millis(1));
    let mut renewal = interval_at(Instant::now() + every, every);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut settled = false;
    loop {
        tokio::select! {
            biased;
            outcome = &mut told, if !settled => {
                settled = true;
                settle(&limiter, &mut lease, outcome.unwrap_or(Settlement::Aborted)).await;
                if !lease.holds_place() {
                    return;
                }
            }
            _ = &mut closed => break,
            _ = renewal.tick() => renew(&limiter, &lease).await,
        }
    }
    if let Err(error) = limiter.release_async(&mut lease).await {
        tracing::warn!(%error, "a place could not be given back; it frees itself");
    }
}

async fn settle(limiter: &Limiter, lease: &mut Lease, outcome: Settlement) {
    if let Err(error) = limiter.settle_async(lease, outcome).await {
        tracing::warn!(%error, "an answer could not be settled; its request stays charged");
    }
}

async fn renew(limiter: &Limiter, lease: &Lease) {
    if !lease.holds_place() {
        return;
    }
    match limiter.renew_async(lease).await {
        Ok(true) => {}
        Ok(false) => tracing::warn!("a place was lost while its request went on"),
        Err(error) => tracing::warn!(%error, "a place could not be renewed"),
    }
}
