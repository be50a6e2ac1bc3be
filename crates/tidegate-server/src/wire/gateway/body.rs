//! Bodies on their way through the gateway: read ahead for the decision, and uploaded to the upstream.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Sleep, sleep, timeout};

use super::inbound::Rejection;
use crate::body::{BodyError, NextFrame};
use crate::listen::RequestBody;

/// Attributes are read from bodies of at most this size. One byte more says that the body is larger.
const READ_AHEAD_MAX: usize = 64 * 1024;

/// A client's body, of which the gateway may have read the start.
pub(super) struct InboundBody {
    start: Option<Bytes>,
    rest: RequestBody,
}

impl InboundBody {
    pub(super) fn new(body: RequestBody) -> Self {
        Self { start: None, rest: body }
    }

    /// Reads a body to its end, or until it is larger than attributes are read from. All of that must
    /// come within one timeout, so that a client cannot send it a byte at a time.
    pub(super) async fn read_ahead(body: RequestBody, bound: Duration) -> Result<Self, Rejection> {
        let detail = "the body did not come in time";
        let late = Err(Rejection { status: StatusCode::REQUEST_TIMEOUT, detail });
        timeout(bound, Self::read_start(body)).await.unwrap_or(late)
    }

    async fn read_start(mut body: RequestBody) -> Result<Self, Rejection> {
        let mut start = BytesMut::new();
        while start.len() <= READ_AHEAD_MAX {
            let Some(frame) = body.frame().await else { break };
            let frame = frame.map_err(|_| Rejection::bad("the body could not be read"))?;
            if let Some(data) = frame.data_ref() {
                start.extend_from_slice(data);
            }
        }
        Ok(Self { start: Some(start.freeze()), rest: body })
    }

    /// What was read for the decision.
    pub(super) fn start(&self) -> Option<&Bytes> {
        self.start.as_ref()
    }
}

/// A body whose next piece must come within a timeout. Trailers are left out.
pub(super) struct TimedBody<B> {
    body: B,
    bound: Duration,
    /// Made only once a piece has to be waited for.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Why the next piece of a body does not come.
pub(super) enum ReadError {
    TimedOut,
    Broken(hyper::Error),
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> TimedBody<B> {
    pub(super) fn new(body: B, bound: Duration) -> Self {
        Self { body, bound, timer: None }
    }

    pub(super) fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ReadError>>> {
        loop {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.timer = None;
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(ReadError::Broken(error))));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.bound)));
                    return timer.as_mut().poll(context).map(|()| Some(Err(ReadError::TimedOut)));
                }
            }
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request's body for the upstream: what was read ahead, then the rest as it comes.
pub(super) struct Upload(Option<Box<UploadStream>>);

struct UploadStream {
    start: Option<Bytes>,
    rest: TimedBody<RequestBody>,
    progress: Arc<UploadProgress>,
}

/// How far an upload has come. The pool reads it while it waits for the answer.
#[derive(Debug, Default)]
pub(super) struct UploadProgress(Mutex<(u64, UploadState)>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum UploadState {
    /// The upstream is to take the next piece.
    #[default]
    Sending,
    AwaitsClient,
    Finished,
    ClientTimedOut,
    ClientBrokeOff,
}

impl UploadProgress {
    /// The number of pieces that went to the upstream.
    pub(super) fn pieces(&self) -> u64 {
        self.get().0
    }

    pub(super) fn state(&self) -> UploadState {
        self.get().1
    }

    fn get(&self) -> (u64, UploadState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: UploadState) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        progress.0 += u64::from(state != UploadState::AwaitsClient);
        progress.1 = state;
    }
}

impl Upload {
    /// No body.
    pub(super) const fn empty() -> Self {
        Self(None)
    }

    pub(super) fn new(InboundBody { start, rest }: InboundBody, bound: Duration) -> Self {
        let start = start.filter(|start| !start.is_empty());
        if start.is_none() && rest.is_end_stream() {
            return Self::empty();
        }
        let (rest, progress) = (TimedBody::new(rest, bound), Arc::default());
        Self(Some(Box::new(UploadStream { start, rest, progress })))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn progress(&self) -> Option<Arc<UploadProgress>> {
        self.0.as_ref().map(|stream| Arc::clone(&stream.progress))
    }

    /// Says how the body is framed, where its length is not known: hyper would otherwise send a GET
    /// without its body.
    pub(super) fn set_framing(&self, headers: &mut HeaderMap) {
        if self.is_empty() || headers.contains_key(header::CONTENT_LENGTH) {
            return;
        }
        match self.size_hint().exact() {
            Some(length) => headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length)),
            None => headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked")),
        };
    }
}

impl UploadStream {
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, ReadError>>> {
        match self.start.take() {
            Some(start) => Poll::Ready(Some(Ok(start))),
            None => self.rest.poll_data(context),
        }
    }

    fn is_over(&self) -> bool {
        self.start.is_none() && self.rest.is_end_stream()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> NextFrame {
        let Some(stream) = &mut self.get_mut().0 else { return Poll::Ready(None) };
        let data = stream.poll_data(context);
        stream.progress.set(match &data {
            Poll::Pending => UploadState::AwaitsClient,
            Poll::Ready(Some(Err(ReadError::TimedOut))) => UploadState::ClientTimedOut,
            Poll::Ready(Some(Err(ReadError::Broken(_)))) => UploadState::ClientBrokeOff,
            Poll::Ready(Some(Ok(_))) if !stream.is_over() => UploadState::Sending,
            Poll::Ready(_) => UploadState::Finished,
        });
        data.map(|data| {
            data.map(|data| match data {
                Ok(data) => Ok(Frame::data(data)),
                Err(ReadError::TimedOut) => Err("the body did not come in time".into()),
                Err(ReadError::Broken(error)) => Err(error.into()),
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|stream| stream.is_over())
    }

    fn size_hint(&self) -> SizeHint {
        let Some(stream) = &self.0 else { return SizeHint::with_exact(0) };
        let start = stream.start.as_ref().map_or(0, Bytes::len);
        let start = u64::try_from(start).unwrap_or(u64::MAX);
        let rest = stream.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(start));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(start));
        }
        hint
    }
}
