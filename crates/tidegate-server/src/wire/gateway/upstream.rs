//! The upstream: one server, by name or address, with or without TLS.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, Uri};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::body::Upload;
use super::permits::Permit;
use super::upstream_socket::{ReadAllowance, UpstreamSocket};
use crate::error::StartError;
use crate::http_client::UrlOrigin;
use crate::tls::Trust;

/// The server behind the gateway.
pub(crate) struct Upstream {
    host: String,
    port: u16,
    host_header: HeaderValue,
    tls: Option<(Arc<Trust>, ServerName<'static>)>,
}

impl Upstream {
    /// The server of a URL, `http://host:port` or `https://host`. The URL has no path: the gateway
    /// forwards the path that the policy has matched.
    pub(crate) fn parse(url: &str) -> Result<Self, StartError> {
        Self::with_roots(url, None)
    }

    /// As [`parse`](Self::parse), verified by the operator's own roots beside the well-known ones.
    pub(crate) fn with_roots(url: &str, own: Option<Arc<Trust>>) -> Result<Self, StartError> {
        let wrong = |expected: &str| {
            StartError::new(format!("found the upstream `{url}`, expected {expected}"))
        };
        let uri: Uri = url.parse().map_err(|_| wrong("a URL such as `http://127.0.0.1:3000`"))?;
        let UrlOrigin { host, port, tls } = UrlOrigin::of(&uri).map_err(wrong)?;
        if uri.path() != "/" || uri.query().is_some() {
            return Err(wrong("one without a path: the path of a request is forwarded as it is"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("one with a host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("one without a user"));
        }
        let host_header = HeaderValue::from_str(authority.as_str());
        let host_header = host_header.map_err(|_| wrong("one with a host"))?;
        let tls = match (tls, own) {
            (Some(name), Some(own)) => Some((own, name)),
            (Some(name), None) => Some((Trust::load(None)?, name)),
            (None, Some(_)) => {
                return Err(wrong("one that starts with `https://`, since --upstream-ca is given"));
            }
            (None, None) => None,
        };
        Ok(Self { host, port, host_header, tls })
    }

    /// The `Host` of requests that have none.
    pub(super) fn host_header(&self) -> HeaderValue {
        self.host_header.clone()
    }

    /// Opens a connection, which keeps the permit until its socket is closed.
    pub(super) async fn connect(&self, permit: UpstreamPermit) -> io::Result<UpstreamConnection> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => UpstreamConnection::start(stream, permit).await,
            Some((trust, name)) => {
                UpstreamConnection::start(trust.connect(name.clone(), stream).await?, permit).await
            }
        }
    }
}

/// The right to one open connection. A request and its connection share it.
pub(super) type UpstreamPermit = Arc<Permit>;

/// A connection to the upstream: HTTP/1.1, one request at a time. It is closed when this is dropped.
pub(super) struct UpstreamConnection {
    pub(super) sender: SendRequest<Upload>,
    pub(super) allowance: ReadAllowance,
    /// Shared with the task that owns the socket, so that the permit returns only when the socket is
    /// closed. A kept connection has none.
    permit: Arc<Mutex<Option<UpstreamPermit>>>,
}

impl UpstreamConnection {
    /// Starts HTTP/1.1 on a socket, in a task of its own.
    async fn start<T>(socket: T, permit: UpstreamPermit) -> io::Result<Self>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let allowance = ReadAllowance::new();
        let socket = UpstreamSocket::new(socket, allowance.clone());
        let handshake = http1::handshake(TokioIo::new(socket)).await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        let permit = Arc::new(Mutex::new(Some(permit)));
        let held = Arc::clone(&permit);
        tokio::spawn(async move {
            // The request that waits for an answer learns how the connection ends.
            drop(connection.with_upgrades().await);
            drop(held);
        });
        Ok(Self { sender, allowance, permit })
    }

    /// Replaces the permit: a connection has one while it serves a request.
    pub(super) fn set_permit(&self, permit: Option<UpstreamPermit>) -> Option<UpstreamPermit> {
        std::mem::replace(&mut *self.permit.lock().unwrap_or_else(PoisonError::into_inner), permit)
    }
}
