//! `POST /v1/check`, `/v1/check/batch` and `/v1/acquire`: decisions.

use std::time::Duration;

use http::HeaderMap;
use tidegate::engine::{Context, Wait};
use tidegate::{Decision, Outcome};

use super::check_body::CheckBody;
use super::decision_json::{self, Extras};
use crate::app::App;
use crate::leases::{RequestTooLarge, ReservedRequest};
use crate::respond;
use crate::telemetry::RequestId;
use crate::wire::endpoint::Answer;
use crate::wire::fields::FieldError;
use crate::wire::json::to_json;

/// The most checks in a batch.
const BATCH_MAX: usize = 1_000;

/// Decides a request at once.
pub(in crate::wire) async fn check(app: &App, headers: &HeaderMap, body: &[u8]) -> Answer {
    decide(app, headers, CheckBody::parse_check(body)?, Wait::Never).await
}

/// Decides a request that may wait for its turn.
pub(in crate::wire) async fn acquire(app: &App, headers: &HeaderMap, body: &[u8]) -> Answer {
    let check = CheckBody::parse_acquire(body)?;
    let max_wait = Duration::from_millis(check.max_wait_ms.unwrap_or_default());
    decide(app, headers, check, Wait::AtMost(max_wait)).await
}

async fn decide(app: &App, headers: &HeaderMap, check: CheckBody<'_>, wait: Wait) -> Answer {
    let request = to_request(app, check);
    let mut context = app.context(&request)?;
    let decided = app.decide(&mut context, || RequestId::of(headers), wait).await;
    let (mut decision, waited_us) = decided?;
    let waited_us = matches!(wait, Wait::AtMost(_)).then_some(waited_us);
    let mut json = String::new();
    write_decision(app, &mut json, &context, &mut decision, waited_us);
    Ok(respond::json(json))
}

/// Decides several requests, in order. None of them waits.
pub(in crate::wire) async fn check_batch(app: &App, headers: &HeaderMap, body: &[u8]) -> Answer {
    let checks = CheckBody::parse_batch(body, BATCH_MAX)?;
    let requests: Vec<_> = checks.into_iter().map(|check| to_request(app, check)).collect();
    let decisions = app.decide_all(&requests, || RequestId::of(headers)).await;
    let mut json = String::with_capacity(1_024 * requests.len());
    json.push('[');
    for (index, decision) in decisions.into_iter().enumerate() {
        if index > 0 {
            json.push(',');
        }
        match decision {
            Ok((context, mut decision)) => {
                write_decision(app, &mut json, &context, &mut decision, None);
            }
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

/// The request with the claims of its bearer token, and with the country of its address.
pub(super) fn to_request<'c>(app: &'c App, mut check: CheckBody<'c>) -> tidegate::Request<'c> {
    check.request.claims = check.authorization().and_then(|token| app.claims_of(token));
    check.request.locate(&app.countries)
}

/// Appends a decision as JSON, and keeps its reservation under a lease.
fn write_decision(
    app: &App,
    json: &mut String,
    context: &Context<'_>,
    decision: &mut Decision,
    waited_us: Option<u64>,
) {
    let now = decision.now;
    let mut status_unseen = false;
    let lease = decision.reservation.take().map(|reservation| {
        let request = ReservedRequest::of(decision, context).unwrap_or_else(|RequestTooLarge| {
            status_unseen = true;
            None
        });
        app.leases.give(reservation, request, now)
    });
    // The decision has read the request already. A client that cannot be identified has no challenge.
    let offer = match decision.outcome {
        Outcome::Challenged => app.issue_challenge(context).ok(),
        _ => None,
    };
    let challenge = offer.map(|offer| offer.json(None));
    let (lease, challenge) = (lease.as_deref(), challenge.as_deref());
    let extras = Extras { lease, challenge, waited_us, status_unseen };
    decision_json::write(json, decision, &extras);
}
