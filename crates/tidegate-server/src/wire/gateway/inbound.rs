//! An inbound request, made safe: the policy decides on exactly what the gateway forwards.

use std::borrow::Cow;
use std::sync::OnceLock;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Version, header};
use tidegate::Policy;
use tidegate::engine::ActivePolicies;
use tidegate::engine::identity::Claims;

use super::tunnel::Upgrade;
use super::{Upstream, headers, target};
use crate::app::App;
use crate::body::Body;
use crate::challenge;
use crate::listen::{Peer, RequestBody};
use crate::respond;
use crate::telemetry::RequestId;

/// A request without the headers that only this hop may write.
pub(super) struct InboundRequest {
    peer: Peer,
    parts: Parts,
    upgrade: Option<Upgrade>,
    /// A reload must not let another policy decide on what this one has prepared.
    active_policies: ActivePolicies,
    claims: Option<Claims>,
    /// The passes that the client presents.
    passes: Vec<String>,
    /// Made only for a request that is logged or forwarded, and the same for both.
    id: OnceLock<RequestId>,
}

impl InboundRequest {
    /// Reads a request by what the policy needs.
    pub(super) fn new(
        app: &App,
        upstream: &Upstream,
        peer: Peer,
        mut request: Request<RequestBody>,
    ) -> Result<(Self, RequestBody), Rejection> {
        let upgrade = Upgrade::take(&mut request);
        let (mut parts, body) = request.into_parts();
        target::check(&mut parts, upstream)?;
        let active_policies = app.engine.active_policies();
        let policy = active_policies.first();
        let claims = verify_claims(app, &parts, policy)?;
        headers::prepare(&mut parts.headers, policy, peer);
        headers::check_facts(&parts.headers, policy)?;
        let passes = challenge::take_passes(&mut parts.headers);
        let id = OnceLock::new();
        Ok((Self { peer, parts, upgrade, active_policies, claims, passes, id }, body))
    }

    /// The head, without the headers that only this hop may write.
    pub(super) fn head(&self) -> &Parts {
        &self.parts
    }

    /// The passes that the client presents, valid or not.
    pub(super) fn passes(&self) -> impl Iterator<Item = &str> {
        self.passes.iter().map(String::as_str)
    }

    /// True if the client came over TLS, to this hop or to a trusted proxy.
    pub(super) fn is_over_tls(&self) -> bool {
        let proto = self.parts.headers.get(headers::FORWARDED_PROTO).map(HeaderValue::as_bytes);
        proto.map_or(self.peer.is_tls, |proto| proto.eq_ignore_ascii_case(b"https"))
    }

    /// The request for the engine.
    pub(super) fn to_request<'a>(&'a self, app: &'a App) -> tidegate::Request<'a> {
        let path = self.parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = tidegate::Request::new(self.parts.method.as_str(), path)
            .under(&self.active_policies)
            .locate(&app.countries);
        let read = self.active_policies.first().map_or(&[][..], Policy::headers_read);
        let is_read = |name: &HeaderName| read.iter().any(|read| name == read.as_str());
        // Bytes of a client that are not text must not remove what a proxy wrote beside them.
        let line = |(name, value): (&'a HeaderName, &'a HeaderValue)| {
            (Cow::Borrowed(name.as_str()), String::from_utf8_lossy(value.as_bytes()))
        };
        let lines = self.parts.headers.iter().filter(|(name, _)| is_read(name));
        request.headers = lines.map(line).collect();
        request.peer = Some(self.peer.address.ip());
        request.claims = self.claims.clone();
        request
    }

    /// The head that is forwarded, with the headers of this hop.
    pub(super) fn into_outbound(self) -> Result<(Parts, Option<Upgrade>), Rejection> {
        let (id, mut parts) = (self.id(), self.parts);
        headers::add_hop(&mut parts.headers, self.peer, &id);
        headers::spread_method_override(&mut parts.headers);
        parts.version = Version::HTTP_11;
        if let Some(uri) = target::without_dot_segments(&parts.uri)? {
            parts.uri = uri;
        }
        if let Some(upgrade) = &self.upgrade {
            upgrade.set_headers(&mut parts.headers);
        }
        Ok((parts, self.upgrade))
    }

    pub(super) fn id(&self) -> RequestId {
        self.id.get_or_init(|| RequestId::of(&self.parts.headers)).clone()
    }
}

/// The claims of the only token, if the policy reads claims. Of two tokens the upstream could believe
/// the other one.
fn verify_claims(
    app: &App,
    parts: &Parts,
    policy: Option<&Policy>,
) -> Result<Option<Claims>, Rejection> {
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

/// A request that the gateway answers without a decision: it cannot be read, or not be forwarded.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) status: StatusCode,
    pub(super) detail: &'static str,
}

impl Rejection {
    pub(super) const fn bad(detail: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        respond::problem(self.status, self.detail)
    }
}
