//! The bodies that listeners answer with.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

/// What goes wrong while a body is streamed.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The next frame of a body.
pub(crate) type NextFrame = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// What is kept until the client has taken an answer, such as a place under a limit.
pub(crate) type Held = Arc<dyn Any + Send + Sync>;

/// A body that a listener answers with.
pub(crate) struct Body {
    content: UnsyncBoxBody<Bytes, BodyError>,
    is_whole: bool,
    held: Option<Held>,
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
        Self { content: body.boxed_unsync(), is_whole: false, held: None }
    }

    /// True if the body is in memory, and nothing is held for it.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole && self.held.is_none()
    }

    /// Keeps this until the client has taken the body.
    pub(crate) fn holding(self, held: Option<Held>) -> Self {
        Self { held, ..self }
    }

    /// What is kept until the client has taken the body.
    pub(crate) fn held(&self) -> Option<Held> {
        self.held.clone()
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    pub(crate) fn take_held(&mut self) -> Option<Held> {
        self.held.take()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> NextFrame {
        Pin::new(&mut self.content).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
