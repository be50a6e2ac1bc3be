//! What the store is told once it is back: the charges that were admitted without it, and the
//! corrections of the retry queue.

use std::time::Duration;

use tidegate_redis::{AmendError, BreakerState, Health};

use super::SharedStore;
use super::retry_queue::Correction;
use crate::app::App;

/// How long after a late answer the store may still turn out to be lost.
const DOUBT: Duration = Duration::from_secs(10);

/// What this node knows of its store's losses.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// True from a loss until the store has been told everything.
    was_lost: bool,
    /// How often the store was lost, when its health was last read. A short loss may show only here.
    losses: u64,
}

impl Recovery {
    /// Reads the store's health once, and sends what the store can take.
    pub(super) async fn step(&mut self, app: &App, store: &SharedStore, health: &Health) {
        let before = std::mem::replace(&mut self.losses, health.losses());
        let is_lost = !health.state().allows_calls();
        self.was_lost |= is_lost || self.losses != before;
        if is_lost || store.lacks_secret() {
            return;
        }
        if self.was_lost {
            // While a server is still recovering, requests may be admitted without it.
            self.was_lost = !merge(app).await || health.state() == BreakerState::Merging;
        } else {
            forgive(app);
        }
        send_corrections(app, store).await;
    }
}

/// Charges the store with what was admitted without it; true if all of it was sent.
async fn merge(app: &App) -> bool {
    let merged = app.engine.merge().await;
    app.metrics.merged(merged.keys, merged.lost);
    if merged.keys > 0 || merged.lost > 0 {
        let (keys, lost) = (merged.keys, merged.lost);
        tracing::info!(
            event = "store_merged",
            keys,
            lost,
            "the store was charged with what was admitted without it"
        );
    }
    merged.done
}

/// Forgets debts that came from single late calls: the store most likely carried those calls out, and
/// charged them itself.
fn forgive(app: &App) {
    let owed = app.engine.owed();
    let since = app.now().steady_us.saturating_sub(owed.latest_us);
    if owed.keys > 0 && Duration::from_micros(since) > DOUBT {
        app.engine.forgive();
    }
}

async fn send_corrections(app: &App, store: &SharedStore) {
    // Corrections that arrive meanwhile wait for the next step.
    for _ in 0..store.retries.len() {
        let Some(correction) = store.retries.pop() else { return };
        if let Some(unsent) = send(app, store, correction).await {
            store.retries.push_front(unsent);
            return;
        }
    }
}

/// Sends one correction; returns it if it was not sent after all.
async fn send(app: &App, store: &SharedStore, correction: Correction) -> Option<Correction> {
    match correction {
        Correction::Amend(amendments) => match store.redis.try_amend(&amendments).await {
            Ok(_) => None,
            Err(AmendError { was_sent: false, amendments, .. }) => {
                Some(Correction::Amend(amendments))
            }
            Err(AmendError { error, .. }) => {
                store.retries.count_lost();
                app.store_failed(&error, "a correction is lost; what it gives back is not");
                None
            }
        },
        Correction::Settle(mut sealed, settlement) => {
            let settled = match app.may_settle(&sealed).await {
                Ok(true) => app.engine.settle_async(&mut sealed.reservation, settlement).await,
                // Another node was first, or the lease is void by now.
                Ok(false) => Ok(()),
                Err(_) if store.is_lost() => {
                    return Some(Correction::Settle(sealed, settlement));
                }
                Err(error) => {
                    store.retries.count_lost();
                    Err(error)
                }
            };
            if let Err(error) = settled {
                app.store_failed(&error, "a lease is not settled; it stays charged");
            }
            None
        }
    }
}
