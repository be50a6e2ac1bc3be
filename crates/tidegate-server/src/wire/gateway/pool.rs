//! Connections to the upstream: kept for the next request, last used first.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, interval, timeout};

use super::upload::{Progress, Upload};
use super::{GatewayBounds, Upstream};

/// One connection to the upstream, for one request at a time.
pub(super) type Sender = SendRequest<Upload>;

/// Connections that wait for the next request.
pub(super) struct Pool {
    upstream: Upstream,
    bounds: GatewayBounds,
    /// The last used at the back.
    idle: Mutex<VecDeque<Idle>>,
}

struct Idle {
    sender: Sender,
    since: Instant,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// There is no connection.
    Unreachable(io::Error),
    /// The connection ended, or spoke no HTTP.
    Broken(hyper::Error),
    /// The answer takes too long.
    Late,
    /// The client takes too long to send its body.
    ClientLate,
    /// The client broke off.
    ClientBroken,
}

impl Pool {
    pub(super) fn new(upstream: Upstream, bounds: GatewayBounds) -> Self {
        Self { upstream, bounds, idle: Mutex::default() }
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: Request<Upload>,
    ) -> Result<(Response<Incoming>, Pooled), Failure> {
        let progress = request.body().progress();
        let sending = self.try_each(request);
        let sent = match &progress {
            None => timeout(self.bounds.upstream, sending).await.unwrap_or(Err(Failure::Late)),
            Some(progress) => self.watch(sending, progress).await,
        };
        let (response, sender) = sent?;
        Ok((response, Pooled { sender, pool: Arc::clone(self), progress }))
    }

    /// Waits for an answer while a body is sent: its pieces may take their time, one by one, and the
    /// answer's own time begins with the last.
    async fn watch<T>(
        &self,
        sending: impl Future<Output = Result<T, Failure>>,
        progress: &Progress,
    ) -> Result<T, Failure> {
        let mut sending = pin!(sending);
        let mut check = interval(self.bounds.body.min(self.bounds.upstream) / 4);
        let (mut pieces, mut since) = (0, Instant::now());
        loop {
            tokio::select! {
                sent = sending.as_mut() => {
                    return sent.map_err(|failure| progress.blame(failure));
                }
                _ = check.tick() => {}
            }
            if std::mem::replace(&mut pieces, progress.pieces()) != pieces {
                since = Instant::now();
            }
            let is_finished = progress.is_finished();
            let bound = if is_finished { self.bounds.upstream } else { self.bounds.body };
            if since.elapsed() >= bound {
                let awaits_client = !is_finished && progress.awaits_client();
                return Err(if awaits_client { Failure::ClientLate } else { Failure::Late });
            }
        }
    }

    /// Tries kept connections, then a new one. The upstream may have closed a kept one already: what
    /// was not written is sent again, and what was only if it may be repeated, once.
    async fn try_each(
        &self,
        mut request: Request<Upload>,
    ) -> Result<(Response<Incoming>, Sender), Failure> {
        while let Some(mut sender) = self.kept().await {
            let spare = repeated(&request);
            let mut failed = match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(failed) => failed,
            };
            match (failed.take_message(), spare) {
                (Some(unsent), _) => request = unsent,
                (None, Some(spare)) if is_closed(failed.error()) => {
                    request = spare;
                    break;
                }
                (None, _) => return Err(Failure::Broken(failed.into_error())),
            }
        }
        let connecting = timeout(self.bounds.connect, self.upstream.connect()).await;
        let connected = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let mut sender = connected.map_err(Failure::Unreachable)?;
        let response = sender.send_request(request).await.map_err(Failure::Broken)?;
        Ok((response, sender))
    }

    /// A kept connection that is still open.
    async fn kept(&self) -> Option<Sender> {
        loop {
            let Idle { mut sender, since } = self.lock().pop_back()?;
            // Its last answer is over, so that it is ready, or closed, as soon as its task has run.
            if since.elapsed() < self.bounds.idle && sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn keep(&self, sender: Sender) {
        let since = Instant::now();
        let mut idle = self.lock();
        idle.push_back(Idle { sender, since });
        let is_old = |oldest: &Idle| since.duration_since(oldest.since) >= self.bounds.idle;
        while idle.len() > self.bounds.idle_max || idle.front().is_some_and(is_old) {
            idle.pop_front();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose answer is being read. Dropped, it ends, and the upstream notices.
pub(super) struct Pooled {
    sender: Sender,
    pool: Arc<Pool>,
    progress: Option<Arc<Progress>>,
}

impl Pooled {
    /// The answer is over: the connection is kept, unless its request is still being sent.
    pub(super) fn give_back(self) {
        let is_sent = self.progress.is_none_or(|progress| progress.is_finished());
        if is_sent && !self.sender.is_closed() {
            self.pool.keep(self.sender);
        }
    }
}

/// Starts HTTP/1.1 on a connection.
pub(super) async fn handshake<T>(stream: T) -> io::Result<Sender>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // How it ends is told to whoever waits for an answer.
    tokio::spawn(async move { drop(connection.with_upgrades().await) });
    Ok(sender)
}

/// The same request once more, if it may be repeated.
fn repeated(request: &Request<Upload>) -> Option<Request<Upload>> {
    if !request.body().is_empty() || !request.method().is_idempotent() {
        return None;
    }
    let mut spare = Request::new(Upload::empty());
    *spare.method_mut() = request.method().clone();
    *spare.uri_mut() = request.uri().clone();
    *spare.headers_mut() = request.headers().clone();
    Some(spare)
}

/// Whether the connection ended, rather than saying something that is no HTTP.
fn is_closed(error: &hyper::Error) -> bool {
    !error.is_parse() && !error.is_user() && !error.is_timeout()
}
