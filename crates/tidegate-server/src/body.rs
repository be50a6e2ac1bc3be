//! The bodies that listeners answer with.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;

use crate::listen::InFlightRequest;

/// What goes wrong while a body is passed on.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// What comes next of a body.
pub(crate) type NextFrame = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// A body that a listener answers with. While it lasts, its request is in flight.
pub(crate) struct Body {
    content: Content,
    in_flight: Option<InFlightRequest>,
}

enum Content {
    /// All of it, in memory.
    Whole(Full<Bytes>),
    /// Passed on as it comes.
    Streamed(Pin<Box<dyn HttpBody<Data = Bytes, Error = BodyError> + Send>>),
}

impl Body {
    /// A body that is in memory.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { content: Content::Whole(Full::new(bytes.into())), in_flight: None }
    }

    /// No body.
    pub(crate) fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// A body that is passed on as it comes.
    pub(crate) fn streamed(
        body: impl HttpBody<Data = Bytes, Error = BodyError> + Send + 'static,
    ) -> Self {
        Self { content: Content::Streamed(Box::pin(body)), in_flight: None }
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

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> NextFrame {
        let this = self.get_mut();
        let frame = match &mut this.content {
            Content::Whole(body) => Pin::new(body)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
            Content::Streamed(body) => body.as_mut().poll_frame(context),
        };
        match (&frame, &this.in_flight) {
            (Poll::Ready(None), _) => this.in_flight = None,
            (Poll::Ready(Some(_)), Some(in_flight)) => in_flight.set_unread(),
            (Poll::Pending, Some(in_flight)) => in_flight.clear_unread(),
            (_, None) => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(body) => body.is_end_stream(),
            Content::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(body) => body.size_hint(),
            Content::Streamed(body) => body.size_hint(),
        }
    }
}
