//! The gateway: a streaming reverse proxy that refuses what the policy refuses.
//!
//! ```text
//! client's request
//!   │ inbound.rs      made safe to decide on and to forward (target.rs, headers.rs)
//!   │ challenge.rs    a solution of a challenge is answered here, and a look at the published limits
//!   │ body.rs         the start of the body is read where an attribute needs it
//!   │ mod.rs          App::decide ───────────────► refused: answered here (challenge.rs, penalty.rs)
//!   │ reservation.rs  guards what the request holds
//!   ▼
//! pool.rs             a permit (permits.rs) for a kept or a new connection (upstream.rs,
//!   │                 upstream_socket.rs); the body is uploaded (body.rs)
//!   │
//!   ▼ upstream's answer, or an UpstreamError
//! penalty.rs          counts events, adds warnings, delays
//! relay.rs            streams the answer to the client
//! tunnel.rs           relays bytes both ways after an upgrade
//! ```
//!
//! The gateway speaks HTTP/1.1 to the upstream, follows no redirects and forwards no trailers.

mod body;
mod challenge;
mod headers;
mod inbound;
mod page;
mod penalty;
mod permits;
mod pool;
mod relay;
mod reservation;
mod target;
#[cfg(test)]
mod tests;
mod tunnel;
mod upstream;
mod upstream_socket;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use tidegate::engine::identity::ClientNetwork;
use tidegate::engine::{Client, OwnedContext, Wait};
use tidegate::{Decision, Outcome};

pub(crate) use upstream::Upstream;

use crate::app::App;
use crate::body::Body;
use crate::listen::{Peer, RequestBody, Service};
use crate::respond;
use crate::telemetry::UpstreamFailure;
use crate::wire::api::limits;
use body::{InboundBody, Upload};
use inbound::{InboundRequest, Rejection};
use pool::{Pool, PooledConnection};
use reservation::ReservationGuard;
use tunnel::Upgrade;

/// How long the gateway waits for clients and the upstream, and how much it keeps open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayBounds {
    /// For a connection to the upstream, TLS included, and for a permit to open one.
    pub(crate) connect: Duration,
    /// For the head of the answer, once the request is sent.
    pub(crate) upstream: Duration,
    /// Between two pieces of a body, in either direction.
    pub(crate) body: Duration,
    /// The most connections to the upstream, tunnels included.
    pub(crate) connections_max: usize,
    /// For how long a connection to the upstream is kept without use.
    pub(crate) idle: Duration,
    /// The most connections that are kept without use.
    pub(crate) idle_max: usize,
    /// Between two bytes of a tunnel, in any direction.
    pub(crate) tunnel_idle: Duration,
    /// For how long a tunnel stays open once one side has closed.
    pub(crate) tunnel_linger: Duration,
    /// For how long tunnels stay open once the daemon drains.
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

/// A reverse proxy in front of one upstream.
pub(crate) struct Gateway {
    app: Arc<App>,
    pool: Pool,
    bounds: GatewayBounds,
    /// Where the published limits are shown.
    limits_path: Option<String>,
}

impl Gateway {
    pub(crate) fn new(app: Arc<App>, upstream: Upstream, bounds: GatewayBounds) -> Self {
        Self { app, pool: Pool::new(upstream, bounds), bounds, limits_path: None }
    }

    /// Shows the published limits at this path, which is not forwarded.
    pub(crate) fn publish_limits(mut self, path: Option<String>) -> Self {
        self.limits_path = path;
        self
    }
}

impl Service for Gateway {
    async fn call(&self, peer: Peer, request: Request<RequestBody>) -> Response<Body> {
        self.answer(peer, request).await.unwrap_or_else(Rejection::into_response)
    }

    fn client_of(&self, address: IpAddr) -> Option<ClientNetwork> {
        self.app.engine.first_policy()?.fair_client(address)
    }
}

