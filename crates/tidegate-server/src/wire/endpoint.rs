//! Serves a table of routes on one listener: finds the route, authorises the request, reads the
//! body and runs the handler.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tidegate::RequestError;
use tidegate::StoreError;
use tokio::time::timeout;

use super::fields::FieldError;
use super::routes::Route;
use crate::admin::Status;
use crate::app::App;
use crate::auth::{Actor, Auth, AuthError, Realm, TokenHolder};
use crate::body::Body;
use crate::listen::{Peer, RequestBody, Service};
use crate::respond;

/// A listener's routes, and everything that its handlers need.
pub(crate) struct Endpoint {
    routes: &'static [Route],
    app: Arc<App>,
    status: Arc<Status>,
    auth: Auth,
    body_timeout: Duration,
}

/// One call: a request on its route.
pub(crate) struct Call<'e> {
    pub(crate) app: &'e App,
    pub(crate) status: &'e Status,
    pub(crate) parts: Parts,
    pub(crate) actor: Actor,
    /// The parameter of the path, as it was sent; empty if the route has none.
    #[allow(dead_code, reason = "no call has a parameter yet")]
    pub(crate) parameter: String,
    /// Empty if the route takes no body.
    pub(crate) body: Bytes,
}

impl Call<'_> {
    /// The query string.
    pub(crate) fn query(&self) -> &str {
        self.parts.uri.query().unwrap_or_default()
    }
}

/// The answer to a call.
pub(crate) type Answer = Result<Response<Body>, ErrorResponse>;

/// What a handler returns. A check that waits for nothing is answered in a plain function call,
/// because a future on the heap for each would be slower.
pub(crate) enum Reply<'c> {
    Now(Answer),
    Later(Pin<Box<dyn Future<Output = Answer> + Send + 'c>>),
}

impl<'c> Reply<'c> {
    pub(crate) fn later(answer: impl Future<Output = Answer> + Send + 'c) -> Self {
        Self::Later(Box::pin(answer))
    }
}

impl Endpoint {
    pub(crate) fn new(
        routes: &'static [Route],
        app: Arc<App>,
        status: Arc<Status>,
        auth: Auth,
        body_timeout: Duration,
    ) -> Self {
        Self { routes, app, status, auth, body_timeout }
    }

    async fn answer(&self, peer: Peer, request: Request<RequestBody>) -> Answer {
        let (parts, body) = request.into_parts();
        let (route, parameter, holder) = self.find_route(&parts)?;
        let parameter = parameter.to_owned();
        let body = match route.body_bytes_max {
            0 => Bytes::new(),
            max => read_body(body, max, self.body_timeout).await?,
        };
        let actor = Actor { holder, peer: peer.address.ip() };
        let (app, status) = (&*self.app, &*self.status);
        let call = Call { app, status, parts, actor, parameter, body };
        match (route.handler)(&call) {
            Reply::Now(answer) => answer,
            Reply::Later(answer) => answer.await,
        }
    }

    /// Finds and authorises a request's route, and the parameter in its path. The token is checked
    /// first, so that only authorised callers learn which routes exist.
    fn find_route<'p>(
        &self,
        parts: &'p Parts,
    ) -> Result<(&'static Route, &'p str, Option<TokenHolder>), ErrorResponse> {
        let path = parts.uri.path();
        let on_path =
            || self.routes.iter().filter_map(|route| Some((route, route.parameter_in(path)?)));
        let found = on_path().find(|(route, _)| route.takes(&parts.method));
        let least = || self.auth.realm().least_access(&parts.method);
        let access = found.map_or_else(least, |(route, _)| route.access);
        let holder = self.auth.authorize(parts, access).map_err(AuthError::into_response)?;
        let methods = || on_path().map(|(route, _)| route.methods()).collect::<Vec<_>>().join(", ");
        match found {
            Some((route, parameter)) => Ok((route, parameter, holder)),
            None if on_path().next().is_some() => Err(respond::wrong_method(&methods()).into()),
            None => {
                let detail = not_found(self.auth.realm());
                Err(respond::problem(StatusCode::NOT_FOUND, detail).into())
            }
        }
    }
}

const fn not_found(realm: Realm) -> &'static str {
    match realm {
        Realm::Api => "there is nothing here; the calls are listed in /openapi.json",
        Realm::Admin => "there is nothing here; the calls are listed in /admin/v1/openapi.json",
    }
}

impl Service for Endpoint {
    async fn call(&self, peer: Peer, request: Request<RequestBody>) -> Response<Body> {
        let answer = self.answer(peer, request).await;
        let mut response = answer.unwrap_or_else(|ErrorResponse(response)| *response);
        if self.auth.realm() == Realm::Admin {
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        response
    }
}

/// Reads a body of at most `max` bytes within `bound`.
pub(crate) async fn read_body(
    body: RequestBody,
    max: usize,
    bound: Duration,
) -> Result<Bytes, ErrorResponse> {
    // A body that announces too many bytes need not be read.
    if usize::try_from(body.size_hint().lower()).map_or(true, |length| length > max) {
        return Err(too_large(max));
    }
    let mut reading = pin!(collect(body, max));
    // Nearly every body arrives with its head, and needs no timer.
    let read = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    match read {
        Poll::Ready(read) => read,
        Poll::Pending => Box::pin(timeout(bound, reading)).await.unwrap_or_else(|_| {
            let detail = "the body did not arrive in time";
            Err(respond::problem(StatusCode::REQUEST_TIMEOUT, detail).into())
        }),
    }
}

/// Collects a body. Nearly every body is one frame, which is not copied.
async fn collect(mut body: RequestBody, max: usize) -> Result<Bytes, ErrorResponse> {
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

fn too_large(max: usize) -> ErrorResponse {
    let detail = format!("expected a body of at most {max} bytes");
    respond::problem(StatusCode::PAYLOAD_TOO_LARGE, &detail).into()
}

/// The answer to a call that fails.
pub(crate) struct ErrorResponse(pub(crate) Box<Response<Body>>);

impl From<Response<Body>> for ErrorResponse {
    fn from(response: Response<Body>) -> Self {
        Self(Box::new(response))
    }
}

impl From<FieldError> for ErrorResponse {
    fn from(error: FieldError) -> Self {
        respond::bad_request(&error.field, &error.detail).into()
    }
}

impl From<RequestError> for ErrorResponse {
    fn from(error: RequestError) -> Self {
        FieldError::from(error).into()
    }
}

impl From<StoreError> for ErrorResponse {
    fn from(error: StoreError) -> Self {
        respond::problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()).into()
    }
}
