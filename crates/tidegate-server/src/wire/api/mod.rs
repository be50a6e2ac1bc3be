//! The decision API: any language asks, and is believed.

mod answer;
mod call;
mod fields;
mod leases;
mod limits;
mod openapi;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tidegate::{Decision, RequestError};
use tokio::time::timeout;

use self::call::Call;
use self::fields::FieldError;
use crate::app::{App, Hold};
use crate::body::Body;
use crate::guard::{Guard, NotAdmitted};
use crate::leases::id_text;
use crate::listen::{Peer, Service};
use crate::respond;
use crate::telemetry::RequestId;

/// The longest body of a call: a JSON body of 64 KiB with everything escaped, and the rest.
const CALL_BYTES_MAX: usize = 256 * 1024;
/// The longest batch.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// At most so many checks in a batch.
const BATCH_MAX: usize = 1_000;

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

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let (parts, body) = request.into_parts();
        self.guard.admit(&parts).map_err(NotAdmitted::into_response)?;
        let path = parts.uri.path();
        match (&parts.method, path) {
            (&Method::POST, "/v1/check") => {
                let text = self.read(body, CALL_BYTES_MAX).await?;
                self.decide(&parts, Call::check(&text)?, Hold::Never).await
            }
            (&Method::POST, "/v1/check/batch") => {
                self.batch(&parts, &self.read(body, BATCH_BYTES_MAX).await?).await
            }
            (&Method::POST, "/v1/acquire") => {
                let text = self.read(body, CALL_BYTES_MAX).await?;
                let call = Call::acquire(&text)?;
                let max_wait = Duration::from_millis(call.max_wait_ms.unwrap_or_default());
                self.decide(&parts, call, Hold::UpTo(max_wait)).await
            }
            (&Method::POST, "/v1/release") => {
                let text = self.read(body, CALL_BYTES_MAX).await?;
                Box::pin(leases::release(&self.app, &text)).await
            }
            (&Method::POST, "/v1/renew") => {
                let text = self.read(body, CALL_BYTES_MAX).await?;
                Box::pin(leases::renew(&self.app, &text)).await
            }
            (&Method::POST, "/v1/settle") => {
                let text = self.read(body, CALL_BYTES_MAX).await?;
                Box::pin(leases::settle(&self.app, &text)).await
            }
            (&Method::GET | &Method::HEAD, "/v1/limits") => limits::json(&self.app, &parts),
            (&Method::GET | &Method::HEAD, "/limits") => limits::page(&self.app, &parts),
            (&Method::GET | &Method::HEAD, "/openapi.json") => {
                Ok(respond::json(openapi::document()))
            }
            (&Method::GET | &Method::HEAD, "/health") => Ok(respond::json("{\"status\":\"ok\"}")),
            (&Method::GET | &Method::HEAD, "/ready") => Ok(self.ready()),
            _ => Err(no_such_call(path)),
        }
    }

    async fn decide(
        &self,
        parts: &Parts,
        call: Call<'_>,
        hold: Hold,
    ) -> Result<Response<Body>, Failure> {
        let request = self.identified(call);
        let request_id = || RequestId::of(&parts.headers);
        let (decision, waited_us) = self.app.decide(&request, request_id, hold).await?;
        let waited_us = matches!(hold, Hold::UpTo(_)).then_some(waited_us);
        let mut json = String::new();
        self.tell(&mut json, decision, waited_us);
        Ok(respond::json(json))
    }

    async fn batch(&self, parts: &Parts, text: &[u8]) -> Result<Response<Body>, Failure> {
        let calls = Call::batch(text, BATCH_MAX)?;
        let mut json = String::with_capacity(1_024 * calls.len());
        json.push('[');
        for (index, call) in calls.into_iter().enumerate() {
            if index > 0 {
                json.push(',');
            }
            let request = self.identified(call);
            let request_id = || RequestId::of(&parts.headers);
            match self.app.decide(&request, request_id, Hold::Never).await {
                Ok((decision, _)) => self.tell(&mut json, decision, None),
                Err(error) => {
                    let error = FieldError::from(error).within(&format!("[{index}]"));
                    json.push_str(&answer::undecided(&error));
                }
            }
        }
        json.push(']');
        Ok(respond::json(json))
    }

    /// The request, with the claims of the token that the caller passes on.
    fn identified<'a>(&self, call: Call<'a>) -> tidegate::Request<'a> {
        let claims = call.authorization().and_then(|token| self.app.claims_of(token));
        match claims {
            Some(claims) => call.request.claims(claims),
            None => call.request,
        }
    }

    /// Appends the decision as JSON; its lease is kept for the caller.
    fn tell(&self, json: &mut String, mut decision: Decision, waited_us: Option<u64>) {
        let now_us = decision.now.steady_us;
        let lease = decision.lease.take().map(|lease| id_text(self.app.leases.keep(lease, now_us)));
        answer::write_decided(json, &decision, lease.as_deref(), waited_us);
    }

    fn ready(&self) -> Response<Body> {
        if self.app.drain.has_started() {
            return respond::problem(StatusCode::SERVICE_UNAVAILABLE, "draining: about to stop");
        }
        respond::json("{\"status\":\"ready\"}")
    }

    async fn read(&self, body: Incoming, max: usize) -> Result<Bytes, Failure> {
        // One that says so itself need not be read.
        if usize::try_from(body.size_hint().lower()).map_or(true, |length| length > max) {
            return Err(too_large(max));
        }
        let mut reading = pin!(whole(body, max));
        // Nearly always it came with its head, and no timer is needed.
        let read = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        let read = match read {
            Poll::Ready(read) => Ok(read),
            Poll::Pending => timeout(self.body_timeout, reading).await,
        };
        match read {
            Ok(read) => read,
            Err(_) => {
                let detail = "the body did not arrive in time";
                Err(respond::problem(StatusCode::REQUEST_TIMEOUT, detail).into())
            }
        }
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

impl Service for Api {
    async fn call(&self, _peer: Peer, request: Request<Incoming>) -> Response<Body> {
        self.answer(request).await.unwrap_or_else(|Failure(response)| *response)
    }
}

/// An answer that is none of a call's own.
pub(crate) struct Failure(Box<Response<Body>>);

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
    const POST: [&str; 6] =
        ["/v1/check", "/v1/check/batch", "/v1/acquire", "/v1/release", "/v1/renew", "/v1/settle"];
    const GET: [&str; 5] = ["/v1/limits", "/limits", "/openapi.json", "/health", "/ready"];
    let allowed = match path {
        _ if POST.contains(&path) => "POST",
        _ if GET.contains(&path) => "GET, HEAD",
        _ => {
            let detail = "there is nothing here; the calls are listed in /openapi.json";
            return respond::problem(StatusCode::NOT_FOUND, detail).into();
        }
    };
    respond::wrong_method(allowed).into()
}
