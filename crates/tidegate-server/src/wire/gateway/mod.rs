//! The gateway: a streaming reverse proxy that refuses what the policy refuses.
//!
//! request → target and headers made safe → decision → upstream → answer. A refusal never reaches the
//! upstream, and a body is read ahead only where an attribute needs it. It speaks HTTP/1.1 to the
//! upstream, follows no redirects and passes on no trailers.

mod answer;
mod arrived;
mod carry;
mod challenged;
mod connection;
mod headers;
mod held;
mod inspect;
mod penalty;
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
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode, Uri, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;
use tidegate::operation::forwarded_path;
use tidegate::{Decision, Outcome};

pub(crate) use upstream::Upstream;

use crate::answering::Answering;
use crate::app::{App, Hold};
use crate::body::Body;
use crate::listen::{Peer, Service};
use crate::respond;
use answer::AnswerBody;
use arrived::Arrived;
use held::LeaseGuard;
use inspect::Inspected;
use penalty::Watched;
use pool::{Pool, Pooled};
use relay::Relay;
use tunnel::Upgrade;
use upload::Upload;

/// A request waits here as long as its policy lets it.
const HOLD: Hold = Hold::AsThePolicySays;

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

    fn into_response(self) -> Response<Body> {
        respond::problem(self.status, self.detail)
    }
}

/// A request that was let through. What it holds is guarded from the start: hyper may drop its future
/// before it was ever asked to go on.
struct Admitted {
    decision: Decision,
    held: Option<LeaseGuard>,
    watched: Option<Watched>,
}

impl Admitted {
    fn new(app: &Arc<App>, mut decision: Decision, watched: Option<Watched>) -> Self {
        let lease = decision.reservation.take();
        let held = lease.map(|lease| LeaseGuard::new(Arc::clone(app), lease));
        Self { decision, held, watched }
    }
}

/// What became of a request that was passed on.
struct Forwarded {
    response: Response<Body>,
    /// Whether it is the upstream's own answer.
    answered: bool,
}

impl Gateway {
    pub(crate) fn new(app: Arc<App>, upstream: Upstream, bounds: GatewayBounds) -> Self {
        let pool = Pool::new(upstream, bounds);
        Self { shared: Arc::new(Shared { app, pool, bounds }) }
    }
}

impl Service for Gateway {
    fn call(&self, peer: Peer, request: Request<Incoming>) -> Answering {
        let (app, upstream) = (&self.shared.app, self.shared.pool.upstream());
        let (arrived, body) = match Arrived::new(app, upstream, peer, request) {
            Ok(arrived) => arrived,
            Err(rejection) => return rejection.into_response().into(),
        };
        let shared = || Arc::clone(&self.shared);
        if challenged::is_answer(arrived.head()) {
            return shared().challenge_later(arrived, body);
        }
        if !body.is_end_stream() && app.engine.wants_body(&arrived.asked(app, None)) {
            return shared().inspect_later(arrived, body);
        }
        let inspected = Inspected { seen: None, rest: body };
        let asked = arrived.asked(app, None);
        let decided = app.decide_now(&asked, || arrived.id(), HOLD);
        // What is refused at once is answered before its decision is moved anywhere.
        if let Some(Ok(decision)) = &decided
            && !decision.is_allowed()
            && decision.delay_us() == 0
        {
            drop(asked);
            return self.shared.refuse(decision, arrived).into();
        }
        match decided {
            Some(Ok(decision)) if decision.is_allowed() => {
                let watched = Watched::of(&decision, asked);
                let admitted = Admitted::new(app, decision, watched);
                shared().pass_later(arrived, inspected, admitted)
            }
            Some(Ok(decision)) => {
                drop(asked);
                let response = self.shared.refuse(&decision, arrived);
                shared().refuse_later(decision, response)
            }
            None => {
                drop(asked);
                shared().decide_later(arrived, inspected)
            }
            Some(Err(error)) => respond::bad_request(&error.field, &error.detail).into(),
        }
    }
}

/// What takes its time. Each future is made in a function of its own: it has room for all that it
/// may ever wait for, which a request that is refused at once would have on its stack.
impl Shared {
    #[inline(never)]
    fn challenge_later(self: Arc<Self>, arrived: Arrived, body: Incoming) -> Answering {
        Answering::later(self.challenge(arrived, body))
    }

