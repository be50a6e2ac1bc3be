//! The decision API: applications in any language ask, and what they say of a request is believed.

pub(super) mod challenge;
pub(super) mod check;
mod check_body;
mod decision_json;
pub(super) mod examples;
pub(super) mod leases;
pub(super) mod limits;
pub(super) mod report;
pub(super) mod schemas;

use http::StatusCode;

use super::endpoint::Answer;
use crate::app::App;
use crate::respond;

/// `GET /health`, on the API and the admin listener.
pub(super) fn health() -> Answer {
    Ok(respond::json("{\"status\":\"ok\"}"))
}

/// `GET /ready`, on the API and the admin listener.
pub(super) fn ready(app: &App) -> Answer {
    if app.drain.is_announced() {
        let detail = "draining: about to stop";
        return Err(respond::problem(StatusCode::SERVICE_UNAVAILABLE, detail).into());
    }
    Ok(respond::json("{\"status\":\"ready\"}"))
}
