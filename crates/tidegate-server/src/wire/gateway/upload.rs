//! The request's body on its way to the upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::inspect::Inspected;
use super::silence::Silence;
use super::unanswered::Unanswered;
use crate::body::{BodyError, NextFrame};

/// What was read ahead, then the rest as it comes. Trailers are left out.
pub(super) struct Upload(Option<Box<Stream>>);

struct Stream {
    seen: Option<Bytes>,
    rest: Incoming,
    silence: Silence,
    progress: Arc<Progress>,
}

/// How far a body has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pieces: AtomicU64,
    finished: AtomicBool,
    waiting: AtomicBool,
    broken: AtomicBool,
    late: AtomicBool,
}

impl Progress {
    /// How many pieces went to the upstream.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// Whether all of it did.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }

    /// Whether the client is the one who keeps it waiting.
    pub(super) fn awaits_client(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether the client broke it off, or was too slow.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// A failure to send, or whatever the client did to cause it.
    pub(super) fn blame(&self, failure: Unanswered) -> Unanswered {
        let is_late = self.late.load(Ordering::Relaxed);
        match failure {
            Unanswered::Broken(_) if is_late => Unanswered::ClientLate,
            Unanswered::Broken(_) if self.is_broken() => Unanswered::ClientBroken,
            failure => failure,
        }
    }
}

impl Upload {
    /// No body.
    pub(super) const fn empty() -> Self {
        Self(None)
    }

    pub(super) fn new(Inspected { seen, rest }: Inspected, bound: Duration) -> Self {
        let seen = seen.filter(|seen| !seen.is_empty());
        if seen.is_none() && rest.is_end_stream() {
            return Self::empty();
        }
        let (silence, progress) = (Silence::of(bound), Arc::default());
        Self(Some(Box::new(Stream { seen, rest, silence, progress })))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn progress(&self) -> Option<Arc<Progress>> {
        self.0.as_ref().map(|stream| Arc::clone(&stream.progress))
    }

    /// Says how the body is framed where its length is not known: hyper would otherwise send a GET
    /// without it.
    pub(super) fn frame(&self, headers: &mut HeaderMap) {
        if self.0.is_some() && !headers.contains_key(header::CONTENT_LENGTH) {
            match self.size_hint().exact() {
                Some(length) => headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length)),
                None => {
                    headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"))
                }
            };
        }
    }
}

impl Stream {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(seen) = self.seen.take() {
            return Poll::Ready(Some(Ok(seen)));
        }
        loop {
            match Pin::new(&mut self.rest).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(piece) = frame.into_data() {
                        return Poll::Ready(Some(Ok(piece)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    let late = "the body did not come in time";
                    return self.silence.poll(context).map(|()| {
                        self.progress.late.store(true, Ordering::Relaxed);
                        Some(Err(late.into()))
                    });
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.seen.is_none() && self.rest.is_end_stream()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> NextFrame {
        let Some(stream) = &mut self.get_mut().0 else { return Poll::Ready(None) };
        let piece = stream.poll_piece(context);
        let progress = &stream.progress;
        progress.waiting.store(piece.is_pending(), Ordering::Relaxed);
        if let Poll::Ready(piece) = &piece {
            stream.silence.end();
            progress.pieces.fetch_add(1, Ordering::Relaxed);
            match piece {
                Some(Err(_)) => progress.broken.store(true, Ordering::Relaxed),
                Some(Ok(_)) if !stream.is_over() => {}
                _ => progress.finished.store(true, Ordering::Relaxed),
            }
        }
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|stream| stream.is_over())
    }

    fn size_hint(&self) -> SizeHint {
        let Some(stream) = &self.0 else { return SizeHint::with_exact(0) };
        let seen = stream.seen.as_ref().map_or(0, Bytes::len);
        let seen = u64::try_from(seen).unwrap_or(u64::MAX);
        let rest = stream.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(seen));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(seen));
        }
        hint
    }
}
