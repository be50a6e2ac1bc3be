//! Hears what nodes change and that marks have changed, on a connection of its own.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::time::{sleep, timeout};

use super::Known;
use crate::connection::{Failure, Made, jittered};
use crate::marks::Queue;
use crate::store::Topology;

/// How long it may take until it hears.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How often a silent connection is tried, and how long it may take.
const TRY_EVERY: Duration = Duration::from_secs(1);
const TRY_MAX: Duration = Duration::from_secs(1);

/// What hears, and what it tells.
pub(crate) struct Listener {
    pub(crate) topology: Arc<Topology>,
    pub(crate) channel: Vec<u8>,
    pub(crate) known: Arc<Known>,
    pub(crate) marks_channel: Vec<u8>,
    pub(crate) marks: Arc<Queue>,
}

impl Listener {
    /// Listens for as long as it is let. Whenever it does not hear, nothing is remembered.
    pub(crate) async fn keep_listening(self) {
        let (mut backoff, mut told) = (BACKOFF_MIN, false);
        loop {
            let failure = self.listen().await;
            if self.known.health().hears {
                (backoff, told) = (BACKOFF_MIN, false);
            }
            self.known.set_hears(false);
            // One that is lost is told of elsewhere; one that does not let us listen is not.
            if !failure.error.transient && !std::mem::replace(&mut told, true) {
                let error = failure.error;
                tracing::warn!(
                    event = "changes_unheard",
                    %error,
                    "what other nodes change is not heard: refusals are not remembered"
                );
            }
            sleep(jittered(backoff)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Listens until that fails.
    async fn listen(&self) -> Failure {
        let connecting = timeout(CONNECT_MAX, self.connect()).await;
        let Made { connection, driver } = match connecting {
            Ok(Ok(connected)) => connected,
            Ok(Err(failure)) => return failure,
            Err(_) => return Failure::no_connection_in(CONNECT_MAX),
        };
        tokio::select! {
            () = driver => Failure::closed(),
            failure = self.subscribe(connection) => failure,
        }
    }

    async fn connect(&self) -> Result<Made, Failure> {
        let (known, marks) = (Arc::clone(&self.known), Arc::clone(&self.marks));
        let marks_channel = self.marks_channel.clone();
        let hear = move |push: PushInfo| {
            if push.kind == PushKind::Message
                && let [Value::BulkString(channel), Value::BulkString(message)] = &push.data[..]
            {
                if *channel == marks_channel {
                    marks.wake.notify_one();
                } else {
                    known.hear(message);
                }
            }
            Ok::<_, Infallible>(())
        };
        // Whoever is told tells all others.
        let server = self.topology.anybody().await?;
        self.topology.dialer.dial_hearing(&server, hear).await
    }

    /// Hears until the connection does not answer any more.
    async fn subscribe(&self, mut connection: MultiplexedConnection) -> Failure {
        let subscribing = async {
            connection.subscribe(&self.channel).await?;
            connection.subscribe(&self.marks_channel).await
        };
        match timeout(CONNECT_MAX, subscribing).await {
            Ok(Ok(())) => {
                self.known.set_hears(true);
                // What was told before was not heard.
                self.marks.wake.notify_one();
            }
            Ok(Err(error)) => return Failure::unwelcome(&error),
            Err(_) => return Failure::timeout(),
        }
        loop {
            sleep(TRY_EVERY).await;
            if !matches!(timeout(TRY_MAX, ping(&mut connection)).await, Ok(Ok(_))) {
                return Failure::timeout();
            }
        }
    }
}

async fn ping(connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
    connection.send_packed_command(&redis::cmd("PING")).await
}
