//! Connection timeouts: slow heads, idle connections and clients that do not read their answers.
//!
//! Every connection notes what it does in a [`ConnectionActivity`], and the reaper looks at all of them
//! now and then. A timer for each head would cost every request more, and could not tell an idle
//! connection from one that sends its head a byte at a time.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::framing::Framing;
use super::unread::Linger;

/// How long a connection may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// For the head of a request, from its first byte.
    pub(crate) head: Duration,
    /// Without a request, between two of them or before the first.
    pub(crate) idle: Duration,
    /// Without reading anything of an answer.
    pub(crate) stalled: Duration,
}

impl ConnectionTimeouts {
    /// How often the reaper looks.
    pub(super) fn check_interval(&self) -> Duration {
        let shortest = self.head.min(self.idle).min(self.stalled);
        (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }
}

/// The timeout that a connection has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExceededTimeout {
    Head,
    Idle,
    Stalled,
}

/// What a connection does, and since when.
#[derive(Debug)]
pub(super) struct ConnectionActivity(Mutex<ActivityState>);

#[derive(Debug)]
pub(super) struct ActivityState {
    /// The number of requests that have arrived.
    requests: u64,
    /// The number of requests that are being answered.
    in_flight: u32,
    /// When the last request ended, or the connection began.
    idle_since: Instant,
    /// When the head that is being read began.
    head_since: Option<Instant>,
    /// Since when the socket takes no more bytes.
    stalled_since: Option<Instant>,
    /// Since when each HTTP/2 answer waits until hyper asks for its next piece, by the request's number:
    /// a client that grants no window leaves no trace on the socket.
    unread_since: HashMap<u64, Instant>,
    /// The number of the first request that does not say clearly where it ends.
    ambiguous_from: Option<u64>,
    /// In HTTP/2 frames come at any time, and the protocol bounds a head.
    is_http2: bool,
    /// The connection no longer speaks HTTP.
    has_switched: bool,
    /// The connection ends before everything is read that its peer sends.
    is_lingering: bool,
}

impl ConnectionActivity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(ActivityState {
            requests: 0,
            in_flight: 0,
            idle_since: Instant::now(),
            head_since: None,
            stalled_since: None,
            unread_since: HashMap::new(),
            ambiguous_from: None,
            is_http2: false,
            has_switched: false,
            is_lingering: false,
        })))
    }

    /// Notes a request that has arrived.
    pub(super) fn begin_request(self: &Arc<Self>, version: Version) -> InFlightRequest {
        let mut state = self.lock();
        let number = state.requests;
        state.requests += 1;
        state.in_flight += 1;
        state.is_http2 |= version == Version::HTTP_2;
        let is_ambiguous = state.ambiguous_from.is_some_and(|first| number >= first);
        InFlightRequest { activity: Arc::clone(self), number, is_ambiguous }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ActivityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActivityState {
    pub(super) fn is_http2(&self) -> bool {
        self.is_http2
    }

    /// True if a request has begun to arrive.
    pub(super) fn is_inside_head(&self) -> bool {
        self.head_since.is_some()
    }

    /// Before the connection ends, it reads on for a while, lest its last answer be lost.
    pub(super) fn set_lingering(&mut self) {
        self.is_lingering = true;
    }

    /// For how long no request is being answered, if none is.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        (self.in_flight == 0).then(|| self.idle_since.elapsed())
    }

    /// The timeout that the connection has exceeded, if any.
    pub(super) fn exceeded(&self, timeouts: &ConnectionTimeouts) -> Option<ExceededTimeout> {
        let lasts = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| since.elapsed());
        let unread_since = self.unread_since.values().min().copied();
        if lasts(self.stalled_since).max(lasts(unread_since)) >= timeouts.stalled {
            return Some(ExceededTimeout::Stalled);
        }
        let idle_for = self.idle_for()?;
        // A head that begins while another request is answered cannot go on before that answer ends.
        if lasts(self.head_since).min(idle_for) >= timeouts.head {
            return Some(ExceededTimeout::Head);
        }
        (idle_for >= timeouts.idle && !self.is_inside_head()).then_some(ExceededTimeout::Idle)
    }

    fn note_read(&mut self, framing: &mut Framing, bytes: &[u8]) {
        if self.is_http2 || self.has_switched {
            return;
        }
        framing.scan(bytes);
        self.is_http2 = framing.is_http2();
        self.ambiguous_from = framing.ambiguous_from();
        let began = || self.head_since.unwrap_or_else(Instant::now);
        self.head_since = framing.is_inside_head().then(began);
    }

    fn note_write<T>(&mut self, result: &Poll<T>) {
        let began = || self.stalled_since.unwrap_or_else(Instant::now);
        self.stalled_since = result.is_pending().then(began);
    }

    #[cfg(test)]
    pub(super) fn has_unread_answers(&self) -> bool {
        !self.unread_since.is_empty()
    }
}

/// A request that is being answered until this is dropped.
pub(crate) struct InFlightRequest {
    activity: Arc<ConnectionActivity>,
    number: u64,
    is_ambiguous: bool,
}

impl InFlightRequest {
    /// The next piece of the answer waits until hyper asks for it.
    pub(crate) fn set_unread(&self) {
        let mut state = self.activity.lock();
        if state.is_http2 {
            state.unread_since.insert(self.number, Instant::now());
        }
    }

    /// Hyper has asked for the next piece, which is still to come.
    pub(crate) fn clear_unread(&self) {
        self.activity.lock().unread_since.remove(&self.number);
    }

    /// The answer switches protocols: what follows it is not ours to read.
    pub(super) fn set_switched(&self) {
        self.activity.lock().has_switched = true;
    }

    pub(super) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }

    /// True if other servers could read the request's head differently.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let mut state = self.activity.lock();
        state.unread_since.remove(&self.number);
        state.idle_since = Instant::now();
        state.in_flight -= 1;
    }
}

/// A socket that notes what is read and written.
pub(super) struct ActivitySocket<T> {
    socket: T,
    activity: Arc<ConnectionActivity>,
    framing: Framing,
    linger: Option<Linger>,
}

impl<T> ActivitySocket<T> {
    pub(super) fn new(socket: T, activity: Arc<ConnectionActivity>) -> Self {
        Self { socket, activity, framing: Framing::default(), linger: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ActivitySocket<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buffer.filled().len();
        let result = Pin::new(&mut this.socket).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = &result {
            let bytes = buffer.filled().get(filled..).unwrap_or_default();
            this.activity.lock().note_read(&mut this.framing, bytes);
        }
        result
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ActivitySocket<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.activity.lock().note_write(&result);
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.socket).poll_shutdown(context))?;
            if !this.activity.lock().is_lingering {
                return Poll::Ready(Ok(()));
            }
        }
        let linger = this.linger.get_or_insert_with(Linger::new);
        linger.poll(&mut this.socket, context).map(Ok)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(context, buffers);
        self.activity.lock().note_write(&result);
        result
    }
}
