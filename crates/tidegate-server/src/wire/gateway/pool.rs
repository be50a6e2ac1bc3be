//! Sending a request to the upstream: on a kept connection, or else on a new one.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::time::{Instant, interval, timeout};

use super::connection::Sender;
use super::places::{Patience, Places, Turn, UpstreamPlace};
use super::unanswered::Unanswered;
use super::upload::{Progress, Upload};
use super::{GatewayBounds, Upstream};

/// Connections that are kept for the next request.
pub(super) struct Pool {
    upstream: Upstream,
    bounds: GatewayBounds,
    places: Arc<Places>,
}

impl Pool {
    pub(super) fn new(upstream: Upstream, bounds: GatewayBounds) -> Self {
        Self { upstream, bounds, places: Places::new(bounds) }
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(
        &self,
        request: Request<Upload>,
    ) -> Result<(Response<Incoming>, Pooled), Unanswered> {
        let progress = request.body().progress();
        let sending = self.try_each(request);
        let sent = match &progress {
            None => timeout(self.bounds.upstream, sending).await.unwrap_or(Err(Unanswered::Late)),
            Some(progress) => self.watch(sending, progress).await,
        };
        let (response, sender) = sent?;
        Ok((response, Pooled { sender, places: Arc::clone(&self.places), progress }))
    }

    /// Waits for an answer while a body is sent: its pieces may take their time, one by one, and the
    /// answer's own time begins with the last.
    async fn watch<T>(
        &self,
        sending: impl Future<Output = Result<T, Unanswered>>,
        progress: &Progress,
    ) -> Result<T, Unanswered> {
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
                return Err(if awaits_client { Unanswered::ClientLate } else { Unanswered::Late });
            }
        }
    }

    /// Tries kept connections, then a new one. The upstream may have closed a kept one already: what
    /// was not written is sent again, and what was only if it may be repeated, once.
    async fn try_each(
        &self,
        mut request: Request<Upload>,
    ) -> Result<(Response<Incoming>, Sender), Unanswered> {
        let mut patience = Patience::of(self.bounds.connect);
        let place = loop {
            let turn = self.places.turn(&mut patience).await.ok_or(Unanswered::Crowded)?;
            let mut sender = match turn {
                Turn::Open(place) => break place,
                Turn::Kept(sender) => sender,
            };
            // Its last answer is over, so that it is ready, or closed, as soon as its task has run.
            if sender.ready().await.is_err() {
                continue;
            }
            let spare = repeated(&request);
            let mut failed = match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(failed) => failed,
            };
            match (failed.take_message(), spare) {
                (Some(unsent), _) => request = unsent,
                (None, Some(spare)) if is_closed(failed.error()) => {
                    request = spare;
                    break self.places.place(&mut patience).await.ok_or(Unanswered::Crowded)?;
                }
                (None, _) => return Err(Unanswered::Broken(failed.into_error())),
            }
        };
        let mut sender = self.connect(place).await?;
        let response = sender.send_request(request).await.map_err(Unanswered::Broken)?;
        Ok((response, sender))
    }

    async fn connect(&self, place: UpstreamPlace) -> Result<Sender, Unanswered> {
        let connecting = timeout(self.bounds.connect, self.upstream.connect(place)).await;
        let connected = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(Unanswered::Unreachable)
    }
}

/// A connection whose answer is being read. Dropped, it ends, and the upstream notices.
pub(super) struct Pooled {
    sender: Sender,
    places: Arc<Places>,
    progress: Option<Arc<Progress>>,
}

impl Pooled {
    /// Whether it ended because the client did not bring its request to an end.
    pub(super) fn is_broken_by_client(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.is_broken())
    }

    /// The answer is over: the connection is kept, unless its request is still being sent.
    pub(super) fn give_back(self) {
        let is_sent = self.progress.is_none_or(|progress| progress.is_finished());
        if is_sent && !self.sender.is_closed() {
            self.places.keep(self.sender);
        }
    }
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
