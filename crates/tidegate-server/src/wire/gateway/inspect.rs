//! Reading a body ahead of the decision, where an attribute needs it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::Rejection;

/// Attributes are read from bodies of at most this size. One byte more says that it is larger.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// What was read of a body, and what was not.
pub(super) struct Inspected {
    pub(super) seen: Option<Bytes>,
    pub(super) rest: Incoming,
}

/// Reads a body to its end, or until it is larger than attributes are read from. So little must
/// come within one time, lest it come a byte at a time for days.
pub(super) async fn read_ahead(body: Incoming, bound: Duration) -> Result<Inspected, Rejection> {
    timeout(bound, read(body)).await.unwrap_or({
        let detail = "the body did not come in time";
        Err(Rejection { status: StatusCode::REQUEST_TIMEOUT, detail })
    })
}

async fn read(mut body: Incoming) -> Result<Inspected, Rejection> {
    let mut seen = Bytes::new();
    while seen.len() <= BODY_BYTES_MAX {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|_| Rejection::bad("the body could not be read"))?;
        let Ok(piece) = frame.into_data() else { continue };
        seen = joined(seen, piece);
    }
    Ok(Inspected { seen: Some(seen), rest: body })
}

fn joined(seen: Bytes, piece: Bytes) -> Bytes {
    if seen.is_empty() {
        return piece;
    }
    let mut joined = seen.try_into_mut().unwrap_or_else(|seen| BytesMut::from(&*seen));
    joined.extend_from_slice(&piece);
    joined.freeze()
}
