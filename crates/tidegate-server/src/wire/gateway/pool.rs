//! Sends requests to the upstream: on a kept connection, or else on a new one.
//!
//! Every request that uses a connection has a permit, and so has a tunnel. Clients share the permits
//! fairly (`permits.rs`). A request with a permit takes the kept connection that was used last, and opens
//! a new one only if none is kept. So there are never more connections than permits.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tidegate::engine::Client;
use tokio::time::{Instant, interval, sleep, timeout};

use super::body::{Upload, UploadProgress, UploadState};
use super::permits::Permits;
use super::upstream::{UpstreamConnection, UpstreamPermit};
use super::{GatewayBounds, Upstream, page};
use crate::body::Body;
use crate::respond;
use crate::telemetry::UpstreamFailure;

/// The shortest time between two looks at the kept connections.
const SWEEP_MIN: Duration = Duration::from_millis(100);

pub(super) struct Pool {
    upstream: Upstream,
    bounds: GatewayBounds,
    permits: Permits,
    idle: Arc<IdleConnections>,
}

/// Why the upstream does not answer a request.
#[derive(Debug)]
pub(super) enum UpstreamError {
    /// There is no connection.
    Unreachable(io::Error),
    /// All connections are in use, and none came free in time.
    Crowded,
    /// The connection ended, or did not speak HTTP.
    Broken(hyper::Error),
    /// The answer takes too long.
    TimedOut,
    /// The client takes too long to send its body.
    ClientTimedOut,
    ClientBrokeOff,
}

impl Pool {
    pub(super) fn new(upstream: Upstream, bounds: GatewayBounds) -> Self {
        let permits = Permits::new(bounds.connections_max);
        let idle = Arc::<IdleConnections>::default();
        tokio::spawn(close_expired(Arc::downgrade(&idle), bounds.idle));
        Self { upstream, bounds, permits, idle }
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(
        &self,
        request: Request<Upload>,
        client: Option<Client>,
    ) -> Result<(Response<Incoming>, PooledConnection), UpstreamError> {
        let progress = request.body().progress();
        let sending = self.try_each(request, client);
        let sent = match &progress {
            None => {
                let sent = timeout(self.bounds.upstream, sending).await;
                sent.unwrap_or(Err(UpstreamError::TimedOut))
            }
            Some(progress) => self.watch_upload(sending, progress).await,
        };
        let (response, connection) = sent?;
        connection.allowance.lift();
        let (idle, idle_max) = (Arc::clone(&self.idle), self.bounds.idle_max);
        Ok((response, PooledConnection { connection, progress, idle, idle_max }))
    }

    /// Waits for an answer while a body is uploaded. Each piece of the body has the body's timeout; the
    /// answer's timeout begins with the last piece.
    async fn watch_upload<T>(
        &self,
        sending: impl Future<Output = Result<T, UpstreamError>>,
        progress: &UploadProgress,
    ) -> Result<T, UpstreamError> {
        let mut sending = pin!(sending);
        let mut check = interval(self.bounds.body.min(self.bounds.upstream) / 4);
        let (mut pieces, mut since) = (0, Instant::now());
        loop {
            tokio::select! {
                sent = sending.as_mut() => {
                    return sent.map_err(|error| error.or_of_client(progress.state()));
                }
                _ = check.tick() => {}
            }
            if std::mem::replace(&mut pieces, progress.pieces()) != pieces {
                since = Instant::now();
            }
            let state = progress.state();
            let is_finished = state == UploadState::Finished;
            let bound = if is_finished { self.bounds.upstream } else { self.bounds.body };
            if since.elapsed() >= bound {
                return Err(match state {
                    UploadState::AwaitsClient => UpstreamError::ClientTimedOut,
                    _ => UpstreamError::TimedOut,
                });
            }
        }
    }

    /// Tries kept connections, then a new one. The upstream may have closed a kept one already: a request
    /// that was not written is sent again; one that was written, once, and only if it may be repeated.
    async fn try_each(
        &self,
        mut request: Request<Upload>,
        client: Option<Client>,
    ) -> Result<(Response<Incoming>, UpstreamConnection), UpstreamError> {
        let permit = timeout(self.bounds.connect, self.permits.acquire(client)).await;
        let Ok(permit) = permit else { return Err(UpstreamError::Crowded) };
        let permit = Arc::new(permit);
        while let Some(mut connection) = self.idle.take_newest(self.bounds.idle) {
            // The last answer is over, so the connection is ready, or closed, once its task has run.
            if connection.sender.ready().await.is_err() {
                continue;
            }
            connection.set_permit(Some(Arc::clone(&permit)));
            connection.allowance.expect_head();
            let spare = copy_repeatable(&request);
            let mut failed = match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(failed) => failed,
            };
            match (failed.take_message(), spare) {
                (Some(unsent), _) => request = unsent,
                (None, Some(spare)) if is_closed(failed.error()) => {
                    request = spare;
                    break;
                }
                (None, _) => return Err(UpstreamError::Broken(failed.into_error())),
            }
        }
        let mut connection = self.connect(permit).await?;
        let sent = connection.sender.send_request(request).await;
        Ok((sent.map_err(UpstreamError::Broken)?, connection))
    }