/// The futures that most refusals never poll are boxed, so that a refusal does not pay for their size.
impl Gateway {
    async fn answer(
        &self,
        peer: Peer,
        request: Request<RequestBody>,
    ) -> Result<Response<Body>, Rejection> {
        let app = &*self.app;
        let (inbound, body) = InboundRequest::new(app, self.pool.upstream(), peer, request)?;
        if challenge::is_solution(inbound.head()) {
            let answered = challenge::answer_solution(app, &inbound, body, self.bounds.body);
            return Ok(Box::pin(answered).await);
        }
        if self.limits_path.as_deref().is_some_and(|path| target::is_path(inbound.head(), path)) {
            return Ok(show_limits(app, inbound.head()));
        }
        let request = inbound.to_request(app);
        let mut context = match app.engine.context(&request) {
            Ok(context) => context,
            Err(error) => return Ok(respond::bad_request(&error.field, &error.detail)),
        };
        if app.has_valid_pass(&context, inbound.passes()) {
            context.set_pass(true);
        }
        let body = match !body.is_end_stream() && app.engine.wants_body(&context) {
            true => Box::pin(InboundBody::read_ahead(body, self.bounds.body)).await?,
            false => InboundBody::new(body),
        };
        if let Some(start) = body.start() {
            context.set_body(start);
        }
        let decided = app.decide(&mut context, || inbound.id(), Wait::ByPolicy).await;
        let decision = match decided {
            Ok((decision, _)) => decision,
            Err(error) => return Ok(respond::bad_request(&error.field, &error.detail)),
        };
        if decision.is_allowed() {
            let answered = penalty::answered_context(&decision, &context);
            let client = context.fair_client();
            return Box::pin(self.forward(inbound, body, client, decision, answered)).await;
        }
        let response = match decision.outcome {
            Outcome::Challenged => challenge::refusal(app, &decision, &context, inbound.head()),
            _ => page::refusal(&decision, &inbound.head().headers),
        };
        if !decision.delay().is_zero() {
            Box::pin(penalty::delay_refusal(app, &decision)).await;
        }
        Ok(response)
    }

    /// Sends an admitted request to the upstream, and returns its answer, or ours if it has none.
    async fn forward(
        &self,
        inbound: InboundRequest,
        body: InboundBody,
        client: Option<Client>,
        mut decision: Decision,
        answered: Option<Box<OwnedContext>>,
    ) -> Result<Response<Body>, Rejection> {
        let reservation = decision.reservation.take();
        let reservation =
            reservation.map(|reserved| ReservationGuard::new(Arc::clone(&self.app), reserved));
        let for_people = page::is_preferred(&inbound.head().headers);
        let (mut parts, upgrade) = inbound.into_outbound()?;
        let upload = Upload::new(body, self.bounds.body);
        upload.set_framing(&mut parts.headers);
        let sent_us = self.app.clock.steady_us();
        let sent = self.pool.send(Request::from_parts(parts, upload), client).await;
        let (mut response, answered) = match sent {
            Ok((response, connection)) => {
                let took_us = self.app.clock.steady_us().saturating_sub(sent_us);
                self.app.metrics.upstream_answered(took_us);
                (self.relay(response, connection, upgrade, reservation), answered)
            }
            // Only the upstream's own answers make events.
            Err(error) => {
                drop(reservation);
                if let Some((failure, detail)) = error.failure() {
                    self.app.upstream_failed(failure, &detail);
                }
                (error.to_response(for_people), None)
            }
        };
        respond::annotate(&mut response, &decision);
        if answered.is_some() || !decision.delay().is_zero() {
            response = penalty::penalise_answer(&self.app, answered, &decision, response).await;
        }
        Ok(response)
    }

    fn relay(
        &self,
        response: Response<Incoming>,
        connection: PooledConnection,
        upgrade: Option<Upgrade>,
        mut reservation: Option<ReservationGuard>,
    ) -> Response<Body> {
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if switches && upgrade.is_none() {
            let detail = "the upstream switched protocols unasked";
            self.app.upstream_failed(UpstreamFailure::Broken, &detail);
            return respond::problem(StatusCode::BAD_GATEWAY, detail);
        }
        if let Some(reservation) = &mut reservation {
            reservation.set_status(response.status());
        }
        match upgrade.filter(|_| switches) {
            Some(upgrade) => {
                let drain = self.app.drain.clone();
                upgrade.accept(response, connection, reservation, drain, self.bounds)
            }
            None => relay::relay_answer(response, connection, reservation, self.bounds.body),
        }
    }
}

/// The published limits of the policy that decides here. Asking for them costs nothing and is never refused, so
/// that clients who are refused can learn why.
fn show_limits(app: &App, head: &Parts) -> Response<Body> {
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return respond::wrong_method("GET, HEAD");
    }
    match app.engine.first_policy() {
        Some(policy) => limits::page_of(&policy, app, &head.headers),
        None => respond::problem(StatusCode::NOT_FOUND, "there is no policy in force"),
    }
}
