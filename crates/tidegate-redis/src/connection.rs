//! One connection that many calls share. It is made, and made again, in the background: no request
//! waits for it, and nothing that may have been carried out is sent twice.

mod failure;
mod stream;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, ServerErrorKind, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(crate) use failure::Failure;
pub use failure::Reason;

pub(crate) use stream::Connector;

use crate::config::Config;

/// How long making a connection may take, with greetings and password.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How many calls the connection takes before it has sent them; more are never under way at once.
const UNDER_WAY_MAX: usize = 16;

/// A script, and what its text hashes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    pub(crate) sha1: &'static str,
}

/// A connection that comes and goes. Clones share it; the last one to go ends it.
#[derive(Clone)]
pub(crate) struct Connection {
    current: watch::Receiver<Option<MultiplexedConnection>>,
    signals: Arc<Signals>,
}

/// What the connection and its keeper tell each other.
#[derive(Default)]
struct Signals {
    /// It does not answer: make another.
    give_up: Notify,
    /// Why there is none.
    trouble: Mutex<Option<Failure>>,
}

impl Connection {
    /// Starts to connect, on the runtime that this is called on.
    pub(crate) fn start(config: &Config) -> Self {
        let (publish, current) = watch::channel(None);
        let signals = Arc::new(Signals::default());
        let settings = settings(config);
        let keeper = Keeper {
            connector: Connector::new(config),
            settings,
            publish,
            signals: Arc::clone(&signals),
        };
        tokio::spawn(keeper.run());
        Self { current, signals }
    }

    /// Runs a script. A server that has lost it is given it again on the same connection.
    pub(crate) async fn run(
        &self,
        script: Script,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Value, Failure> {
        self.within(deadline, async |mut connection: MultiplexedConnection| {
            let by_hash = command("EVALSHA", script.sha1, keys, arguments);
            let reply = connection.send_packed_command(&by_hash).await?;
            // The script was not found, so that nothing of it was carried out.
            if !is_no_script(&reply) {
                return Ok(reply);
            }
            let by_text = command("EVAL", script.text, keys, arguments);
            connection.send_packed_command(&by_text).await
        })
        .await
    }

    /// Sends a command.
    pub(crate) async fn send(&self, command: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        self.within(deadline, async |mut connection: MultiplexedConnection| {
            connection.send_packed_command(command).await
        })
        .await
    }

    /// Waits until there is a connection; `false` if there is none by then.
    pub(crate) async fn connected(&self, deadline: Instant) -> bool {
        let mut current = self.current.clone();
        let connected = current.wait_for(Option::is_some);
        timeout_at(deadline, connected).await.is_ok_and(|connected| connected.is_ok())
    }

    /// Gives up a connection that does not answer, so that another is made. What is under way on it
    /// fails.
    pub(crate) fn give_up(&self) {
        self.signals.give_up.notify_waiters();
    }

    async fn within<F>(
        &self,
        deadline: Instant,
        call: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<Value, Failure>
    where
        F: Future<Output = Result<Value, redis::RedisError>>,
    {
        let Some(connection) = self.current.borrow().clone() else {
            return Err(self.signals.trouble());
        };
        match timeout_at(deadline, call(connection)).await {
            Ok(Ok(Value::ServerError(error))) => Err(Failure::refused(&error)),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(Failure::broken(&error)),
            Err(_) => Err(Failure::timeout()),
        }
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

/// What makes the connection, and makes it again.
struct Keeper {
    connector: Connector,
    settings: RedisConnectionInfo,
    publish: watch::Sender<Option<MultiplexedConnection>>,
    signals: Arc<Signals>,
}

impl Keeper {
    /// Runs until nobody is left who could use a connection.
    async fn run(self) {
        tokio::select! {
            () = self.keep() => {}
            () = self.publish.closed() => {}
        }
    }

    async fn keep(&self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            match timeout(CONNECT_MAX, self.connect()).await {
                Ok(Ok((connection, driver))) => {
                    self.publish.send_replace(Some(connection));
                    tokio::select! {
                        () = driver => self.signals.set_trouble(Failure::closed()),
                        () = self.signals.give_up.notified() => {}
                    }
                    self.publish.send_replace(None);
                    backoff = BACKOFF_MIN;
                }
                Ok(Err(failure)) => self.signals.set_trouble(failure),
                Err(_) => self.signals.set_trouble(Failure::no_connection_in(CONNECT_MAX)),
            }
            sleep(jittered(backoff)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn connect(&self) -> Result<(MultiplexedConnection, impl Future<Output = ()>), Failure> {
        let stream =
            self.connector.connect().await.map_err(|error| Failure::unreachable(&error))?;
        // The deadlines are ours.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(UNDER_WAY_MAX);
        MultiplexedConnection::new_with_config(&self.settings, stream, config)
            .await
            .map_err(|error| Failure::unwelcome(&error))
    }
}

/// Up to a quarter less, so that nodes that lost a server together do not come back together.
pub(crate) fn jittered(wait: Duration) -> Duration {
    (wait - wait / 4) + (wait / 64) * fastrand::u32(0..=16)
}

/// Who logs in, and to which database.
pub(crate) fn settings(config: &Config) -> RedisConnectionInfo {
    let settings = RedisConnectionInfo::default()
        .set_db(i64::from(config.database))
        .set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
    let settings = match &config.user {
        Some(user) => settings.set_username(user),
        None => settings,
    };
    match &config.password {
        Some(password) => settings.set_password(password),
        None => settings,
    }
}

fn command(name: &str, script: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    command
}

fn is_no_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

#[cfg(test)]
mod tests;
