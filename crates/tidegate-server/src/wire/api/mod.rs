//! The decision API: any language asks, and is believed.

mod answer;
mod call;
mod challenge;
pub(crate) mod fields;
mod leases;
mod limits;
mod openapi;
mod report;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tidegate::{Decision, Outcome, Pending, Progress, RequestError, Wait};
use tokio::time::timeout;

pub(crate) use self::answer::Number;
use self::call::Call;
use self::fields::FieldError;
use crate::app::App;
use crate::body::Body;
use crate::challenge::passes_in;
use crate::guard::Guard;
use crate::listen::{Peer, Service};
use crate::protect::{TooLarge, Watched};
use crate::respond;
use crate::telemetry::RequestId;

/// The longest body of a call: a JSON body of 64 KiB with everything escaped, and the rest.
const CALL_BYTES_MAX: usize = 256 * 1024;
/// The longest batch.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// At most so many checks in a batch.
const BATCH_MAX: usize = 1_000;

/// Where the calls that have a body are.
const POSTED: [(&str, Posted); 8] = [
    ("/v1/check", Posted::Check),
    ("/v1/check/batch", Posted::Batch),
    ("/v1/acquire", Posted::Acquire),
    ("/v1/release", Posted::Release),
    ("/v1/renew", Posted::Renew),
    ("/v1/settle", Posted::Settle),
    ("/v1/report", Posted::Report),
    ("/v1/challenge", Posted::Challenge),
];

/// Serves the decision API.
#[derive(Clone)]
pub(crate) struct Api {
    app: Arc<App>,
    guard: Arc<Guard>,
    body_timeout: Duration,
}

impl Api {
    pub(crate) fn new(app: Arc<App>, guard: Arc<Guard>, body_timeout: Duration) -> Self {
        Self { app, guard, body_timeout }
    }

    /// What can be answered without a body.
    fn answer(&self, parts: &Parts) -> Result<Response<Body>, Failure> {
        let path = parts.uri.path();
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return Err(no_such_call(path));
        }
        match path {
            "/v1/limits" => limits::json(&self.app, parts),
            "/limits" => limits::page(&self.app, parts),
            "/openapi.json" => Ok(respond::json(openapi::document())),
            "/health" => Ok(respond::json("{\"status\":\"ok\"}")),
            "/ready" => Ok(self.ready()),
            _ => Err(no_such_call(path)),
        }
    }

    fn ready(&self) -> Response<Body> {
        if self.app.drain.has_started() {
            return respond::problem(StatusCode::SERVICE_UNAVAILABLE, "draining: about to stop");
        }
        respond::json("{\"status\":\"ready\"}")
    }
}

impl Service for Api {
    async fn call(&self, _peer: Peer, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        if let Err(refused) = self.guard.admit(&parts) {
            return refused.into_response();
        }
        let failed = |Failure(response)| *response;
        let Some(posted) = Posted::find(&parts) else {
            return self.answer(&parts).unwrap_or_else(failed);
        };
        let text = match read(body, posted.bytes_max(), self.body_timeout).await {
            Ok(text) => text,
            Err(failure) => return failed(failure),
        };
        let answered = match posted.answer(&self.app, parts.headers, &text) {
            Ok(Answered::Now(response)) => return response,
            Ok(Answered::Later(answer)) => answer.await,
            Err(failure) => Err(failure),
        };
        answered.unwrap_or_else(failed)
    }
}

/// The calls that have a body.
#[derive(Clone, Copy)]
enum Posted {
    Check,
    Batch,
    Acquire,
    Release,
    Renew,
    Settle,
    Report,
    Challenge,
}

impl Posted {
    fn find(parts: &Parts) -> Option<Self> {
        let all = POSTED.iter().filter(|_| parts.method == Method::POST);
        let path = parts.uri.path();
        all.into_iter().find(|(known, _)| *known == path).map(|(_, posted)| *posted)
    }

    const fn bytes_max(self) -> usize {
        if matches!(self, Self::Batch) { BATCH_BYTES_MAX } else { CALL_BYTES_MAX }
    }

