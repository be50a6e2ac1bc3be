//! The answer's body on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, SizeHint};
use hyper::body::Incoming;

use super::held::LeaseGuard;
use super::pool::Pooled;
use super::silence::Silence;
use crate::body::{BodyError, NextFrame};

/// Passed on as it comes, without trailers. When it is over, the connection goes back to the pool
/// and the places are given back; when it is dropped before, the connection ends.
pub(super) struct AnswerBody {
    body: Incoming,
    connection: Option<Pooled>,
    held: Option<LeaseGuard>,
    silence: Silence,
}

impl AnswerBody {
    pub(super) fn new(
        body: Incoming,
        connection: Pooled,
        held: Option<LeaseGuard>,
        bound: Duration,
    ) -> Self {
        Self { body, connection: Some(connection), held, silence: Silence::of(bound) }
    }

    fn finish(&mut self) {
        self.held = None;
        if let Some(connection) = self.connection.take() {
            connection.give_back();
        }
    }

    fn fail(&mut self, error: BodyError) -> NextFrame {
        let connection = self.connection.take();
        if let Some(mut held) = self.held.take()
            && !connection.is_some_and(|connection| connection.is_broken_by_client())
        {
            held.broken_off();
        }
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> NextFrame {
        let this = self.get_mut();
        loop {
            match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    this.silence.end();
                    if this.body.is_end_stream() {
                        this.finish();
                    }
                    if frame.is_data() {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return this.fail(error.into()),
                Poll::Ready(None) => {
                    this.finish();
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    return match this.silence.poll(context) {
                        Poll::Ready(()) => this.fail("the upstream fell silent".into()),
                        Poll::Pending => Poll::Pending,
                    };
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
