//! Keeps up with the shared store while the daemon runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::SharedStore;
use super::recovery::Recovery;
use crate::app::App;

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often at the start, where somebody waits for it.
const FIRST_LOOKS_EVERY: Duration = Duration::from_millis(5);

/// Waits until the store can be asked, or for so long; returns whether it can be.
pub(crate) async fn settled(store: &SharedStore, bound: Duration) -> bool {
    let until = Instant::now() + bound;
    while store.is_lost() {
        if Instant::now() >= until {
            return false;
        }
        sleep_until(until.min(Instant::now() + FIRST_LOOKS_EVERY)).await;
    }
    true
}

/// Follows the store for as long as the daemon runs: the engine is told how many nodes there are to
/// share the limits with when it is lost, learns the secret of all nodes, and gives the store its due
/// when it is back.
pub(crate) async fn follow(app: Arc<App>) {
    let Some(store) = app.engine.shared() else { return };
    tokio::join!(keep_up(&app, store), learn_secret(&app, store));
}

async fn keep_up(app: &App, store: &SharedStore) {
    let mut recovery = Recovery::default();
    loop {
        let health = store.health();
        if let Some(nodes) = health.nodes {
            app.engine.set_nodes(nodes);
        }
        recovery.go_on(app, store, &health).await;
        sleep(LOOK_EVERY).await;
    }
}

/// A node that started without the store hashes keys with a secret of its own until it has learned
/// that of all. It asks however the store is: the server that keeps the secret may answer while others
/// are lost, and limits whose keys are on servers that answer are to be counted there.
async fn learn_secret(app: &App, store: &SharedStore) {
    let mut told = None;
    while store.lacks_secret() {
        match store.secret().await {
            Ok(secret) => {
                app.share_secret(&secret);
                app.engine.set_hash_key(secret.clone());
                store.secret_is_known(&secret);
            }
            Err(error) => {
                // Of a store that is lost others tell.
                let news = !(error.transient && store.is_lost()) && told.as_ref() != Some(&error);
                if news {
                    app.store_failed(&error, "its secret is not known; it is asked again");
                    told = Some(error);
                }
                sleep(LOOK_EVERY).await;
            }
        }
    }
}
