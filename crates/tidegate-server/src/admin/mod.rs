//! The admin API: status, metrics, the keys of the store, bans and flags.

pub(crate) mod keys;
pub(crate) mod marks;
pub(crate) mod schemas;
mod status;

use http::StatusCode;

pub(crate) use status::{ListenerStatus, Status, StatusView};

use crate::respond;
use crate::telemetry::CONTENT_TYPE as EXPOSITION;
use crate::wire::endpoint::{Answer, Call};

/// `GET /admin/v1/status`.
pub(crate) fn status(call: &Call<'_>) -> Answer {
    Ok(respond::json(call.status.render(call.app)))
}

/// `GET /metrics`.
pub(crate) fn metrics(call: &Call<'_>) -> Answer {
    let page = call.app.metrics.render(&call.status.present(call.app));
    Ok(respond::with_type(StatusCode::OK, EXPOSITION, page))
}
