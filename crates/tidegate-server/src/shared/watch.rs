//! Whether the shared store can be asked, and since when. Every change is logged once.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tidegate::clock::{Clock as _, Now};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Health, SharedStore, StoreState};
use crate::app::App;

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often at the start, where somebody waits for it.
const FIRST_LOOKS_EVERY: Duration = Duration::from_millis(5);

/// The state that was last seen.
pub(super) struct Seen {
    state: StoreState,
    since_unix_us: u64,
}

impl Seen {
    pub(super) fn healthy_since(now: Now) -> Self {
        Self { state: StoreState::Healthy, since_unix_us: now.unix_us }
    }
}

/// How the store is, and since when.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) health: Health,
    pub(crate) since_unix_us: u64,
}

impl SharedStore {
    /// Looks how the store is, and logs what has changed.
    pub(crate) fn look(&self) -> Standing {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let health = self.remote.health();
        if seen.state != health.state {
            *seen = Seen { state: health.state, since_unix_us: self.clock.now().unix_us };
            tell(&health);
        }
        Standing { health, since_unix_us: seen.since_unix_us }
    }
}

/// Waits until the store can be asked, or for so long.
pub(crate) async fn settled(store: &SharedStore, bound: Duration) {
    let until = Instant::now() + bound;
    while store.remote.health().state != StoreState::Healthy && Instant::now() < until {
        sleep_until(until.min(Instant::now() + FIRST_LOOKS_EVERY)).await;
    }
}

/// Follows the store for as long as the daemon runs: each change of its state is logged, and the engine
/// is told how many nodes there are to share the limits with when it is lost.
pub(crate) async fn follow(app: Arc<App>) {
    loop {
        let Some(store) = app.engine.shared() else { return };
        let health = store.look().health;
        if let Some(nodes) = health.nodes {
            app.engine.set_nodes(nodes);
        }
        if store.lacks_secret() && health.state == StoreState::Healthy {
            learn_secret(&app, store).await;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// A node that started without the store has hashed keys with a secret of its own until now.
async fn learn_secret(app: &App, store: &SharedStore) {
    match store.secret().await {
        Ok(secret) => {
            app.share_leases(&secret);
            app.engine.set_hash_key(secret);
            store.secret_is_known();
        }
        Err(error) => app.store_failed(&error, "its secret is not known; it is asked again"),
    }
}

fn tell(health: &Health) {
    let (kind, state) = (health.kind, health.state.name());
    let error = health.last_error.as_deref().unwrap_or_default();
    let nodes = health.nodes.unwrap_or_default();
    match health.state {
        StoreState::Healthy => {
            let message = "the shared store answers: limits are counted there";
            tracing::info!(event = "store_state", kind, state, nodes, "{message}");
        }
        StoreState::Recovering => {
            let message = "the shared store is tried again";
            tracing::warn!(event = "store_state", kind, state, nodes, "{message}");
        }
        StoreState::Lost => {
            let message =
                "the shared store is lost: each limit does what its on_store_failure says";
            tracing::error!(event = "store_state", kind, state, nodes, error, "{message}");
        }
    }
}
