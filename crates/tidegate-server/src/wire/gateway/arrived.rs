//! A request made safe: what is decided on is what is passed on.

use std::borrow::Cow;
use std::sync::OnceLock;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, header};
use hyper::body::Incoming;
use tidegate::identity::Claims;
use tidegate::{ActivePolicies, Policy};

use super::tunnel::Upgrade;
use super::{Rejection, Upstream, headers, target};
use crate::app::App;
use crate::challenge;
use crate::listen::Peer;
use crate::respond::Room;
use crate::telemetry::RequestId;

/// A request as it arrived, but for what only this hop may say.
pub(super) struct Arrived {
    peer: Peer,
    parts: Parts,
    upgrade: Option<Upgrade>,
    /// A reload must not let another policy decide what this one has prepared.
    active_policies: ActivePolicies,
    claims: Option<Claims>,
    /// The client has a pass.
    pass: bool,
    /// Made only for a request that is logged or forwarded, and the same for both.
    id: OnceLock<RequestId>,
}

impl Arrived {
    /// Reads a request by what the policy needs.
    pub(super) fn new(
        app: &App,
        upstream: &Upstream,
        peer: Peer,
        mut request: Request<Incoming>,
    ) -> Result<(Self, Incoming), Rejection> {
        let upgrade = Upgrade::asked(&mut request);
        let (mut parts, body) = request.into_parts();
        target::check(&mut parts, upstream)?;
        let active_policies = app.engine.active_policies();
        let policy = active_policies.first();
        let claims = claims(app, &parts, policy)?;
        headers::prepare(&mut parts.headers, policy, peer);
        headers::check_facts(&parts.headers, policy)?;
        let passes = challenge::take(&mut parts.headers);
        let id = OnceLock::new();
        let mut arrived = Self { peer, parts, upgrade, active_policies, claims, pass: false, id };
        if !passes.is_empty() {
            let presented = passes.iter().map(String::as_str);
            arrived.pass = app.honours(&arrived.asked(app, None), presented);
        }
        Ok((arrived, body))
    }

    /// Its head, but for what only this hop may say.
    pub(super) fn head(&self) -> &Parts {
        &self.parts
    }

    /// Whether the client came over TLS, to here or to a proxy that may say so.
    pub(super) fn is_over_tls(&self) -> bool {
        let said = self.parts.headers.get(headers::FORWARDED_PROTO).map(HeaderValue::as_bytes);
        said.map_or(self.peer.is_tls, |said| said.eq_ignore_ascii_case(b"https"))
    }

    /// The request as the engine sees it, with what was read of its body.
    pub(super) fn asked<'a>(
        &'a self,
        app: &'a App,
        body: Option<&'a Bytes>,
    ) -> tidegate::Request<'a> {
        let path = self.parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = tidegate::Request::new(self.parts.method.as_str(), path)
            .under(&self.active_policies)
            .locate(&app.countries);
        let read = self.active_policies.first().map_or(&[][..], Policy::headers_read);
        let is_read = |name: &HeaderName| read.iter().any(|read| name == read.as_str());
        // A client's bytes that are not text must not take away what a proxy wrote beside them.
        let line = |(name, value): (&'a HeaderName, &'a HeaderValue)| {
            (Cow::Borrowed(name.as_str()), String::from_utf8_lossy(value.as_bytes()))
        };
        let lines = self.parts.headers.iter().filter(|(name, _)| is_read(name));
        request.headers = lines.map(line).collect();
        request.peer = Some(self.peer.address.ip());
        request.claims = self.claims.clone();
        request.pass = self.pass;
        request.body = body.map(|body| Cow::Borrowed(&**body));
        request
    }

    /// What is passed on, with what this hop says of it.
    pub(super) fn into_parts(self) -> (Parts, Option<Upgrade>) {
        let (id, mut parts) = (self.id(), self.parts);
        headers::add_hop(&mut parts.headers, self.peer, &id);
        (parts, self.upgrade)
    }

    /// Where it is answered, once nothing of it is needed any more.
    pub(super) fn into_room(self) -> Room {
        Room::of(self.parts.headers)
    }

    /// The id by which it is known.
    pub(super) fn id(&self) -> RequestId {
        self.id.get_or_init(|| RequestId::of(&self.parts.headers)).clone()
    }
}

/// The claims of the one token that there may be, if the policy reads them: of two, the upstream
/// could believe the other.
fn claims(app: &App, parts: &Parts, policy: Option<&Policy>) -> Result<Option<Claims>, Rejection> {
    if !policy.is_some_and(Policy::uses_jwt) {
        return Ok(None);
    }
    let mut lines = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (line, further) = (lines.next(), lines.next());
    if further.is_some() {
        return Err(Rejection::bad("there is more than one Authorization"));
    }
    let line = line.and_then(|line| line.to_str().ok());
    Ok(line.and_then(|line| app.claims_of(line)))
}
