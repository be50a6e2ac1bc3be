//! The gateway: a streaming reverse proxy that refuses what the policy refuses.
//!
//! request → target and headers made safe → decision → upstream → answer. A refusal never reaches the
//! upstream, and a body is read ahead only where an attribute needs it. It speaks HTTP/1.1 to the
//! upstream, follows no redirects and passes on no trailers.

mod answer;
mod carry;
mod connection;
mod headers;
mod held;
mod inspect;
mod places;
mod pool;
mod relay;
mod silence;
mod socket;
mod target;
#[cfg(test)]
mod tests;
mod tunnel;
mod unanswered;
mod upload;
mod upstream;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;
use tidegate::identity::Claims;
use tidegate::operation::forwarded_path;
use tidegate::{InForce, Policy};

pub(crate) use upstream::Upstream;

use crate::app::{App, Hold};
use crate::body::Body;
use crate::listen::{Peer, Service};
use crate::respond;
use crate::telemetry::RequestId;
use answer::AnswerBody;
use held::LeaseGuard;
use inspect::Inspected;
use pool::{Pool, Pooled};
use relay::Relay;
use tunnel::Upgrade;
use upload::Upload;

/// How long, and how much, the gateway waits for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayBounds {
    /// For a connection to the upstream, TLS included.
    pub(crate) connect: Duration,
    /// For the head of the answer, once the request is sent.
    pub(crate) upstream: Duration,
    /// Between two pieces of a body, in either direction.
    pub(crate) body: Duration,
    /// At most so many connections to the upstream, tunnels included.
    pub(crate) connections_max: usize,
    /// For how long a connection to the upstream is kept without use.
    pub(crate) idle: Duration,
    /// How many such connections are kept.
    pub(crate) idle_max: usize,
    /// Between two bytes on an upgraded connection, in any direction.
    pub(crate) tunnel_idle: Duration,
    /// For how long an upgraded connection stays open once one side has closed.
    pub(crate) tunnel_linger: Duration,
    /// For how long upgraded connections stay open once the daemon drains.
    pub(crate) tunnel_drain: Duration,
}

impl Default for GatewayBounds {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            upstream: Duration::from_secs(60),
            body: Duration::from_secs(60),
            connections_max: 1024,
            idle: Duration::from_secs(30),
            idle_max: 1024,
            tunnel_idle: Duration::from_secs(3600),
            tunnel_linger: Duration::from_secs(5),
            tunnel_drain: Duration::from_secs(20),
        }
    }
}

/// A reverse proxy in front of one upstream. Clones share it.
#[derive(Clone)]
pub(crate) struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    app: Arc<App>,
    pool: Pool,
    bounds: GatewayBounds,
}

/// Why a request is answered without the upstream, other than by the policy.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) status: StatusCode,
    pub(super) detail: &'static str,
}

impl Rejection {
    pub(super) const fn bad(detail: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail }
    }
}

impl Gateway {
    pub(crate) fn new(app: Arc<App>, upstream: Upstream, bounds: GatewayBounds) -> Self {
        let pool = Pool::new(upstream, bounds);
        Self { shared: Arc::new(Shared { app, pool, bounds }) }
    }
}

impl Service for Gateway {
    async fn call(&self, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        match self.shared.answer(peer, request).await {
            Ok(response) => response,
            Err(Rejection { status, detail }) => respond::problem(status, detail),
        }
    }
}

