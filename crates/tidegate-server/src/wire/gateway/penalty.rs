//! What an upstream's answer says of its request: events for penalties. What these say of the answer
//! is served with it: warnings, and a delay.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tidegate::{Decision, Request};
use tokio::time::Instant;

use crate::app::App;
use crate::body::Body;
use crate::respond;

const WARNING: HeaderName = HeaderName::from_static("x-ratelimit-warning");
/// Answers of at most so many bytes are taken from the upstream before they are held back, so that
/// they hold no connection to it.
const READ_BYTES_MAX: u64 = 64 * 1024;

/// A request in whose answer an event may be seen.
pub(super) struct Watched(Box<Request<'static>>);

impl Watched {
    pub(super) fn of(decision: &Decision, asked: Request<'_>) -> Option<Self> {
        decision.sees_answers().then(|| Self(Box::new(asked.into_owned())))
    }
}

/// A refusal, held back where a penalty says so.
pub(super) async fn refuse(
    app: &App,
    decision: &Decision,
    response: Response<Body>,
) -> Response<Body> {
    if decision.delay_us() > 0 {
        let until = Instant::now() + Duration::from_micros(decision.delay_us());
        app.holding.hold(until, &app.drain).await;
    }
    response
}

/// Counts what the upstream's answer says, and serves what follows from that and from the decision with
/// it.
pub(super) async fn serve(
    app: &App,
    watched: Option<Watched>,
    decision: &Decision,
    mut response: Response<Body>,
) -> Response<Body> {
    let (began, mut delay_us) = (Instant::now(), decision.delay_us());
    if let Some(Watched(request)) = watched {
        let request = request.locate(&app.countries);
        let reported = app.answered(&request, response.status().as_u16()).await;
        delay_us = delay_us.max(reported.delay_us);
        for warning in &reported.warnings {
            // Names of a policy; one that HTTP cannot carry is left out.
            if let Ok(warning) = HeaderValue::from_str(warning) {
                response.headers_mut().append(WARNING, warning);
            }
        }
    }
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if delay_us == 0 || switches {
        return response;
    }
    hold(app, response, began + Duration::from_micros(delay_us)).await
}

/// Holds an answer back until then. One that takes longer than that to come is waited for all the same,
/// as it would be without a penalty.
async fn hold(app: &App, response: Response<Body>, until: Instant) -> Response<Body> {
    let length = response.body().size_hint().exact();
    if length.is_none_or(|length| length > READ_BYTES_MAX) {
        app.holding.hold_connected(until, &app.drain).await;
        return response;
    }
    let (parts, body) = response.into_parts();
    match body.collect().await {
        Ok(whole) => {
            let response = Response::from_parts(parts, Body::whole(whole.to_bytes()));
            app.holding.hold(until, &app.drain).await;
            response
        }
        Err(_) => {
            let detail = "the upstream did not bring its answer to an end";
            respond::problem(StatusCode::BAD_GATEWAY, detail)
        }
    }
}
