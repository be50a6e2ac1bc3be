//! Follows the shared store while the daemon runs: its nodes, its secret, its losses.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::SharedStore;
use super::recovery::Recovery;
use crate::app::App;

/// How often the store's health is read.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How often at the start, while the daemon waits for the store.
const FIRST_POLLS_EVERY: Duration = Duration::from_millis(5);

/// Waits until the store can be asked, at most for `bound`; true if it can be.
pub(crate) async fn wait_until_answering(store: &SharedStore, bound: Duration) -> bool {
    let until = Instant::now() + bound;
    while store.is_lost() {
        if Instant::now() >= until {
            return false;
        }
        sleep_until(until.min(Instant::now() + FIRST_POLLS_EVERY)).await;
    }
    true
}

/// Follows the store for as long as the daemon runs. The engine learns how many nodes share the limits
/// and which secret hashes their keys; the store is told what it missed once it is back.
pub(crate) async fn follow(app: Arc<App>) {
    let Some(store) = app.engine.store().shared() else { return };
    tokio::join!(follow_health(&app, store), learn_secret(&app, store));
}

async fn follow_health(app: &App, store: &SharedStore) {
    let mut recovery = Recovery::default();
    loop {
        let health = store.redis().health();
        if let Some(nodes) = health.nodes {
            app.engine.set_nodes(nodes);
        }
        recovery.step(app, store, &health).await;
        sleep(POLL_EVERY).await;
    }
}

/// A node that started without the store hashes keys with a secret of its own until it has learned the
/// secret of all nodes. It asks in every state of the store: the server that keeps the secret may answer
/// while others are lost, and limits with keys on servers that answer are to be counted there.
async fn learn_secret(app: &App, store: &SharedStore) {
    let mut last_error = None;
    while store.lacks_secret() {
        match store.secret().await {
            Ok(secret) => {
                app.share_secret(&secret);
                app.engine.set_hash_key(secret.clone());
                store.adopt_secret(&secret);
            }
            Err(error) => {
                // The breaker logs a store that is lost.
                let is_logged = error.transient && store.is_lost();
                if !is_logged && last_error.as_ref() != Some(&error) {
                    app.store_failed(&error, "its secret is not known; it is asked again");
                    last_error = Some(error);
                }
                sleep(POLL_EVERY).await;
            }
        }
    }
}