impl Shared {
    /// What takes long is on the heap while it lasts: hyper keeps room for the rest in every idle
    /// connection.
    async fn answer(
        &self,
        peer: Peer,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Rejection> {
        let upgrade = Upgrade::asked(&mut request);
        let (mut parts, body) = request.into_parts();
        target::check(&mut parts, self.pool.upstream())?;
        // A reload must not let another policy decide what this one has prepared.
        let in_force = self.app.limiter.in_force();
        let policy = in_force.first();
        let claims = self.claims(&parts, policy)?;
        headers::prepare(&mut parts.headers, policy, peer);
        headers::check_facts(&parts.headers, policy)?;
        let wants_body = !body.is_end_stream()
            && self.app.limiter.wants_body(&asked(&parts, peer, claims.as_ref(), &in_force));
        let inspected = match wants_body {
            true => Box::pin(inspect::read_ahead(body, self.bounds.body)).await?,
            false => Inspected { seen: None, rest: body },
        };
        // Made only for a request that is logged or forwarded, and the same for both.
        let request_id = OnceLock::new();
        let identified = || request_id.get_or_init(|| RequestId::of(&parts.headers)).clone();
        let mut asked = asked(&parts, peer, claims.as_ref(), &in_force);
        if let Some(body) = &inspected.seen {
            asked.body = Some(Cow::Borrowed(&**body));
        }
        let hold = Hold::AsThePolicySays;
        let mut decision = match self.app.decide(&asked, identified, hold).await {
            Ok((decision, _)) => decision,
            Err(error) => return Ok(respond::bad_request(&error.field, &error.detail)),
        };
        drop(asked);
        if !decision.is_allowed() {
            return Ok(respond::refusal(&decision));
        }
        let held = decision.lease.take().map(|lease| LeaseGuard::new(Arc::clone(&self.app), lease));
        let request_id = request_id.into_inner().unwrap_or_else(|| RequestId::of(&parts.headers));
        headers::add_hop(&mut parts.headers, peer, &request_id);
        let forwarded = Box::pin(self.forward(parts, inspected, upgrade, held));
        let mut response = forwarded.await?;
        respond::annotate(&mut response, &decision);
        Ok(response)
    }

    /// The claims of the one token that there may be, if the policy reads them: of two, the upstream
    /// could believe the other.
    fn claims(&self, parts: &Parts, policy: Option<&Policy>) -> Result<Option<Claims>, Rejection> {
        if !policy.is_some_and(Policy::uses_jwt) {
            return Ok(None);
        }
        let mut lines = parts.headers.get_all(header::AUTHORIZATION).iter();
        let (line, further) = (lines.next(), lines.next());
        if further.is_some() {
            return Err(Rejection::bad("there is more than one Authorization"));
        }
        let line = line.and_then(|line| line.to_str().ok());
        Ok(line.and_then(|line| self.app.claims_of(line)))
    }

    /// The upstream's answer, or ours if it has none. Whatever the way, what is held is let go.
    async fn forward(
        &self,
        mut parts: Parts,
        inspected: Inspected,
        upgrade: Option<Upgrade>,
        held: Option<LeaseGuard>,
    ) -> Result<Response<Body>, Rejection> {
        let spoken = std::mem::replace(&mut parts.version, Version::HTTP_11);
        if let Some(uri) = rewritten(&parts.uri)? {
            parts.uri = uri;
        }
        if let Some(upgrade) = &upgrade {
            upgrade.ask(&mut parts.headers);
        }
        let upload = Upload::new(inspected, self.bounds.body);
        upload.frame(&mut parts.headers);
        let sent = self.pool.send(Request::from_parts(parts, upload)).await;
        match sent {
            Ok((response, connection)) => {
                Ok(self.pass_on(response, connection, upgrade, held, spoken))
            }
            Err(failure) => Ok(failure.told()),
        }
    }

    fn pass_on(
        &self,
        mut response: Response<Incoming>,
        connection: Pooled,
        upgrade: Option<Upgrade>,
        mut held: Option<LeaseGuard>,
        spoken: Version,
    ) -> Response<Body> {
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if switches && upgrade.is_none() {
            let detail = "the upstream switched protocols unasked";
            return respond::problem(StatusCode::BAD_GATEWAY, detail);
        }
        if let Some(held) = &mut held {
            held.answered(response.status());
        }
        if let Some(upgrade) = upgrade.filter(|_| switches) {
            return upgrade.accept(response, held, &self.app.drain, &self.bounds);
        }
        headers::clean_answer(response.headers_mut());
        if response.status() == StatusCode::NOT_MODIFIED {
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        let (parts, body) = response.into_parts();
        let body = if body.is_end_stream() {
            connection.give_back();
            Body::empty()
        } else {
            let answer = AnswerBody::new(body, connection, held, self.bounds.body);
            match spoken {
                Version::HTTP_2 => Body::streamed(Relay::new(answer, self.bounds.body)),
                _ => Body::streamed(answer),
            }
        };
        Response::from_parts(parts, body)
    }
}

/// The request as the engine sees it, without its body.
fn asked<'p>(
    parts: &'p Parts,
    peer: Peer,
    claims: Option<&Claims>,
    in_force: &'p InForce,
) -> tidegate::Request<'p> {
    let read = in_force.first().map_or(&[][..], Policy::headers_read);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = tidegate::Request::new(parts.method.as_str(), path).under(in_force);
    request.peer = Some(peer.address.ip());
    // A client's bytes that are not text must not take away what a proxy wrote beside them.
    let line = |(name, value): (&'p HeaderName, &'p HeaderValue)| {
        (Cow::Borrowed(name.as_str()), String::from_utf8_lossy(value.as_bytes()))
    };
    let is_read = |name: &HeaderName| read.iter().any(|read| name == read.as_str());
    request.headers = parts.headers.iter().filter(|(name, _)| is_read(name)).map(line).collect();
    request.claims = claims.cloned();
    request
}

/// The target without its dot segments, where it has any.
fn rewritten(uri: &Uri) -> Result<Option<Uri>, Rejection> {
    let unsafe_path = |_| Rejection::bad("the path cannot be forwarded safely");
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    match forwarded_path(path).map_err(|_| Rejection::bad("the path cannot be normalised"))? {
        Cow::Borrowed(_) => Ok(None),
        Cow::Owned(path) => Uri::from_maybe_shared(path).map(Some).map_err(unsafe_path),
    }
}