    #[inline(never)]
    fn inspect_later(self: Arc<Self>, arrived: Arrived, body: Incoming) -> Answering {
        Answering::later(self.inspect(arrived, body))
    }

    #[inline(never)]
    fn decide_later(self: Arc<Self>, arrived: Arrived, inspected: Inspected) -> Answering {
        Answering::later(self.decide(arrived, inspected))
    }

    #[inline(never)]
    fn pass_later(
        self: Arc<Self>,
        arrived: Arrived,
        inspected: Inspected,
        admitted: Admitted,
    ) -> Answering {
        Answering::later(self.pass(arrived, inspected, admitted))
    }

    #[inline(never)]
    fn refuse_later(self: Arc<Self>, decision: Decision, response: Response<Body>) -> Answering {
        Answering::later(async move { penalty::refuse(&self.app, &decision, response).await })
    }
}

impl Shared {
    /// Answers a request whose body must be read before it is decided.
    async fn inspect(self: Arc<Self>, arrived: Arrived, body: Incoming) -> Response<Body> {
        match inspect::read_ahead(body, self.bounds.body).await {
            Ok(inspected) => self.decide(arrived, inspected).await,
            Err(rejection) => rejection.into_response(),
        }
    }

    /// Answers a request that is not decided yet, and may have to wait its turn.
    async fn decide(self: Arc<Self>, arrived: Arrived, inspected: Inspected) -> Response<Body> {
        let asked = arrived.asked(&self.app, inspected.seen.as_ref());
        match self.app.decide(&asked, || arrived.id(), HOLD).await {
            Ok((decision, _)) if decision.is_allowed() => {
                let watched = Watched::of(&decision, asked);
                let admitted = Admitted::new(&self.app, decision, watched);
                self.pass(arrived, inspected, admitted).await
            }
            Ok((decision, _)) => {
                drop(asked);
                let response = self.refuse(&decision, arrived);
                penalty::refuse(&self.app, &decision, response).await
            }
            Err(error) => respond::bad_request(&error.field, &error.detail),
        }
    }

    fn refuse(&self, decision: &Decision, arrived: Arrived) -> Response<Body> {
        match decision.outcome {
            Outcome::Challenged => challenged::refusal(&self.app, decision, arrived),
            _ => respond::refusal(decision, arrived.into_room()),
        }
    }

    /// Passes a request on that was let through.
    async fn pass(
        self: Arc<Self>,
        arrived: Arrived,
        inspected: Inspected,
        admitted: Admitted,
    ) -> Response<Body> {
        let Admitted { decision, held, watched } = admitted;
        let (parts, upgrade) = arrived.into_parts();
        let spoken = parts.version;
        match self.forward(parts, inspected, upgrade, held).await {
            Ok(Forwarded { mut response, answered }) => {
                respond::annotate(&mut response, &decision);
                let watched = watched.filter(|_| answered);
                if watched.is_some() || decision.delay_us() > 0 {
                    let served = penalty::serve(&self.app, watched, &decision, response);
                    response = Box::pin(served).await;
                }
                self.relayed(response, spoken)
            }
            Err(rejection) => rejection.into_response(),
        }
    }

    /// The upstream's answer, or ours if it has none. Whatever the way, what is held is let go.
    async fn forward(
        &self,
        mut parts: Parts,
        inspected: Inspected,
        upgrade: Option<Upgrade>,
        held: Option<LeaseGuard>,
    ) -> Result<Forwarded, Rejection> {
        parts.version = Version::HTTP_11;
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
                let response = self.pass_on(response, connection, upgrade, held);
                Ok(Forwarded { response, answered: true })
            }
            Err(failure) => Ok(Forwarded { response: failure.told(), answered: false }),
        }
    }

    fn pass_on(
        &self,
        mut response: Response<Incoming>,
        connection: Pooled,
        upgrade: Option<Upgrade>,
        mut held: Option<LeaseGuard>,
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
            Body::streamed(AnswerBody::new(body, connection, held, self.bounds.body))
        };
        Response::from_parts(parts, body)
    }

    /// An answer that its client can take as soon as this returns.
    fn relayed(&self, response: Response<Body>, spoken: Version) -> Response<Body> {
        if spoken != Version::HTTP_2 || !response.body().is_streamed() {
            return response;
        }
        response.map(|body| Body::streamed(Relay::new(body, self.bounds.body)))
    }
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
