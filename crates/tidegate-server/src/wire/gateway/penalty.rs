//! Penalties on answers: an upstream's answer makes events, which may add warnings and a delay.

use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tidegate::Decision;
use tidegate::engine::{Context, OwnedContext};
use tokio::time::Instant;

use crate::app::App;
use crate::body::Body;
use crate::respond;
use crate::telemetry::UpstreamFailure;

const WARNING: HeaderName = HeaderName::from_static("x-ratelimit-warning");
/// Answers of at most this size are read before they are delayed, so that the delay does not occupy a
/// connection to the upstream.
const READ_BYTES_MAX: u64 = 64 * 1024;

/// The context of a request whose answer may make an event.
pub(super) fn answered_context(
    decision: &Decision,
    context: &Context<'_>,
) -> Option<Box<OwnedContext>> {
    decision.sees_answers().then(|| Box::new(context.to_owned_context()))
}

/// Waits as long as a penalty delays a refusal.
pub(super) async fn delay_refusal(app: &App, decision: &Decision) {
    let until = Instant::now() + decision.delay();
    app.delayed_answers.delay(until, &app.drain).await;
}

/// Counts the events of an upstream's answer, and applies the warnings and the delay that follow from
/// them and from the decision.
pub(super) async fn penalise_answer(
    app: &App,
    context: Option<Box<OwnedContext>>,
    decision: &Decision,
    mut response: Response<Body>,
) -> Response<Body> {
    let (began, mut delay) = (Instant::now(), decision.delay());
    if let Some(context) = context {
        let reported = app.record_answer(&context, response.status().as_u16()).await;
        delay = delay.max(reported.delay);
        for warning in &reported.warnings {
            // A name of the policy that HTTP cannot carry is left out.
            if let Ok(warning) = HeaderValue::from_str(warning) {
                response.headers_mut().append(WARNING, warning);
            }
        }
    }
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if delay.is_zero() || switches {
        return response;
    }
    delay_answer(app, response, began + delay).await
}

/// Delays an answer. A body that comes later than that is waited for, as it would be without a penalty.
async fn delay_answer(app: &App, response: Response<Body>, until: Instant) -> Response<Body> {
    let length = response.body().size_hint().exact();
    if length.is_none_or(|length| length > READ_BYTES_MAX) {
        app.delayed_answers.delay_connected(until, &app.drain).await;
        return response;
    }
    let (parts, body) = response.into_parts();
    let held = body.held();
    match body.collect().await {
        Ok(whole) => {
            app.delayed_answers.delay(until, &app.drain).await;
            Response::from_parts(parts, Body::whole(whole.to_bytes()).holding(held))
        }
        Err(_) => {
            let detail = "the upstream did not bring its answer to an end";
            app.upstream_failed(UpstreamFailure::Broken, &detail);
            respond::problem(StatusCode::BAD_GATEWAY, detail)
        }
    }
}
