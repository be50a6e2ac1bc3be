//! Where requests go: one server, by name or address, with or without TLS.

use std::fmt;
use std::io;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::connection::{self, Sender};
use super::places::UpstreamPlace;
use super::socket::Socket;

/// The server behind the gateway.
pub(crate) struct Upstream {
    host: String,
    port: u16,
    host_header: HeaderValue,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// Why a URL cannot be an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamError(String);

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UpstreamError {}

impl Upstream {
    /// The server of a URL, `http://host:port` or `https://host`. It has no path of its own: what
    /// was matched is what is forwarded.
    pub(crate) fn parse(url: &str) -> Result<Self, UpstreamError> {
        let roots = || -> Result<ClientConfig, rustls::Error> {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()?;
            let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
            Ok(config.with_root_certificates(roots).with_no_client_auth())
        };
        Self::with_tls(url, || roots().map_err(|error| UpstreamError(error.to_string())))
    }

    /// As [`parse`](Self::parse), with TLS as the caller wants it.
    pub(super) fn with_tls(
        url: &str,
        tls: impl FnOnce() -> Result<ClientConfig, UpstreamError>,
    ) -> Result<Self, UpstreamError> {
        let wrong = |expected: &str| {
            UpstreamError(format!("found the upstream `{url}`, expected {expected}"))
        };
        let uri: Uri = url.parse().map_err(|_| wrong("a URL such as `http://127.0.0.1:3000`"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("one that starts with `http://` or `https://`")),
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err(wrong("one without a path: the path of a request is forwarded as it is"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("one with a host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("one without a user"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host_header = HeaderValue::from_str(authority.as_str());
        let host_header = host_header.map_err(|_| wrong("one with a host"))?;
        let tls = if is_tls {
            let name = ServerName::try_from(host.clone()).map_err(|_| wrong("one with a host"))?;
            Some((TlsConnector::from(Arc::new(tls()?)), name))
        } else {
            None
        };
        Ok(Self { host, port, host_header, tls })
    }

    /// The host for requests that name none.
    pub(super) fn host_header(&self) -> HeaderValue {
        self.host_header.clone()
    }

    /// Opens a connection, which keeps its place until it has ended.
    pub(super) async fn connect(&self, place: UpstreamPlace) -> io::Result<Sender> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let socket = Socket::new(stream, place);
        match &self.tls {
            None => connection::start(socket).await,
            Some((connector, name)) => {
                connection::start(connector.connect(name.clone(), socket).await?).await
            }
        }
    }
}
