//! The one HTTP client: for webhooks, CAPTCHA services and the admin calls of the command line.
//!
//! Every request has a connection of its own, over TLS for `https`. The host name is resolved once,
//! every address is checked, and the connection goes to an address that was checked. So a name that
//! resolves to another address a moment later gains nothing. Redirects are not followed.

mod address;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, USER_AGENT};
use http::uri::Authority;
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub use self::address::AddressFilter;
use crate::error::StartError;
use crate::tls::Trust;

/// The time to connect to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// At most this many addresses of a name are tried.
const ADDRESSES_MAX: usize = 4;
/// The longest head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));

/// Sends requests, each on a connection of its own.
pub struct HttpClient {
    pub(crate) filter: AddressFilter,
    /// From the resolution of the name to the last byte of the answer.
    deadline: Duration,
    body_bytes_max: usize,
    resolver: Box<dyn Resolver>,
    /// The roots that certificates are verified by. They are read for the first `https` URL.
    trust: OnceLock<Arc<Trust>>,
}

/// What a server answered.
#[derive(Debug)]
pub struct HttpAnswer {
    /// The status code.
    pub status: StatusCode,
    /// The whole body, unless it is broken or too long.
    pub body: Result<Bytes, HttpClientError>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub enum HttpClientError {
    /// The URL cannot be requested; what is expected instead.
    Url(&'static str),
    /// The name resolves to an address that the filter refuses.
    ForbiddenAddress,
    /// No connection came about.
    Unreachable(io::Error),
    /// The connection broke, or its answer is no HTTP.
    Broken(String),
    /// The deadline has passed.
    Timeout,
}

impl fmt::Display for HttpClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(expected) => write!(f, "expected {expected}"),
            Self::ForbiddenAddress => f.write_str("its name resolves to a forbidden address"),
            Self::Unreachable(error) => error.fmt(f),
            Self::Broken(error) => f.write_str(error),
            Self::Timeout => f.write_str("it does not answer in time"),
        }
    }
}

impl std::error::Error for HttpClientError {}

/// The addresses of a name, once they are known.
pub(crate) type Resolution<'r> =
    Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'r>>;

/// Resolves names. Tests have their own.
pub(crate) trait Resolver: Send + Sync + 'static {
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolution<'r>;
}

struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolution<'r> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

impl HttpClient {
    /// A client that connects to the addresses that the filter allows.
    #[must_use]
    pub fn new(filter: AddressFilter, deadline: Duration, body_bytes_max: usize) -> Self {
        let (resolver, trust) = (Box::new(SystemResolver), OnceLock::new());
        Self { filter, deadline, body_bytes_max, resolver, trust }
    }

    /// Verifies certificates by the authorities of a PEM file too, beside the well-known ones.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn trust_authorities(mut self, file: &Path) -> Result<Self, StartError> {
        self.trust = OnceLock::from(Trust::load(Some(file))?);
        Ok(self)
    }

    #[cfg(test)]
    pub(crate) fn with(self, resolver: Box<dyn Resolver>, trust: Arc<Trust>) -> Self {
        Self { resolver, trust: OnceLock::from(trust), ..self }
    }

    /// Sends a request to the server of its URL.
    ///
    /// # Errors
    /// No answer came. What the status says is no error.
    pub async fn send(&self, request: Request<Bytes>) -> Result<HttpAnswer, HttpClientError> {
        let answer = timeout(self.deadline, self.exchange(request)).await;
        answer.unwrap_or(Err(HttpClientError::Timeout))
    }

    async fn exchange(&self, mut request: Request<Bytes>) -> Result<HttpAnswer, HttpClientError> {
        let UrlOrigin { host, port, tls } =
            UrlOrigin::of(request.uri()).map_err(HttpClientError::Url)?;
        prepare(&mut request)?;
        let addresses = self.resolve(&host, port).await?;
        let stream = connect(&addresses).await.map_err(HttpClientError::Unreachable)?;
        match tls {
            None => self.exchange_on(stream, request).await,
            Some(name) => {
                let stream = self.trust()?.connect(name, stream).await;
                self.exchange_on(stream.map_err(HttpClientError::Unreachable)?, request).await
            }
        }
    }

    /// The addresses of a name. One forbidden address forbids them all: no honest name resolves to a
    /// private address as well.
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, HttpClientError> {
        let resolved = self.resolver.resolve(host, port).await;
        let addresses = resolved.map_err(HttpClientError::Unreachable)?;
        if addresses.iter().all(|address| self.filter.allows(address.ip())) {
            Ok(addresses)
        } else {
            Err(HttpClientError::ForbiddenAddress)
        }
    }

    async fn exchange_on<T>(
        &self,
        stream: T,
        request: Request<Bytes>,
    ) -> Result<HttpAnswer, HttpClientError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await;
        let (mut sender, connection) = handshake.map_err(broken)?;
        let mut answer = pin!(async {
            let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, self.body_bytes_max).collect().await;
            let body = body.map(Collected::to_bytes).map_err(broken);
            Ok(HttpAnswer { status: head.status, body })
        });
        // The connection runs here and not in a task, so that it ends with the deadline. Where it ends
        // first, the sender knows the result.
        let answered: Result<_, hyper::Error> = tokio::select! {
            biased;
            answered = answer.as_mut() => answered,
            _ = connection => answer.await,
        };
        answered.map_err(broken)
    }

    fn trust(&self) -> Result<&Trust, HttpClientError> {
        if let Some(trust) = self.trust.get() {
            return Ok(trust);
        }
        let loaded = Trust::load(None).map_err(broken)?;
        Ok(self.trust.get_or_init(|| loaded))
    }
}

