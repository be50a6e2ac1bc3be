//! The bodies that listeners answer with.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

use crate::listen::InFlightRequest;

/// What goes wrong while a body is streamed.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The next frame of a body.
pub(crate) type NextFrame = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// A body that a listener answers with. While it lasts, its request is in flight.
pub(crate) struct Body {
    content: UnsyncBoxBody<Bytes, BodyError>,
    is_whole: bool,
    in_flight: Option<InFlightRequest>,
}

impl Body {
    /// A body that is in memory.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        let body = Self::streamed(Full::new(bytes.into()).map_err(|never| match never {}));
        Self { is_whole: true, ..body }
    }

    /// No body.
    pub(crate) fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// A body that is sent as it comes.
    pub(crate) fn streamed(
        body: impl HttpBody<Data = Bytes, Error = BodyError> + Send + 'static,
    ) -> Self {
        Self { content: body.boxed_unsync(), is_whole: false, in_flight: None }
    }

    /// True if the body is in memory, and nothing is held for it.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Keeps the request in flight until the body is over.
    pub(crate) fn keep_in_flight(&mut self, in_flight: InFlightRequest) {
        in_flight.set_unread();
        self.in_flight = Some(in_flight);
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> NextFrame {
        let frame = Pin::new(&mut self.content).poll_frame(context);
        match (&frame, &self.in_flight) {
            (Poll::Ready(None), _) => self.in_flight = None,
            (Poll::Ready(Some(_)), Some(in_flight)) => in_flight.set_unread(),
            (Poll::Pending, Some(in_flight)) => in_flight.clear_unread(),
            (_, None) => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
