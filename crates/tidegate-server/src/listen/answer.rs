//! An answer as hyper takes it: in pieces, which know when the client has taken them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::timeouts::InFlightRequest;
use super::untaken::PIECE_BYTES;
use crate::body::{Body, BodyError, Held};

/// The body of an answer on its connection. While it lasts, and in HTTP/2 until the client has taken the
/// last piece, its request is in flight.
pub(super) struct Answer {
    content: Body,
    in_flight: Option<Arc<InFlightRequest>>,
    /// What is left of the last frame of the content.
    rest: Bytes,
}

/// Bytes of an answer. In HTTP/2 the client has taken them once they are dropped: hyper keeps them until
/// the socket takes them. In HTTP/1.1 hyper copies them into a bounded buffer at once.
pub(super) struct Piece {
    bytes: Bytes,
    /// In HTTP/2.
    in_flight: Option<Arc<InFlightRequest>>,
    #[expect(dead_code, reason = "held, not read")]
    held: Option<Held>,
}

/// The next frame of an answer.
type NextPiece = Poll<Option<Result<Frame<Piece>, BodyError>>>;

impl Answer {
    pub(super) fn new(content: Body, in_flight: InFlightRequest) -> Self {
        in_flight.begin_answer();
        Self { content, in_flight: Some(Arc::new(in_flight)), rest: Bytes::new() }
    }

    /// The next frame of the content, as it comes.
    fn poll_content(&mut self, context: &mut Context<'_>) -> NextPiece {
        let frame = Pin::new(&mut self.content).poll_frame(context);
        if let Poll::Ready(None) = frame {
            self.in_flight = None;
            drop(self.content.take_held());
        }
        frame.map_ok(|frame| frame.map_data(Piece::new))
    }

    /// The next piece of the last frame. In HTTP/2 alone, since only there does hyper keep pieces.
    fn next_piece(&mut self, in_flight: Arc<InFlightRequest>) -> Piece {
        let is_last = self.content.is_end_stream() && self.rest.len() <= PIECE_BYTES;
        let mut length = self.rest.len().min(PIECE_BYTES);
        if is_last && self.content.is_holding() {
            // What the answer holds is given back before its last byte is sent: a client that sends its
            // next request at once finds the place free.
            match length {
                2.. => length -= 1,
                _ => drop(self.content.take_held()),
            }
        }
        let bytes = self.rest.split_to(length);
        in_flight.hand_out(bytes.len());
        Piece { bytes, in_flight: Some(in_flight), held: self.content.held() }
    }
}

impl HttpBody for Answer {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> NextPiece {
        let this = self.get_mut();
        let Some(in_flight) = this.in_flight.clone().filter(|one| one.is_http2()) else {
            return this.poll_content(context);
        };
        if !in_flight.has_room(context.waker()) {
            return Poll::Pending;
        }
        if this.rest.is_empty() {
            match this.poll_content(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(mut data) => this.rest = std::mem::take(&mut data.bytes),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Poll::Pending => {
                    in_flight.ask();
                    return Poll::Pending;
                }
                ended => return ended,
            }
        }
        Poll::Ready(Some(Ok(Frame::data(this.next_piece(in_flight)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.content.size_hint(), self.rest.len());
        let rest = u64::try_from(rest).unwrap_or(u64::MAX);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower().saturating_add(rest));
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper.saturating_add(rest));
        }
        whole
    }
}

impl Piece {
    /// Bytes that nobody waits for.
    fn new(bytes: Bytes) -> Self {
        Self { bytes, in_flight: None, held: None }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(in_flight) = &self.in_flight {
            in_flight.take(count);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(in_flight) = self.in_flight.as_ref().filter(|_| !self.bytes.is_empty()) {
            in_flight.take(self.bytes.len());
        }
    }
}
