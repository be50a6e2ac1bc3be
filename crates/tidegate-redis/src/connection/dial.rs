//! Connecting to one server: TCP, with TLS above it for `rediss://`, and logging in.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, RedisConnectionInfo, Value};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::bounded_replies::BoundedReplies;
use super::{Failure, check};
use crate::config::{Config, Server, Tls};

/// How many calls the connection queues; no more are under way at once.
const UNDER_WAY_MAX: usize = 16;

/// A plain or a TLS stream.
type Stream = Pin<Box<dyn Bytes>>;

trait Bytes: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Bytes for T {}

/// A connection, and the driver that must run for it to work.
pub(crate) struct OpenConnection {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Makes connections to any server of the store.
#[derive(Clone)]
pub(crate) struct Dialer {
    tls: Option<Tls>,
    settings: RedisConnectionInfo,
}

impl Dialer {
    pub(crate) fn new(config: &Config) -> Self {
        let mut settings = RedisConnectionInfo::default()
            .set_db(i64::from(config.database))
            .set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &config.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &config.password {
            settings = settings.set_password(password);
        }
        Self { tls: config.tls.clone(), settings }
    }

    /// The same without user, password and database.
    pub(super) fn anonymous(&self) -> Self {
        Self { tls: self.tls.clone(), settings: RedisConnectionInfo::default() }
    }

    /// The same without a database: sentinels have none.
    pub(super) fn without_database(&self) -> Self {
        Self { tls: self.tls.clone(), settings: self.settings.clone().set_db(0) }
    }

    pub(crate) async fn dial(&self, server: &Server) -> Result<OpenConnection, Failure> {
        let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(UNDER_WAY_MAX);
        self.connect(server, &self.settings, config).await
    }

    /// A connection that receives published messages.
    pub(crate) async fn dial_with_push(
        &self,
        server: &Server,
        on_push: impl AsyncPushSender,
    ) -> Result<OpenConnection, Failure> {
        let settings = self.settings.clone().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new().set_push_sender(on_push);
        self.connect(server, &settings, config).await
    }

    async fn connect(
        &self,
        server: &Server,
        settings: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<OpenConnection, Failure> {
        let stream = self.stream(server).await.map_err(|error| Failure::unreachable(&error))?;
        // Callers set their own deadlines.
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        MultiplexedConnection::new_with_config(settings, BoundedReplies::new(stream), config)
            .await
            .map(|(connection, driver)| OpenConnection { connection, driver: Box::pin(driver) })
            .map_err(|error| Failure::unwelcome(&error))
    }

    /// Sends one command on a connection of its own.
    pub(crate) async fn ask(
        &self,
        server: &Server,
        command: &Cmd,
        within: Duration,
    ) -> Result<Value, Failure> {
        let asking = async { self.dial(server).await?.send(command).await };
        let asked = timeout(within, asking).await;
        asked.unwrap_or_else(|_| Err(Failure::no_connection_in(within)))
    }

    async fn stream(&self, server: &Server) -> io::Result<Stream> {
        let Server { host, port } = server;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let config = match &self.tls {
            None => return Ok(Box::pin(stream)),
            Some(Tls::Given(config)) => Arc::clone(config),
            Some(Tls::Public) => Arc::new(public().map_err(io::Error::other)?),
        };
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(Box::pin(stream))
    }
}

impl OpenConnection {
    /// Sends a command before the connection is published.
    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, Failure> {
        tokio::select! {
            () = &mut self.driver => Err(Failure::closed()),
            replied = self.connection.send_packed_command(command) => match replied {
                Ok(reply) => check(reply),
                Err(error) => Err(Failure::broken(&error)),
            },
        }
    }
}

/// Trusts the certificate authorities that browsers trust.
fn public() -> Result<ClientConfig, rustls::Error> {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
