//! Asking a CAPTCHA service whether a person solved what it showed, in the siteverify form that
//! Turnstile, hCaptcha and reCAPTCHA share: secret, response and remoteip are posted, and JSON with
//! `success` comes back. Everything about it is bounded: how many are asked at once, how long that
//! takes, and how much is read.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tidegate::Key;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::port::port;
use crate::tls::Trust;

/// At most so many questions at once; who comes then is told to try again.
const AT_ONCE_MAX: usize = 64;
/// And so many of one client, which could take all places with solutions that are none.
const AT_ONCE_EACH: usize = 2;
/// How long an answer may take, from the name of the service to its last byte.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// No service has longer tokens.
const RESPONSE_BYTES_MAX: usize = 8 * 1024;

/// Asks the service that a policy names.
pub(super) struct Verifier {
    places: Semaphore,
    /// Whose solutions are being verified; no more than there are places.
    clients: Mutex<Vec<Key>>,
    answered_within: Duration,
    trust: OnceLock<Arc<Trust>>,
}

/// A client's place among those whose solutions are verified, until it is dropped.
pub(super) struct Place<'v> {
    verifier: &'v Verifier,
    client: Key,
    _permit: SemaphorePermit<'v>,
}

/// Why the service could not be asked, or was not understood. It names no secret.
#[derive(Debug)]
pub(super) struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a CAPTCHA could not be verified: {}", self.0)
    }
}

fn unavailable(why: impl fmt::Display) -> Unavailable {
    Unavailable(why.to_string())
}

/// What is read of the answer.
#[derive(Deserialize)]
struct Verified {
    success: bool,
}

impl Verifier {
    pub(super) fn new() -> Self {
        Self {
            places: Semaphore::new(AT_ONCE_MAX),
            clients: Mutex::default(),
            answered_within: ANSWERED_WITHIN,
            trust: OnceLock::new(),
        }
    }

    /// A place to ask from, if there is one left for this client.
    pub(super) fn place(&self, client: Key) -> Result<Place<'_>, Unavailable> {
        let mut clients = self.clients();
        if clients.iter().filter(|other| **other == client).count() >= AT_ONCE_EACH {
            return Err(unavailable("too many of one client are being verified"));
        }
        let Ok(permit) = self.places.try_acquire() else {
            return Err(unavailable("too many are being verified"));
        };
        clients.push(client);
        Ok(Place { verifier: self, client, _permit: permit })
    }

    fn clients(&self) -> MutexGuard<'_, Vec<Key>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, url: &str, form: String) -> Result<bool, Unavailable> {
        let uri: Uri = url.parse().map_err(unavailable)?;
        let authority = uri.authority().ok_or_else(|| unavailable("its URL has no host"))?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        if !is_tls && !is_loopback(&host) {
            return Err(unavailable("its URL is not https"));
        }
        let port = port(authority, is_tls)
            .ok_or_else(|| unavailable("its URL has a port that is none"))?;
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(unavailable)?;
        let request = request(&uri, authority.as_str(), form)?;
        if !is_tls {
            return exchange(stream, request).await;
        }
        let name = ServerName::try_from(host).map_err(unavailable)?;
        let stream = self.trust()?.connect(name, stream).await.map_err(unavailable)?;
        exchange(stream, request).await
    }

    fn trust(&self) -> Result<&Trust, Unavailable> {
        if let Some(trust) = self.trust.get() {
            return Ok(trust);
        }
        let loaded = Trust::load(None).map_err(unavailable)?;
        Ok(self.trust.get_or_init(|| loaded))
    }
}

impl Place<'_> {
    /// Whether the service says that its token was earned.
    pub(super) async fn verify(
        &self,
        url: &str,
        secret: &str,
        response: &str,
        client: Option<IpAddr>,
    ) -> Result<bool, Unavailable> {
        if response.is_empty() || response.len() > RESPONSE_BYTES_MAX {
            return Ok(false);
        }
        let form = form(secret, response, client);
        let asked = timeout(self.verifier.answered_within, self.verifier.ask(url, form)).await;
        asked.unwrap_or_else(|_| Err(unavailable("the service does not answer in time")))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut clients = self.verifier.clients();
        if let Some(at) = clients.iter().position(|client| *client == self.client) {
            clients.swap_remove(at);
        }
    }
}

fn form(secret: &str, response: &str, client: Option<IpAddr>) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("secret", secret).append_pair("response", response);
    if let Some(ip) = client {
        form.append_pair("remoteip", &ip.to_string());
    }
    form.finish()
}

fn request(uri: &Uri, host: &str, form: String) -> Result<Request<Full<Bytes>>, Unavailable> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Request::post(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::ACCEPT, "application/json")
        .body(Full::from(form))
        .map_err(unavailable)
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<bool, Unavailable>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(unavailable)?;
    let answered = async {
        let answer = sender.send_request(request).await.map_err(unavailable)?;
        if answer.status() != StatusCode::OK {
            return Err(unavailable(format_args!("it answers {}", answer.status())));
        }
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(unavailable)?.to_bytes();
        let verified: Verified = serde_json::from_slice(&body)
            .map_err(|_| unavailable("its answer is not JSON with `success`"))?;
        Ok(verified.success)
    };
    // The connection is carried on only while it is needed; how it ends is told to whoever waits.
    let carried_on = async {
        let _ = connection.await;
        std::future::pending().await
    };
    tokio::select! {
        answered = answered => answered,
        never = carried_on => never,
    }
}

/// Whether a host is this machine, by address or by the name that stands for it.
fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
#[path = "captcha_tests.rs"]
mod tests;
