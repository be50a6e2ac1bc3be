//! An answer that is there at once, or one that takes its time.
//!
//! hyper keeps room for the future of a request in every connection, and moves it there. Most requests
//! are answered without waiting for anything, so that their future is the answer itself; what waits
//! is on the heap while it lasts. What is decided so is decided by the task of the connection.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

use crate::body::Body;

/// What a service gives for a request.
pub(crate) enum Answering {
    /// The answer, until it is taken.
    Now(Option<Response<Body>>),
    Later(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
}

impl Answering {
    pub(crate) fn later(answer: impl Future<Output = Response<Body>> + Send + 'static) -> Self {
        Self::Later(Box::pin(answer))
    }

    /// Lets `finish` complete the answer, where it stands if it is there.
    pub(crate) fn then<F: FnOnce(&mut Response<Body>)>(mut self, finish: F) -> Finished<F> {
        let finish = match &mut self {
            Self::Now(response) => {
                response.as_mut().map(finish);
                None
            }
            Self::Later(_) => Some(finish),
        };
        Finished { answering: self, finish }
    }
}

/// An answer that is completed when it is there.
pub(crate) struct Finished<F> {
    answering: Answering,
    /// What completes it, until it has.
    finish: Option<F>,
}

impl<F: FnOnce(&mut Response<Body>) + Unpin> Future for Finished<F> {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { answering, finish } = self.get_mut();
        match answering {
            // Nobody asks a future again that has given its answer.
            Answering::Now(response) => {
                response.take().map_or(Poll::Pending, |now| Poll::Ready(Ok(now)))
            }
            Answering::Later(answer) => answer.as_mut().poll(context).map(|mut response| {
                if let Some(finish) = finish.take() {
                    finish(&mut response);
                }
                Ok(response)
            }),
        }
    }
}

impl From<Response<Body>> for Answering {
    fn from(response: Response<Body>) -> Self {
        Self::Now(Some(response))
    }
}