    fn answer<'a>(
        self,
        app: &'a App,
        headers: HeaderMap,
        text: &'a [u8],
    ) -> Result<Answered<'a>, Failure> {
        match self {
            Self::Check => decide(app, headers, Call::check(text)?, Wait::Never),
            _ => self.answer_other(app, headers, text),
        }
    }

    /// All but a check. By itself, since its futures would be room on the stack of every check.
    #[inline(never)]
    fn answer_other<'a>(
        self,
        app: &'a App,
        headers: HeaderMap,
        text: &'a [u8],
    ) -> Result<Answered<'a>, Failure> {
        Ok(match self {
            Self::Check => return decide(app, headers, Call::check(text)?, Wait::Never),
            Self::Acquire => {
                let call = Call::acquire(text)?;
                let max_wait = Duration::from_millis(call.max_wait_ms.unwrap_or_default());
                return decide(app, headers, call, Wait::AtMost(max_wait));
            }
            Self::Batch => Answered::Later(Box::pin(batch(app, headers, text))),
            Self::Release => Answered::Later(Box::pin(leases::release(app, text))),
            Self::Renew => Answered::Later(Box::pin(leases::renew(app, text))),
            Self::Settle => Answered::Later(Box::pin(leases::settle(app, text))),
            Self::Report => Answered::Later(Box::pin(report::report(app, text))),
            Self::Challenge => Answered::Later(Box::pin(challenge::challenge(app, text))),
        })
    }
}

/// What a call comes to. What is decided at once is so in a plain call: a future would have to have
/// room for all that it is made of.
enum Answered<'a> {
    Now(Response<Body>),
    Later(Pin<Box<dyn Future<Output = Result<Response<Body>, Failure>> + Send + 'a>>),
}

fn decide<'a>(
    app: &'a App,
    headers: HeaderMap,
    call: Call<'a>,
    wait: Wait,
) -> Result<Answered<'a>, Failure> {
    let request = identified(app, call);
    let waits = matches!(wait, Wait::AtMost(_));
    let progress = app.start(&app.engine.context(&request)?, || RequestId::of(&headers), wait)?;
    match progress {
        Progress::Decided(mut decision) => {
            Ok(Answered::Now(told(app, &request, &mut decision, waits.then_some(0))))
        }
        Progress::Pending(pending) => Ok(decide_later(app, headers, request, pending, waits)),
    }
}

/// By itself for the same reason.
#[inline(never)]
fn decide_later<'a>(
    app: &'a App,
    headers: HeaderMap,
    request: tidegate::Request<'a>,
    pending: Pending,
    waits: bool,
) -> Answered<'a> {
    Answered::Later(Box::pin(async move {
        let mut context = app.engine.context(&request)?;
        let finished = app.finish(&mut context, || RequestId::of(&headers), pending).await;
        let (mut decision, waited_us) = finished?;
        let waited_us = waits.then_some(waited_us);
        Ok(told(app, &request, &mut decision, waited_us))
    }))
}

/// The answer that tells a decision.
fn told(
    app: &App,
    request: &tidegate::Request<'_>,
    decision: &mut Decision,
    waited_us: Option<u64>,
) -> Response<Body> {
    let mut json = String::new();
    tell(app, &mut json, request, decision, waited_us);
    respond::json(json)
}

async fn batch(app: &App, headers: HeaderMap, text: &[u8]) -> Result<Response<Body>, Failure> {
    let calls = Call::batch(text, BATCH_MAX)?;
    let requests: Vec<_> = calls.into_iter().map(|call| identified(app, call)).collect();
    let decided = app.decide_all(&requests, || RequestId::of(&headers)).await;
    let mut json = String::with_capacity(1_024 * requests.len());
    json.push('[');
    for (index, (request, decided)) in requests.iter().zip(decided).enumerate() {
        if index > 0 {
            json.push(',');
        }
        match decided {
            Ok(mut decision) => tell(app, &mut json, request, &mut decision, None),
            Err(error) => {
                let error = FieldError::from(error).within(&format!("[{index}]"));
                json.push_str(&answer::undecided(&error));
            }
        }
    }
    json.push(']');
    Ok(respond::json(json))
}

