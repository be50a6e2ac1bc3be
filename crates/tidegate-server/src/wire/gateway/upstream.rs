//! Where requests go: one server, by name or address, with or without TLS.

use std::fmt;
use std::io;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::connection::{self, Sender};
use super::places::UpstreamPlace;
use super::socket::Socket;
use crate::tls::Trust;

/// The server behind the gateway.
pub(crate) struct Upstream {
    host: String,
    port: u16,
    host_header: HeaderValue,
    tls: Option<(Arc<Trust>, ServerName<'static>)>,
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
        Self::trusting(url, None)
    }

    /// As [`parse`](Self::parse), with roots of one's own beside the well-known ones.
    pub(crate) fn trusting(url: &str, own: Option<Arc<Trust>>) -> Result<Self, UpstreamError> {
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
            let well_known = || Trust::load(None).map_err(|error| UpstreamError(error.to_string()));
            Some((own.map_or_else(well_known, Ok)?, name))
        } else if own.is_some() {
            return Err(wrong("one that starts with `https://`, since --upstream-ca is given"));
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
            Some((trust, name)) => {
                connection::start(trust.connect(name.clone(), socket).await?).await
            }
        }
    }
}
