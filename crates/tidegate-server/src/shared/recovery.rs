//! What is owed to a store that was lost, once it is back: what was admitted without it, and the
//! corrections that waited for it.

use std::time::Duration;

use super::later::Correction;
use super::{Health, SharedStore, StoreState, Unamended};
use crate::app::App;

/// How long a store that was only late to answer may yet turn out to be lost.
const DOUBT: Duration = Duration::from_secs(10);

/// Where this node stands with its store.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Whether the store was lost, and has not had its due since.
    was_lost: bool,
    /// How often it was lost, as far as is known.
    losses: u64,
}

impl Recovery {
    /// Does what is to be done now.
    pub(super) async fn go_on(&mut self, app: &App, store: &SharedStore, health: &Health) {
        let before = std::mem::replace(&mut self.losses, health.losses);
        self.was_lost |= health.state == StoreState::Lost || health.losses != before;
        if health.state == StoreState::Lost || store.lacks_secret() {
            return;
        }
        if self.was_lost {
            // What some servers cannot take yet is admitted without them until all are well.
            self.was_lost = !merge(app).await || health.state == StoreState::Recovering;
        } else {
            forgive(app);
        }
        send_corrections(app, store).await;
    }
}

/// Charges the store with what was admitted without it; returns whether all of it was sent.
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

/// Single calls that were late were most likely carried out, so that the store has charged them
/// itself.
fn forgive(app: &App) {
    let owed = app.engine.owed();
    let since = app.now().steady_us.saturating_sub(owed.latest_us);
    if owed.keys > 0 && Duration::from_micros(since) > DOUBT {
        app.engine.forgive();
    }
}

async fn send_corrections(app: &App, store: &SharedStore) {
    // What comes in meanwhile waits for the next time.
    for _ in 0..store.later.len() {
        let Some(correction) = store.later.take() else { return };
        if let Some(unsent) = send(app, store, correction).await {
            store.later.put_back(unsent);
            return;
        }
    }
}

/// Sends one; gives it back if it was not sent after all.
async fn send(app: &App, store: &SharedStore, correction: Correction) -> Option<Correction> {
    match correction {
        Correction::Amend(amendments) => match store.remote.amend(app.now(), amendments).await {
            Ok(_) => None,
            Err(Unamended { sent: false, rest, .. }) => Some(Correction::Amend(rest)),
            Err(Unamended { error, .. }) => {
                store.later.lose();
                app.store_failed(&error, "a correction is lost; what it gives back is not");
                None
            }
        },
        Correction::Settle(mut travelled, settlement) => match app.may_settle(&travelled).await {
            Ok(true) => {
                if let Err(error) = app.engine.settle(&mut travelled.lease, settlement).await {
                    app.store_failed(&error, "a lease is not settled; it stays charged");
                }
                None
            }
            // Somebody was first, or it is void by now.
            Ok(false) => None,
            Err(_) if store.is_lost() => Some(Correction::Settle(travelled, settlement)),
            Err(error) => {
                store.later.lose();
                app.store_failed(&error, "a lease is not settled; it stays charged");
                None
            }
        },
    }
}
