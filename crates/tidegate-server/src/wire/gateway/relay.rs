//! The upstream's answer on its way to the client.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::body::{ReadError, TimedBody};
use super::headers;
use super::pool::PooledConnection;
use super::reservation::ReservationGuard;
use crate::body::{Body, BodyError, Held, NextFrame};

/// The answer for the client, without the headers that concern only the connection to the upstream.
pub(super) fn relay_answer(
    mut response: Response<Incoming>,
    connection: PooledConnection,
    reservation: Option<ReservationGuard>,
    body_timeout: Duration,
) -> Response<Body> {
    headers::clean_answer(response.headers_mut());
    if response.status() == StatusCode::NOT_MODIFIED {
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response.map(|body| {
        if body.is_end_stream() {
            connection.give_back();
            return Body::empty();
        }
        let body = TimedBody::new(body, body_timeout);
        let place = reservation.as_ref().and_then(ReservationGuard::place);
        Body::streamed(AnswerBody { body, connection: Some(connection), reservation })
            .holding(place.map(|place| place as Held))
    })
}

/// The body of an answer, streamed as it comes. At its end the connection goes back to the pool and the
/// reservation is settled. If the body is dropped before its end, the connection is closed.
struct AnswerBody {
    body: TimedBody<Incoming>,
    connection: Option<PooledConnection>,
    reservation: Option<ReservationGuard>,
}

impl AnswerBody {
    fn finish(&mut self) {
        self.reservation = None;
        if let Some(connection) = self.connection.take() {
            connection.give_back();
        }
    }

    fn abort(&mut self) {
        let connection = self.connection.take();
        if let Some(mut reservation) = self.reservation.take()
            && !connection.is_some_and(|connection| connection.is_broken_by_client())
        {
            reservation.set_aborted();
        }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> NextFrame {
        let this = self.get_mut();
        this.body.poll_data(context).map(|data| match data {
            Some(Ok(data)) => {
                if this.body.is_end_stream() {
                    this.finish();
                }
                Some(Ok(Frame::data(data)))
            }
            Some(Err(error)) => {
                this.abort();
                Some(Err(match error {
                    ReadError::TimedOut => "the upstream fell silent".into(),
                    ReadError::Broken(error) => error.into(),
                }))
            }
            None => {
                this.finish();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
