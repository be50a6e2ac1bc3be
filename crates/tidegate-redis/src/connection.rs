//! One connection that many calls share. A background task makes it and makes it again. Nothing that the
//! server may have carried out is sent twice from here.

mod bounded_replies;
mod dial;
mod eval;
mod failure;
mod reconnect;
mod sentinel;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

pub(crate) use dial::{Dialer, OpenConnection};
pub(crate) use eval::ScriptCall;
pub use failure::Reason;
pub(crate) use failure::{Failure, Remedy};
pub(crate) use reconnect::{Backoff, Target};

use crate::lock;
use reconnect::Reconnector;

/// A connection that is made again when it breaks. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub(crate) struct Connection {
    link: watch::Receiver<LinkState>,
    signals: Arc<Signals>,
}

/// The state of a connection.
#[derive(Clone)]
enum LinkState {
    /// It is made for the first time, or right after it broke: calls wait for it.
    Connecting,
    /// The connection, and its number: each new one has a larger number.
    Up(MultiplexedConnection, u64),
    /// It could not be made; the next attempt comes later.
    Down,
}

/// What the connection and its reconnector tell each other.
#[derive(Default)]
struct Signals {
    /// The connection does not work: make another.
    give_up: Notify,
    /// Why there is no connection.
    last_failure: Mutex<Option<Failure>>,
    /// The largest number of a connection that broke, which the reconnector may not know yet.
    broken: AtomicU64,
}

impl Connection {
    /// Starts to connect to the target, on the current runtime.
    pub(crate) fn start(dialer: &Dialer, target: Target) -> Self {
        let (publish, link) = watch::channel(LinkState::Connecting);
        let signals = Arc::new(Signals::default());
        let dialer = dialer.clone();
        let reconnector = Reconnector { dialer, target, publish, signals: Arc::clone(&signals) };
        tokio::spawn(reconnector.run());
        Self { link, signals }
    }

    /// Sends a command.
    pub(crate) async fn send(&self, command: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        let sent = self.within(deadline, async |mut connection: MultiplexedConnection| {
            connection.send_packed_command(command).await
        });
        check(sent.await?)
    }

    /// Waits until there is a connection; false if there is none by the deadline.
    pub(crate) async fn connected(&self, deadline: Instant) -> bool {
        let mut link = self.link.clone();
        let connected = link.wait_for(LinkState::is_up);
        timeout_at(deadline, connected).await.is_ok_and(|connected| connected.is_ok())
    }

    /// Waits until a connection could not be made and then was.
    pub(crate) async fn recovered(&self) {
        let mut link = self.link.clone();
        let was_down = link.wait_for(|link| matches!(link, LinkState::Down)).await.is_ok();
        if !was_down || link.wait_for(LinkState::is_up).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Gives up a connection that does not answer, so that another is made. Calls on it fail.
    pub(crate) fn give_up(&self) {
        self.signals.give_up.notify_waiters();
    }

    /// Why there is no connection, or was none last.
    pub(crate) fn last_error(&self) -> Option<String> {
        lock(&self.signals.last_failure).as_ref().map(|failure| failure.error.detail.clone())
    }

    async fn within<T, F>(
        &self,
        deadline: Instant,
        call: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, redis::RedisError>>,
    {
        let (connection, number) = self.up(deadline).await?;
        match timeout_at(deadline, call(connection)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                self.signals.broken.fetch_max(number, Ordering::SeqCst);
                Err(Failure::broken(&error))
            }
            Err(_) => Err(Failure::timeout()),
        }
    }

    /// The connection. A call waits for the first attempt to make it again: most succeed at once.
    async fn up(&self, deadline: Instant) -> Result<(MultiplexedConnection, u64), Failure> {
        let broken = self.signals.broken.load(Ordering::SeqCst);
        let usable = |link: &LinkState| match link {
            LinkState::Up(connection, number) if *number > broken => {
                Some((connection.clone(), *number))
            }
            _ => None,
        };
        if let Some(connection) = usable(&self.link.borrow()) {
            return Ok(connection);
        }
        let mut link = self.link.clone();
        let settled =
            link.wait_for(|link| usable(link).is_some() || matches!(link, LinkState::Down));
        match timeout_at(deadline, settled).await {
            Ok(Ok(link)) => usable(&link).ok_or_else(|| self.signals.last_failure()),
            Ok(Err(_)) => Err(self.signals.last_failure()),
            Err(_) => Err(Failure::timeout()),
        }
    }
}

impl LinkState {
    fn is_up(&self) -> bool {
        matches!(self, Self::Up(..))
    }
}

impl Signals {
    fn last_failure(&self) -> Failure {
        let failure = lock(&self.last_failure).clone();
        failure.unwrap_or_else(|| Failure::new(Reason::Connection, true, "not connected yet"))
    }
}

/// An error that the server replied is a failure.
fn check(reply: Value) -> Result<Value, Failure> {
    match reply {
        Value::ServerError(error) => Err(Failure::refused(&error)),
        reply => Ok(reply),
    }
}

#[cfg(test)]
mod tests;
