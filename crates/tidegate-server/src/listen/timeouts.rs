//! Connection timeouts: slow heads, idle connections and clients that do not read their answers.
//!
//! Every connection notes what it does in a [`ConnectionActivity`], and the reaper looks at all of them
//! now and then. A timer for each head would cost every request more, and could not tell an idle
//! connection from one that sends its head a byte at a time.

use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use http::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::frames::{FrameBudget, FrameScanner};
use super::framing::Framing;
use super::patience::Patience;
use super::unread::Linger;
use super::untaken::UntakenAnswers;

/// How long a connection may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// For the head of a request, from its first byte.
    pub(crate) head: Duration,
    /// Without a request, between two of them or before the first.
    pub(crate) idle: Duration,
    /// Without reading anything of an answer, or less than 1 KiB a second.
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
    /// With a client that does not read what is written to the socket.
    patience: Patience,
    /// The answers of HTTP/2: a client that grants no window leaves no trace on the socket.
    untaken: UntakenAnswers,
    /// What HTTP/2 frames without a request may still come.
    frames: FrameBudget,
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
    /// `untaken_bytes` counts what all connections hold of their answers.
    pub(super) fn new(timeouts: &ConnectionTimeouts, untaken_bytes: Arc<AtomicUsize>) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self(Mutex::new(ActivityState {
            requests: 0,
            in_flight: 0,
            idle_since: now,
            head_since: None,
            patience: Patience::new(timeouts.stalled, now),
            untaken: UntakenAnswers::new(timeouts.stalled, untaken_bytes),
            frames: FrameBudget::new(now),
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
        let is_http2 = version == Version::HTTP_2;
        state.is_http2 |= is_http2;
        let is_ambiguous = state.ambiguous_from.is_some_and(|first| number >= first);
        InFlightRequest { activity: Arc::clone(self), number, is_http2, is_ambiguous }
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

    /// Since when no request is being answered, if none is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.in_flight == 0).then_some(self.idle_since)
    }

    /// For how long no request is being answered, if none is.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        self.idle_since().map(|since| since.elapsed())
    }

    /// The timeout that the connection has exceeded, if any.
    pub(super) fn exceeded(&self, timeouts: &ConnectionTimeouts) -> Option<ExceededTimeout> {
        let now = Instant::now();
        if self.patience.is_over(now) || self.untaken.is_late(now) {
            return Some(ExceededTimeout::Stalled);
        }
        let idle_for = self.idle_for()?;
        let head_lasts = self.head_since.map_or(Duration::ZERO, |since| since.elapsed());
        // A head that begins while another request is answered cannot go on before that answer ends.
        if head_lasts.min(idle_for) >= timeouts.head {
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

    fn note_write(&mut self, result: &Poll<io::Result<usize>>) {
        if result.is_ready() && self.patience.is_rested() {
            return;
        }
        let now = Instant::now();
        if let Poll::Ready(Ok(bytes)) = result {
            self.patience.take(*bytes, 1, now);
        }
        self.patience.set_waiting(result.is_pending(), now);
    }

    #[cfg(test)]
    pub(super) fn has_untaken_answers(&self) -> bool {
        self.untaken.is_waiting()
    }
}

/// A request that is being answered until this is dropped.
pub(crate) struct InFlightRequest {
    activity: Arc<ConnectionActivity>,
    number: u64,
    is_http2: bool,
    is_ambiguous: bool,
}

impl InFlightRequest {
    pub(super) fn is_http2(&self) -> bool {
        self.is_http2
    }

    /// The answer has begun, and waits until hyper asks for its first piece.
    pub(super) fn begin_answer(&self) {
        if self.is_http2 {
            self.activity.lock().untaken.begin(self.number, Instant::now());
        }
    }

    /// False if the next piece must wait until the client has taken others.
    pub(super) fn has_room(&self, waker: &Waker) -> bool {
        let has_room = self.activity.lock().untaken.has_room(self.number, waker);
        if !has_room {
            self.ask();
        }
        has_room
    }

    /// hyper has asked for the next piece, which is still to come.
    pub(super) fn ask(&self) {
        self.activity.lock().untaken.ask(self.number, Instant::now());
    }

    /// A piece was handed to hyper.
    pub(super) fn hand_out(&self, bytes: usize) {
        let mut state = self.activity.lock();
        state.untaken.hand_out(self.number, bytes, Instant::now());
        state.frames.add_piece(bytes);
    }

    /// Bytes of the answer were taken, or dropped.
    pub(super) fn take(&self, bytes: usize) {
        let woken = self.activity.lock().untaken.take(self.number, bytes, Instant::now());
        woken.into_iter().for_each(Waker::wake);
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
        state.untaken.end(self.number);
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
    frames: FrameScanner,
}

impl<T> ActivitySocket<T> {
    pub(super) fn new(socket: T, activity: Arc<ConnectionActivity>) -> Self {
        let (framing, frames) = (Framing::default(), FrameScanner::default());
        Self { socket, activity, framing, frames, linger: None }
    }

    /// Notes bytes that were read. Fails on a flood of frames.
    fn note_read(&mut self, bytes: &[u8]) -> io::Result<()> {
        let counts = self.frames.scan(bytes);
        let mut state = self.activity.lock();
        state.note_read(&mut self.framing, bytes);
        match state.frames.spend(counts, Instant::now) {
            true => Ok(()),
            false => Err(io::Error::other("too many HTTP/2 frames without a request")),
        }
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
            this.note_read(buffer.filled().get(filled..).unwrap_or_default())?;
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
