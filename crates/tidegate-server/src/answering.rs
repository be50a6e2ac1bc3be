//! An answer that is there at once, or one that takes its time.
//!
//! hyper keeps room for the future of a request in every connection, and moves it there. Most requests
//! are answered without waiting for anything, so that their future is the answer itself; what waits
//! is on the heap while it lasts. What is decided so is decided by the task of the connection.

use std::future::Future;
use std::pin::Pin;

use http::Response;

use crate::body::Body;

/// What a service gives for a request.
pub(crate) enum Answering {
    Now(Response<Body>),
    Later(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
}

impl Answering {
    pub(crate) fn later(answer: impl Future<Output = Response<Body>> + Send + 'static) -> Self {
        Self::Later(Box::pin(answer))
    }

    pub(crate) async fn answer(self) -> Response<Body> {
        match self {
            Self::Now(response) => response,
            Self::Later(answer) => answer.await,
        }
    }
}

impl From<Response<Body>> for Answering {
    fn from(response: Response<Body>) -> Self {
        Self::Now(response)
    }
}