    async fn connect(&self, permit: UpstreamPermit) -> Result<UpstreamConnection, UpstreamError> {
        let connecting = timeout(self.bounds.connect, self.upstream.connect(permit)).await;
        let connected = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(UpstreamError::Unreachable)
    }
}

impl UpstreamError {
    /// The client's own failure, where a broken upload has broken the connection.
    fn or_of_client(self, upload: UploadState) -> Self {
        match (self, upload) {
            (Self::Broken(_), UploadState::ClientTimedOut) => Self::ClientTimedOut,
            (Self::Broken(_), UploadState::ClientBrokeOff) => Self::ClientBrokeOff,
            (error, _) => error,
        }
    }

    /// The upstream's failure, with its description for the log; `None` if the client failed.
    pub(super) fn failure(&self) -> Option<(UpstreamFailure, String)> {
        Some(match self {
            Self::Unreachable(error) => {
                (UpstreamFailure::Unreachable, format!("the upstream cannot be reached: {error}"))
            }
            Self::Crowded => {
                let detail = "a request found all connections to the upstream in use";
                (UpstreamFailure::Crowded, detail.to_owned())
            }
            Self::Broken(error) => {
                (UpstreamFailure::Broken, format!("the upstream did not answer: {error}"))
            }
            Self::TimedOut => {
                (UpstreamFailure::TimedOut, "the upstream did not answer in time".to_owned())
            }
            Self::ClientTimedOut | Self::ClientBrokeOff => return None,
        })
    }

    /// Answers the client instead of the upstream: people with a page.
    pub(super) fn to_response(&self, for_people: bool) -> Response<Body> {
        let (status, detail) = match self {
            Self::Unreachable(_) => (StatusCode::BAD_GATEWAY, "the upstream cannot be reached"),
            Self::Crowded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "all connections to the upstream are in use, and none came free in time",
            ),
            Self::Broken(_) => (StatusCode::BAD_GATEWAY, "the upstream did not answer"),
            Self::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "the upstream did not answer in time"),
            Self::ClientTimedOut => (StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
            Self::ClientBrokeOff => (StatusCode::BAD_REQUEST, "the body could not be read"),
        };
        let mut response = match for_people && status.is_server_error() {
            true => page::unavailable(status),
            false => respond::problem(status, detail),
        };
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A connection whose answer is being read. If it is dropped, it is closed, and the upstream notices.
pub(super) struct PooledConnection {
    connection: UpstreamConnection,
    progress: Option<Arc<UploadProgress>>,
    idle: Arc<IdleConnections>,
    idle_max: usize,
}

impl PooledConnection {
    /// True if the connection ended because the client did not finish its request.
    pub(super) fn is_broken_by_client(&self) -> bool {
        let state = self.progress.as_ref().map(|progress| progress.state());
        matches!(state, Some(UploadState::ClientTimedOut | UploadState::ClientBrokeOff))
    }

    /// Keeps the connection for the next request, unless this one is still being uploaded.
    pub(super) fn give_back(self) {
        let is_sent = self.progress.is_none_or(|sent| sent.state() == UploadState::Finished);
        if is_sent && !self.connection.sender.is_closed() {
            let permit = self.connection.set_permit(None);
            self.idle.add(self.connection, self.idle_max);
            // Only now, so that the next request with a permit finds the connection.
            drop(permit);
        }
    }
}

/// Connections that wait for the next request, the last used at the back.
#[derive(Default)]
struct IdleConnections(Mutex<VecDeque<(UpstreamConnection, Instant)>>);

impl IdleConnections {
    fn add(&self, connection: UpstreamConnection, max: usize) {
        let mut connections = self.lock();
        connections.push_back((connection, Instant::now()));
        if connections.len() > max {
            connections.pop_front();
        }
    }

    fn take_newest(&self, idle_timeout: Duration) -> Option<UpstreamConnection> {
        let mut connections = self.lock();
        let (connection, since) = connections.pop_back()?;
        if since.elapsed() < idle_timeout {
            return Some(connection);
        }
        // All others are older. An expired connection has no permit, so it must not stay open.
        connections.clear();
        None
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(UpstreamConnection, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes kept connections when their time is over, for as long as the pool is there.
async fn close_expired(idle: Weak<IdleConnections>, idle_timeout: Duration) {
    loop {
        sleep((idle_timeout / 4).max(SWEEP_MIN)).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut connections = idle.lock();
        while connections.front().is_some_and(|(_, since)| since.elapsed() >= idle_timeout) {
            connections.pop_front();
        }
    }
}

/// The same request once more, if it may be repeated.
fn copy_repeatable(request: &Request<Upload>) -> Option<Request<Upload>> {
    if !request.body().is_empty() || !request.method().is_idempotent() {
        return None;
    }
    let mut copy = Request::new(Upload::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// True if the connection ended, rather than saying something that is not HTTP.
fn is_closed(error: &hyper::Error) -> bool {
    !error.is_parse() && !error.is_user() && !error.is_timeout()
}