/// The request, with the claims of the token and with the pass that the caller passes on, and with the
/// country of the address that it says.
fn identified<'a>(app: &'a App, mut call: Call<'a>) -> tidegate::Request<'a> {
    call.request.claims = call.authorization().and_then(|token| app.claims_of(token));
    call.request.pass = app.has_valid_pass(&call.request, passes_in(&call.request.headers));
    call.request.locate(&app.countries)
}

/// Appends the decision as JSON; its lease is kept for the caller.
fn tell(
    app: &App,
    json: &mut String,
    request: &tidegate::Request<'_>,
    decision: &mut Decision,
    waited_us: Option<u64>,
) {
    let now = decision.now;
    let mut status_unseen = false;
    let lease = decision.reservation.take().map(|lease| {
        let watched = Watched::of(app, decision, request).unwrap_or_else(|TooLarge| {
            status_unseen = true;
            None
        });
        app.leases.give(lease, watched, now)
    });
    // It was understood when it was decided, and a client that cannot be told has no challenge.
    let offer = match decision.outcome {
        Outcome::Challenged => app.issue_challenge(request).ok().and_then(Result::ok),
        _ => None,
    };
    let challenge = offer.map(|offer| offer.json(None));
    let (lease, challenge) = (lease.as_deref(), challenge.as_deref());
    let further = answer::Further { lease, challenge, waited_us, status_unseen };
    answer::write_decided(json, decision, &further);
}

/// A body of at most so many bytes, within a time.
pub(crate) async fn read(body: Incoming, max: usize, bound: Duration) -> Result<Bytes, Failure> {
    // One that says so itself need not be read.
    if usize::try_from(body.size_hint().lower()).map_or(true, |length| length > max) {
        return Err(too_large(max));
    }
    let mut reading = pin!(whole(body, max));
    // Nearly always it came with its head, and no timer is needed.
    let read = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    match read {
        Poll::Ready(read) => read,
        Poll::Pending => Box::pin(timeout(bound, reading)).await.unwrap_or_else(|_| {
            let detail = "the body did not arrive in time";
            Err(respond::problem(StatusCode::REQUEST_TIMEOUT, detail).into())
        }),
    }
}

/// A body of at most so many bytes. Nearly all come in one piece, which is not copied.
async fn whole(mut body: Incoming, max: usize) -> Result<Bytes, Failure> {
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let cut_off = |_| respond::problem(StatusCode::BAD_REQUEST, "the body was cut off");
        let Ok(data) = frame.map_err(cut_off)?.into_data() else { continue };
        if first.len().max(all.len()) + data.len() > max {
            return Err(too_large(max));
        }
        if first.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { Bytes::from(all) })
}

/// An answer that is none of a call's own.
pub(crate) struct Failure(pub(crate) Box<Response<Body>>);

impl From<Response<Body>> for Failure {
    fn from(response: Response<Body>) -> Self {
        Self(Box::new(response))
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        respond::bad_request(&error.field, &error.detail).into()
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        FieldError::from(error).into()
    }
}

impl From<RequestError> for FieldError {
    fn from(RequestError { field, detail, .. }: RequestError) -> Self {
        Self { field, detail }
    }
}

fn too_large(max: usize) -> Failure {
    let detail = format!("expected a body of at most {max} bytes");
    respond::problem(StatusCode::PAYLOAD_TOO_LARGE, &detail).into()
}

/// Nothing is here: the path is wrong, or the method.
fn no_such_call(path: &str) -> Failure {
    const GET: [&str; 5] = ["/v1/limits", "/limits", "/openapi.json", "/health", "/ready"];
    let allowed = match path {
        _ if POSTED.iter().any(|(known, _)| *known == path) => "POST",
        _ if GET.contains(&path) => "GET, HEAD",
        _ => {
            let detail = "there is nothing here; the calls are listed in /openapi.json";
            return respond::problem(StatusCode::NOT_FOUND, detail).into();
        }
    };
    respond::wrong_method(allowed).into()
}
