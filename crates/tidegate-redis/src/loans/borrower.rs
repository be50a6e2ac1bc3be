//! Sends this node's loan requests to the shared store, in the background.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::LoanRequest;
use crate::codec::{Command, Response};
use crate::store::{Inner, RedisStore};

/// How often idle tokens are given back.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// How many requests may be under way at once; more wait.
const REQUESTS_MAX: usize = 1024;

const TOO_SMALL: &str =
    "a leased limit has a burst of less than 4 for each node: it is asked exactly";

/// Borrows and gives back, for as long as the store lives.
pub(crate) async fn keep_borrowing(store: Weak<Inner>, loans: Arc<super::LoanTable>) {
    let mut ticks = interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut under_way = JoinSet::new();
    let (mut sweep_at, mut is_logged) = (Instant::now(), false);
    loop {
        tokio::select! {
            () = loans.wake.notified(), if under_way.len() < REQUESTS_MAX => {}
            _ = ticks.tick() => {}
            Some(_) = under_way.join_next() => continue,
        }
        let Some(store) = RedisStore::upgrade(&store) else { return };
        let now_us = store.now_us();
        let mut requests = loans.take_due(now_us);
        if sweep_at <= Instant::now() {
            sweep_at = Instant::now() + SWEEP_EVERY;
            let nodes = store.nodes();
            loans.set_nodes(nodes);
            requests.extend(loans.sweep(now_us));
            if loans.met_too_small() && !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(event = "too_small_to_lease", nodes, "{TOO_SMALL}");
            }
        }
        if !requests.is_empty() {
            under_way.spawn(async move { send_all(&store, requests).await });
        }
    }
}

/// Sends a request before any command that is sent after this call, without waiting for its reply.
pub(crate) fn send_first(store: &RedisStore, request: LoanRequest) {
    let store = store.clone();
    let mut sending = Box::pin(async move { send(&store, request).await });
    // The first poll puts the request into the batch queue.
    if sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::spawn(sending);
    }
}

/// Gives everything back, and borrows nothing any more.
pub(crate) async fn return_all(store: &RedisStore) {
    send_all(store, store.loan_table().close(store.now_us())).await;
}

async fn send_all(store: &RedisStore, requests: Vec<LoanRequest>) {
    let mut under_way = JoinSet::new();
    for request in requests {
        if under_way.len() >= REQUESTS_MAX {
            under_way.join_next().await;
        }
        let store = store.clone();
        under_way.spawn(async move { send(&store, request).await });
    }
    while under_way.join_next().await.is_some() {}
}

async fn send(store: &RedisStore, request: LoanRequest) {
    let request = Arc::new(request);
    let response = store.execute(Command::Lend(Arc::clone(&request))).await;
    let reply = response.and_then(Response::into_loan_reply).ok();
    store.loan_table().apply_reply(&request, reply.as_ref(), store.now_us());
}
