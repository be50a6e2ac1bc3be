//! The pace of a connection: who sends a head too slowly, reads an answer too slowly or has nothing
//! to say for too long is let go.
//!
//! Every connection has a pulse that its socket and its requests touch, and one check now and then.
//! That costs a request nothing, where a timer for each head would be made and dropped with it; and
//! an idle connection is told from one that sends its head a byte at a time.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use arrayvec::ArrayVec;
use http::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::framing::Framing;

/// As many bytes in several pieces are written as one.
const TOGETHER_MAX: usize = 4 * 1024;

/// How long a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// For the head of a request, from its first byte.
    pub head: Duration,
    /// Without a request, between two of them or before the first.
    pub idle: Duration,
    /// Without taking anything of an answer.
    pub stalled: Duration,
}

impl Pace {
    /// How often to look.
    pub(crate) fn check_every(&self) -> Duration {
        let shortest = self.head.min(self.idle).min(self.stalled);
        (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }
}

/// What a connection is doing, and since when.
#[derive(Debug)]
pub(crate) struct Pulse {
    born: Instant,
    in_flight: AtomicU32,
    /// HTTP/2, where frames come at any time and a head is bounded by the protocol.
    multiplexed: AtomicBool,
    /// When the last request was over, in milliseconds since birth.
    idle_since_ms: AtomicU64,
    /// When the head that is being read began; 0 if none is.
    head_since_ms: AtomicU64,
    /// Since when the socket takes no more; 0 if it does.
    stalled_since_ms: AtomicU64,
    /// Since when the answers of HTTP/2 that nobody asks for wait, by the number of the request:
    /// a client that grants no window leaves no trace on the socket.
    waiting: Mutex<HashMap<u64, u64>>,
    /// How many requests have arrived.
    begun: AtomicU64,
    /// The first of them that does not say clearly where it ends.
    ambiguous_from: AtomicU64,
    /// It is no longer HTTP that is spoken.
    switched: AtomicBool,
}

impl Pulse {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            born: Instant::now(),
            in_flight: AtomicU32::new(0),
            multiplexed: AtomicBool::new(false),
            idle_since_ms: AtomicU64::new(0),
            head_since_ms: AtomicU64::new(0),
            stalled_since_ms: AtomicU64::new(0),
            waiting: Mutex::default(),
            begun: AtomicU64::new(0),
            ambiguous_from: AtomicU64::new(u64::MAX),
            switched: AtomicBool::new(false),
        })
    }

    /// Milliseconds since birth, never 0.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// A request has arrived.
    pub(crate) fn begin(self: &Arc<Self>, version: Version) -> InFlight {
        if version == Version::HTTP_2 {
            self.multiplexed.store(true, Ordering::Relaxed);
        }
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let index = self.begun.fetch_add(1, Ordering::Relaxed);
        let is_ambiguous = index >= self.ambiguous_from.load(Ordering::Relaxed);
        let waits_as = (version == Version::HTTP_2).then_some(index);
        InFlight { pulse: Arc::clone(self), is_ambiguous, waits_as }
    }

    /// Whether it speaks HTTP/2.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// Whether a request has begun to arrive.
    pub(crate) fn is_inside_head(&self) -> bool {
        self.head_since_ms.load(Ordering::Relaxed) > 0
    }

    /// Whether no request is being answered, and for how long that has been so.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let since_ms = self.idle_since_ms.load(Ordering::Relaxed);
        Some(Duration::from_millis(self.now_ms().saturating_sub(since_ms)))
    }

    /// Why the connection should be let go, if it should.
    pub(crate) fn late(&self, pace: &Pace) -> Option<Late> {
        let now_ms = self.now_ms();
        let lasts = |since: &AtomicU64| {
            let since_ms = since.load(Ordering::Relaxed);
            let lasted = Duration::from_millis(now_ms.saturating_sub(since_ms));
            if since_ms > 0 { lasted } else { Duration::ZERO }
        };
        let stuck_for = self.stuck_since_ms().map(|since_ms| now_ms.saturating_sub(since_ms));
        let stuck_for = Duration::from_millis(stuck_for.unwrap_or_default());
        if lasts(&self.stalled_since_ms).max(stuck_for) >= pace.stalled {
            return Some(Late::Stalled);
        }
        let idle_for = self.idle_for()?;
        // What came of a head while another request was answered could not go on before its end.
        if lasts(&self.head_since_ms).min(idle_for) >= pace.head {
            return Some(Late::Head);
        }
        (idle_for >= pace.idle && !self.is_inside_head()).then_some(Late::Idle)
    }

    /// Since when the answer waits that has waited longest to be asked for.
    fn stuck_since_ms(&self) -> Option<u64> {
        self.waiting().values().min().copied()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something came.
    fn read(&self, framing: &mut Framing, bytes: &[u8]) {
        if self.is_multiplexed() || self.switched.load(Ordering::Relaxed) {
            return;
        }
        framing.scan(bytes);
        if framing.is_http2() {
            self.multiplexed.store(true, Ordering::Relaxed);
        }
        if let Some(index) = framing.ambiguous_from() {
            self.ambiguous_from.store(index, Ordering::Relaxed);
        }
        match (framing.is_inside_head(), self.head_since_ms.load(Ordering::Relaxed)) {
            (true, 0) => self.head_since_ms.store(self.now_ms(), Ordering::Relaxed),
            (false, 1..) => self.head_since_ms.store(0, Ordering::Relaxed),
            _ => {}
        }
    }

    fn wrote<T>(&self, result: &Poll<T>) {
        let stalled_since_ms = self.stalled_since_ms.load(Ordering::Relaxed);
        match (result, stalled_since_ms) {
            (Poll::Pending, 0) => self.stalled_since_ms.store(self.now_ms(), Ordering::Relaxed),
            (Poll::Ready(_), 1..) => self.stalled_since_ms.store(0, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// What took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    Head,
    Idle,
    Stalled,
}

/// A request that is being answered; over when dropped.
pub(crate) struct InFlight {
    pulse: Arc<Pulse>,
    is_ambiguous: bool,
    /// Its number, where its answer could wait unseen.
    waits_as: Option<u64>,
}

impl InFlight {
    /// The answer, or more of it, waits from now on until it is asked for.
    pub(crate) fn waits(&self) {
        if let Some(index) = self.waits_as {
            self.pulse.waiting().insert(index, self.pulse.now_ms());
        }
    }

    /// The answer was asked for, and has nothing to say yet.
    pub(crate) fn is_awaited(&self) {
        if let Some(index) = self.waits_as {
            self.pulse.waiting().remove(&index);
        }
    }

    /// Its answer switches protocols: what comes behind it is none of ours.
    pub(crate) fn switches(&self) {
        self.pulse.switched.store(true, Ordering::Relaxed);
    }

    /// Whether it has a head that others could read differently.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.is_awaited();
        let pulse = &*self.pulse;
        pulse.idle_since_ms.store(pulse.now_ms(), Ordering::Relaxed);
        pulse.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket that touches a pulse.
pub(crate) struct Paced<T> {
    socket: T,
    pulse: Arc<Pulse>,
    framing: Framing,
}

impl<T> Paced<T> {
    pub(crate) fn new(socket: T, pulse: Arc<Pulse>) -> Self {
        Self { socket, pulse, framing: Framing::new() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Paced<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buffer.filled().len();
        let result = Pin::new(&mut this.socket).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = &result {
            this.pulse.read(&mut this.framing, buffer.filled().get(filled..).unwrap_or_default());
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Paced<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.pulse.wrote(&result);
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A head and a small body: to copy them takes less than to tell the system of both.
        let are_small = buffers.iter().map(|buffer| buffer.len()).sum::<usize>() <= TOGETHER_MAX;
        let socket = Pin::new(&mut self.socket);
        let result = if are_small {
            let mut together = ArrayVec::<u8, TOGETHER_MAX>::new();
            // They fit, as was just seen.
            for buffer in buffers {
                let _ = together.try_extend_from_slice(buffer);
            }
            socket.poll_write(context, &together)
        } else {
            socket.poll_write_vectored(context, buffers)
        };
        self.pulse.wrote(&result);
        result
    }
}
