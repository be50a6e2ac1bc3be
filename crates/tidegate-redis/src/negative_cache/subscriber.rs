//! Receives invalidations, and the news that marks have changed, on a connection of its own.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::time::{sleep, timeout};

use super::NegativeCache;
use crate::connection::{Backoff, Failure, OpenConnection};
use crate::replication::Outbox;
use crate::store::Topology;

/// How long connecting and subscribing may take, each.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How often a silent connection is pinged, and how long the reply may take.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_MAX: Duration = Duration::from_secs(1);

/// A subscription to both channels of a deployment.
pub(crate) struct Subscriber {
    pub(crate) topology: Arc<Topology>,
    pub(crate) channel: Vec<u8>,
    pub(crate) cache: Arc<NegativeCache>,
    pub(crate) marks_channel: Vec<u8>,
    pub(crate) marks: Arc<Outbox>,
}

impl Subscriber {
    /// Stays subscribed until the task is dropped. The cache is empty whenever it is not.
    pub(crate) async fn keep_subscribed(self) {
        let (mut backoff, mut is_logged) = (Backoff::default(), false);
        loop {
            let failure = self.listen().await;
            if self.cache.health().subscribed {
                (backoff, is_logged) = (Backoff::default(), false);
            }
            self.cache.set_subscribed(false);
            // The breaker logs a store that is lost, but not one that forbids subscriptions.
            if !failure.error.transient && !std::mem::replace(&mut is_logged, true) {
                let error = failure.error;
                tracing::warn!(
                    event = "changes_unheard",
                    %error,
                    "what other nodes change is not heard: refusals are not remembered"
                );
            }
            backoff.wait().await;
        }
    }

    /// Listens until that fails.
    async fn listen(&self) -> Failure {
        let OpenConnection { connection, driver } = match timeout(CONNECT_MAX, self.connect()).await
        {
            Ok(Ok(open)) => open,
            Ok(Err(failure)) => return failure,
            Err(_) => return Failure::no_connection_in(CONNECT_MAX),
        };
        tokio::select! {
            () = driver => Failure::closed(),
            failure = self.subscribe(connection) => failure,
        }
    }

    async fn connect(&self) -> Result<OpenConnection, Failure> {
        let (cache, marks) = (Arc::clone(&self.cache), Arc::clone(&self.marks));
        let marks_channel = self.marks_channel.clone();
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Message
                && let [Value::BulkString(channel), Value::BulkString(message)] = &push.data[..]
            {
                if *channel == marks_channel {
                    marks.wake.notify_one();
                } else {
                    cache.receive(message);
                }
            }
            Ok::<_, Infallible>(())
        };
        // Any server: the servers of a cluster pass messages on to each other.
        let server = self.topology.any_server().await?;
        self.topology.dialer.dial_with_push(&server, on_push).await
    }

    /// Subscribes, and returns when the connection does not answer any more.
    async fn subscribe(&self, mut connection: MultiplexedConnection) -> Failure {
        let subscribing = async {
            connection.subscribe(&self.channel).await?;
            connection.subscribe(&self.marks_channel).await
        };
        match timeout(CONNECT_MAX, subscribing).await {
            Ok(Ok(())) => {
                self.cache.set_subscribed(true);
                // News of marks may have been missed before.
                self.marks.wake.notify_one();
            }
            Ok(Err(error)) => return Failure::unwelcome(&error),
            Err(_) => return Failure::timeout(),
        }
        let ping = redis::cmd("PING");
        loop {
            sleep(PING_EVERY).await;
            let pong = timeout(PING_MAX, connection.send_packed_command(&ping)).await;
            if !matches!(pong, Ok(Ok(_))) {
                return Failure::timeout();
            }
        }
    }
}
