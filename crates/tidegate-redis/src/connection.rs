//! One connection that many calls share. It is made, and made again, in the background, and nothing that
//! may have been carried out is sent twice from here.

mod dial;
mod failure;
mod keeper;
mod runs;
mod sentinel;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

pub(crate) use dial::{Dialer, Made};
pub use failure::Reason;
pub(crate) use failure::{Failure, Remedy};
pub(crate) use runs::{Run, Script};

use keeper::Keeper;
pub(crate) use keeper::{Target, jittered};

/// A connection that comes and goes. Clones share it; the last one to go ends it.
#[derive(Clone)]
pub(crate) struct Connection {
    current: watch::Receiver<Link>,
    signals: Arc<Signals>,
}

/// What there is of a connection.
#[derive(Clone)]
enum Link {
    /// It is made for the first time, or right after it broke: worth waiting for.
    Connecting,
    /// The how manieth it is, too.
    Up(MultiplexedConnection, u64),
    /// It could not be made; it is tried again now and then.
    Down,
}

/// What the connection and its keeper tell each other.
#[derive(Default)]
struct Signals {
    /// It does not answer, or not as it should: make another.
    give_up: Notify,
    /// Why there is none.
    trouble: Mutex<Option<Failure>>,
    /// The latest that is known to have broken, which its keeper may not know yet.
    broken: AtomicU64,
}

impl Connection {
    /// Starts to connect to whomever the target names, on the runtime that this is called on.
    pub(crate) fn start(dialer: &Dialer, target: Target) -> Self {
        let (publish, current) = watch::channel(Link::Connecting);
        let signals = Arc::new(Signals::default());
        let dialer = dialer.clone();
        let keeper = Keeper { dialer, target, publish, signals: Arc::clone(&signals) };
        tokio::spawn(keeper.run());
        Self { current, signals }
    }

    /// Sends a command.
    pub(crate) async fn send(&self, command: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        let sent = self.within(deadline, async |mut connection: MultiplexedConnection| {
            connection.send_packed_command(command).await
        });
        match sent.await? {
            Value::ServerError(error) => Err(Failure::refused(&error)),
            reply => Ok(reply),
        }
    }

    /// Waits until there is a connection; `false` if there is none by then.
    pub(crate) async fn connected(&self, deadline: Instant) -> bool {
        let mut current = self.current.clone();
        let connected = current.wait_for(Link::is_up);
        timeout_at(deadline, connected).await.is_ok_and(|connected| connected.is_ok())
    }

    /// Waits until a connection could not be made and then was.
    pub(crate) async fn recovered(&self) {
        let mut current = self.current.clone();
        let down = current.wait_for(|link| matches!(link, Link::Down)).await.is_ok();
        if !down || current.wait_for(Link::is_up).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Gives up a connection that does not answer, so that another is made. What is under way on it
    /// fails.
    pub(crate) fn give_up(&self) {
        self.signals.give_up.notify_waiters();
    }

    /// Why there is no connection, or was none last.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.signals
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|failure| failure.error.detail.clone())
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

    /// The connection. One that broke is waited for as long as it is being made again for the first
    /// time: most come back at once.
    async fn up(&self, deadline: Instant) -> Result<(MultiplexedConnection, u64), Failure> {
        let broken = self.signals.broken.load(Ordering::SeqCst);
        let found = |link: &Link| match link {
            Link::Up(connection, number) if *number > broken => Some((connection.clone(), *number)),
            _ => None,
        };
        if let Some(found) = found(&self.current.borrow()) {
            return Ok(found);
        }
        let mut current = self.current.clone();
        let settled = current.wait_for(|link| found(link).is_some() || matches!(link, Link::Down));
        match timeout_at(deadline, settled).await {
            Ok(Ok(link)) => found(&link).ok_or_else(|| self.signals.trouble()),
            Ok(Err(_)) => Err(self.signals.trouble()),
            Err(_) => Err(Failure::timeout()),
        }
    }
}

impl Link {
    fn is_up(&self) -> bool {
        matches!(self, Self::Up(..))
    }
}

impl Signals {
    fn trouble(&self) -> Failure {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.clone().unwrap_or_else(Failure::connecting)
    }

    fn set_trouble(&self, failure: Failure) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }
}

#[cfg(test)]
mod tests;