fn broken(error: impl fmt::Display) -> HttpClientError {
    HttpClientError::Broken(error.to_string())
}

/// Adds the headers of the connection, and leaves only the path in the request line.
fn prepare(request: &mut Request<Bytes>) -> Result<(), HttpClientError> {
    let authority = request.uri().authority().map(host_and_port).unwrap_or_default();
    let host = HeaderValue::from_str(authority).map_err(broken)?;
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().map_err(broken)?;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    headers.insert(USER_AGENT, AGENT);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(())
}

/// A connection to the first address that accepts one.
async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::other("its name has no address");
    for address in addresses.iter().take(ADDRESSES_MAX) {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// The origin of a URL: where to connect, and how.
#[derive(Debug)]
pub(crate) struct UrlOrigin {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The name that its certificate must have, for `https`.
    pub(crate) tls: Option<ServerName<'static>>,
}

impl UrlOrigin {
    /// # Errors
    /// The URL cannot be requested; what is expected instead.
    pub(crate) fn of(url: &Uri) -> Result<Self, &'static str> {
        let is_tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err("a URL that starts with https:// or http://"),
        };
        let authority = url.authority().ok_or("a URL with a host")?;
        let port = port(authority, is_tls).ok_or("a URL with a port up to 65535")?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let tls = is_tls.then(|| ServerName::try_from(host.clone())).transpose();
        let tls = tls.map_err(|_| "a URL with a host that a certificate can name")?;
        Ok(Self { host, port, tls })
    }
}

/// The port that a URL names, else that of its scheme; `None` for a port that does not exist.
fn port(authority: &Authority, is_tls: bool) -> Option<u16> {
    match host_and_port(authority).strip_prefix(authority.host()) {
        Some("") => Some(if is_tls { 443 } else { 80 }),
        _ => authority.port_u16().filter(|port| *port > 0),
    }
}

/// The authority without a user.
fn host_and_port(authority: &Authority) -> &str {
    let whole = authority.as_str();
    whole.rsplit_once('@').map_or(whole, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_the_one_that_is_named_or_none() {
        for (authority, found) in [
            ("example.com", Some(443)),
            ("me:pw@example.com", Some(443)),
            ("example.com:8443", Some(8443)),
            ("[::1]", Some(443)),
            ("[::1]:80", Some(80)),
            ("example.com:99999", None),
            ("example.com:0", None),
            ("example.com:", None),
            ("[::1]:65536", None),
        ] {
            assert_eq!(port(&authority.parse().unwrap(), true), found, "{authority}");
        }
        assert_eq!(port(&Authority::from_static("example.com"), false), Some(80));
    }

    #[test]
    fn a_url_is_a_host_a_port_and_perhaps_tls() {
        let one = UrlOrigin::of(&Uri::from_static("https://Hooks.example.com/a?b=c")).unwrap();
        assert_eq!((one.host.as_str(), one.port), ("Hooks.example.com", 443));
        assert!(one.tls.is_some());
        let other = UrlOrigin::of(&Uri::from_static("http://[2606:4700::1]:8080")).unwrap();
        assert_eq!((other.host.as_str(), other.port, other.tls), ("2606:4700::1", 8080, None));
    }
}
