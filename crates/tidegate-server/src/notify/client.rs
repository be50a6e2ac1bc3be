//! One attempt to deliver a message: names are resolved here, every address is checked, and the
//! connection goes to an address that was checked, whatever the name leads to by then.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tidegate::identity::Networks;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::address::may_be_told;
use super::message::Message;
use super::target::Target;
use crate::tls::Trust;

/// For one attempt, from the name to the end of the answer.
const ATTEMPT: Duration = Duration::from_secs(10);
/// For one of a name's addresses.
const CONNECT: Duration = Duration::from_secs(3);
/// At most so many addresses of a name are tried.
const ADDRESSES_MAX: usize = 4;
/// How much of an answer's head, and of its body, is taken.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Why a message was not delivered this time.
#[derive(Debug)]
pub(super) enum Failure {
    /// Trying again may help.
    Later(String),
    /// The webhook does not want it.
    Unwanted(String),
    /// It leads where no webhook may be.
    Forbidden,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Later(why) | Self::Unwanted(why) => f.write_str(why),
            Self::Forbidden => f.write_str(
                "its name leads to an address that is not public, and that --notify-allow-private does not list",
            ),
        }
    }
}

/// What a name leads to.
pub(super) type Resolved<'r> =
    Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'r>>;

/// Finds the addresses of a name.
pub(super) trait Resolve: Send + Sync + 'static {
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolved<'r>;
}

/// As the system does it.
pub(super) struct System;

impl Resolve for System {
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolved<'r> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// Sends messages.
pub(super) struct Client {
    pub(super) trust: Arc<Trust>,
    /// Networks that are not public, where webhooks may be all the same.
    pub(super) allowed: Networks,
    pub(super) resolver: Box<dyn Resolve>,
}

impl Client {
    /// Sends a message once, dated by this time.
    pub(super) async fn send(
        &self,
        target: &Target,
        message: &Message,
        unix_s: u64,
    ) -> Result<(), Failure> {
        let late = |_| Failure::Later("it took too long".to_owned());
        let status =
            timeout(ATTEMPT, self.attempt(target, message, unix_s)).await.map_err(late)??;
        match status.as_u16() {
            200..=299 => Ok(()),
            300..=399 => {
                Err(Failure::Unwanted(format!("it answers {status}; redirects are not followed")))
            }
            408 | 425 | 429 | 500..=599 => Err(Failure::Later(format!("it answers {status}"))),
            _ => Err(Failure::Unwanted(format!("it answers {status}"))),
        }
    }

    async fn attempt(
        &self,
        target: &Target,
        message: &Message,
        unix_s: u64,
    ) -> Result<StatusCode, Failure> {
        let stream = connect(&self.addresses(target).await?).await.map_err(later)?;
        let request = request(target, message, unix_s);
        match &target.tls {
            None => exchange(stream, request).await,
            Some(name) => {
                let stream = self.trust.connect(name.clone(), stream).await.map_err(later)?;
                exchange(stream, request).await
            }
        }
    }

    /// Where a name leads to now. One forbidden address among them forbids them all: a name that
    /// leads to a private place as well is no mistake of a resolver.
    async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Failure> {
        let found = self.resolver.resolve(&target.host, target.port).await.map_err(later)?;
        if found.is_empty() {
            return Err(Failure::Later("its name has no address".to_owned()));
        }
        if found.iter().all(|address| may_be_told(address.ip(), &self.allowed)) {
            Ok(found)
        } else {
            Err(Failure::Forbidden)
        }
    }
}

/// A connection to the first address that takes one.
async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses.iter().take(ADDRESSES_MAX) {
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

fn request(target: &Target, message: &Message, unix_s: u64) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(message.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target.path.clone();
    let headers = request.headers_mut();
    headers.insert(HOST, target.host_header.clone());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let signature = target.key.as_ref().map(|key| message.signature(key, unix_s));
    for (name, value) in
        [("tidegate-delivery", Some(message.id.clone())), ("tidegate-signature", signature)]
    {
        // Digits and letters are always a header's value.
        if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    }
    request
}

/// Sends a request on a connection of its own, and takes what it is answered, up to a bound.
async fn exchange<T>(stream: T, request: Request<Full<Bytes>>) -> Result<StatusCode, Failure>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake =
        http1::Builder::new().max_buf_size(ANSWER_BYTES_MAX).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(later)?;
    let mut sending = pin!(async {
        let response = sender.send_request(request).await.map_err(later)?;
        let (head, body) = response.into_parts();
        // What it says is of no interest, but it may want to have said it.
        let _ = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        Ok(head.status)
    });
    // Both here and not in a task, so that the connection ends with the time for the attempt. When
    // it has ended before, whoever sends knows what came of it.
    tokio::select! {
        biased;
        sent = sending.as_mut() => sent,
        _ = connection => sending.await,
    }
}

fn later(error: impl fmt::Display) -> Failure {
    Failure::Later(error.to_string())
}
