//! The bytes below a connection: TCP, with TLS above it for `rediss://`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::{Config, Server, Tls};

/// Either kind of stream.
pub(crate) type Stream = Pin<Box<dyn Bytes>>;

pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Bytes for T {}

/// Makes streams to one server.
pub(crate) struct Connector {
    server: Server,
    tls: Option<Tls>,
}

impl Connector {
    pub(crate) fn new(config: &Config) -> Self {
        Self { server: config.server.clone(), tls: config.tls.clone() }
    }

    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        let Server { host, port } = &self.server;
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

/// Trusts the authorities that browsers trust.
fn public() -> Result<ClientConfig, rustls::Error> {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
