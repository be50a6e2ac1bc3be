//! Requests that the upstream does not answer, and what their client is told.

use std::io;

use http::{HeaderValue, Response, StatusCode, header};

use crate::body::Body;
use crate::respond;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// There is no connection.
    Unreachable(io::Error),
    /// There may be no more connections, and none came free in time.
    Crowded,
    /// The connection ended, or spoke no HTTP.
    Broken(hyper::Error),
    /// The answer takes too long.
    Late,
    /// The client takes too long to send its body.
    ClientLate,
    /// The client broke off.
    ClientBroken,
}

impl Unanswered {
    /// What the client is told instead of an answer.
    pub(super) fn told(&self) -> Response<Body> {
        let (status, detail) = match self {
            Self::Unreachable(error) => {
                tracing::warn!(event = "upstream_unreachable", %error, "the upstream cannot be reached");
                (StatusCode::BAD_GATEWAY, "the upstream cannot be reached")
            }
            Self::Crowded => {
                tracing::warn!(
                    event = "upstream_crowded",
                    "a request found all connections to the upstream in use"
                );
                return crowded();
            }
            Self::Broken(error) => {
                tracing::warn!(event = "upstream_broken", %error, "the upstream did not answer");
                (StatusCode::BAD_GATEWAY, "the upstream did not answer")
            }
            Self::Late => (StatusCode::GATEWAY_TIMEOUT, "the upstream did not answer in time"),
            Self::ClientLate => (StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
            Self::ClientBroken => (StatusCode::BAD_REQUEST, "the body could not be read"),
        };
        respond::problem(status, detail)
    }
}

fn crowded() -> Response<Body> {
    let detail = "all connections to the upstream are in use, and none came free in time";
    let mut response = respond::problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
