//! `POST /v1/check`, `/v1/check/batch` and `/v1/acquire`: decisions.

use std::time::Duration;

use http::{HeaderMap, Response};
use tidegate::{Decision, Outcome, Pending, Progress, RequestError, Wait};

use super::check_body::CheckBody;
use super::decision_json::{self, Extras};
use crate::app::App;
use crate::body::Body;
use crate::challenge::passes_in;
use crate::protect::{TooLarge, Watched};
use crate::respond;
use crate::telemetry::RequestId;
use crate::wire::endpoint::{Answer, Call, Reply};
use crate::wire::fields::FieldError;
use crate::wire::json::to_json;

/// The most checks in a batch.
const BATCH_MAX: usize = 1_000;

/// Decides a request at once.
pub(in crate::wire) fn check<'c>(call: &'c Call<'_>) -> Reply<'c> {
    match CheckBody::parse_check(&call.body) {
        Ok(check) => decide(call, check, Wait::Never),
        Err(error) => Reply::Now(Err(error.into())),
    }
}

/// Decides a request that may wait for its turn.
pub(in crate::wire) fn acquire<'c>(call: &'c Call<'_>) -> Reply<'c> {
    match CheckBody::parse_acquire(&call.body) {
        Ok(check) => {
            let max_wait = Duration::from_millis(check.max_wait_ms.unwrap_or_default());
            decide(call, check, Wait::AtMost(max_wait))
        }
        Err(error) => Reply::Now(Err(error.into())),
    }
}

fn decide<'c>(call: &'c Call<'_>, check: CheckBody<'c>, wait: Wait) -> Reply<'c> {
    let (app, headers) = (call.app, &call.parts.headers);
    let waits = matches!(wait, Wait::AtMost(_));
    let request = identify(app, check);
    match start(app, headers, &request, wait) {
        Ok(Progress::Decided(mut decision)) => {
            Reply::Now(Ok(respond(app, &request, &mut decision, waits.then_some(0))))
        }
        Ok(Progress::Pending(pending)) => finish(app, headers, request, pending, waits),
        Err(error) => Reply::Now(Err(error.into())),
    }
}

fn start(
    app: &App,
    headers: &HeaderMap,
    request: &tidegate::Request<'_>,
    wait: Wait,
) -> Result<Progress, RequestError> {
    app.start(&app.engine.context(request)?, || RequestId::of(headers), wait)
}

/// A function of its own: its future would take stack space in every check.
#[inline(never)]
fn finish<'c>(
    app: &'c App,
    headers: &'c HeaderMap,
    request: tidegate::Request<'c>,
    pending: Pending,
    waits: bool,
) -> Reply<'c> {
    Reply::later(async move {
        let mut context = app.engine.context(&request)?;
        let finished = app.finish(&mut context, || RequestId::of(headers), pending).await;
        let (mut decision, waited_us) = finished?;
        Ok(respond(app, &request, &mut decision, waits.then_some(waited_us)))
    })
}

fn respond(
    app: &App,
    request: &tidegate::Request<'_>,
    decision: &mut Decision,
    waited_us: Option<u64>,
) -> Response<Body> {
    let mut json = String::new();
    write_decision(app, &mut json, request, decision, waited_us);
    respond::json(json)
}

/// Decides several requests, in order. None of them waits.
pub(in crate::wire) async fn check_batch(app: &App, headers: &HeaderMap, body: &[u8]) -> Answer {
    let checks = CheckBody::parse_batch(body, BATCH_MAX)?;
    let requests: Vec<_> = checks.into_iter().map(|check| identify(app, check)).collect();
    let decisions = app.decide_all(&requests, || RequestId::of(headers)).await;
    let mut json = String::with_capacity(1_024 * requests.len());
    json.push('[');
    for (index, (request, decision)) in requests.iter().zip(decisions).enumerate() {
        if index > 0 {
            json.push(',');
        }
        match decision {
            Ok(mut decision) => write_decision(app, &mut json, request, &mut decision, None),
            Err(error) => {
                let error = FieldError::from(error).within(&format!("[{index}]"));
                let problem = respond::Problem::of_field(&error.field, &error.detail);
                json.push_str(&to_json(&problem));
            }
        }
    }
    json.push(']');
    Ok(respond::json(json))
}

/// The request with the claims of its bearer token, with its pass, and with the country of its
/// address.
pub(super) fn identify<'c>(app: &'c App, mut check: CheckBody<'c>) -> tidegate::Request<'c> {
    check.request.claims = check.authorization().and_then(|token| app.claims_of(token));
    check.request.pass = app.has_valid_pass(&check.request, passes_in(&check.request.headers));
    check.request.locate(&app.countries)
}

/// Appends a decision as JSON, and keeps its reservation under a lease.
fn write_decision(
    app: &App,
    json: &mut String,
    request: &tidegate::Request<'_>,
    decision: &mut Decision,
    waited_us: Option<u64>,
) {
    let now = decision.now;
    let mut status_unseen = false;
    let lease = decision.reservation.take().map(|reservation| {
        let watched = Watched::of(app, decision, request).unwrap_or_else(|TooLarge| {
            status_unseen = true;
            None
        });
        app.leases.give(reservation, watched, now)
    });
    // The decision has read the request already. A client that cannot be identified has no challenge.
    let offer = match decision.outcome {
        Outcome::Challenged => app.issue_challenge(request).ok().and_then(Result::ok),
        _ => None,
    };
    let challenge = offer.map(|offer| offer.json(None));
    let (lease, challenge) = (lease.as_deref(), challenge.as_deref());
    let extras = Extras { lease, challenge, waited_us, status_unseen };
    decision_json::write(json, decision, &extras);
}
