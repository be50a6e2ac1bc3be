//! A request, as any surface hands it to the engine.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use crate::active_policy::ActivePolicies;
use crate::countries::Countries;
use crate::identity::{Claims, Unreadable};
use crate::units::Amount;

/// What is known of a request.
///
/// A surface that sees a socket sets [`peer`](Self::peer): then headers are believed only as far as
/// the policy trusts that peer. A caller that speaks for the application leaves it out and says
/// user, tier and address itself; it is believed.
///
/// ```
/// use tidegate::Request;
///
/// let request = Request::new("POST", "/rooms/r9/bookings").user("u1").tier("free").attribute("room", "r9");
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The policy that decides; the first without it.
    pub policy: Option<Cow<'a, str>>,
    /// The method. It is read in upper case: services that take `post` for a POST are many, and no
    /// policy can name it.
    pub method: Option<Cow<'a, str>>,
    /// The path, which may carry a query.
    pub path: Option<Cow<'a, str>>,
    /// The socket's peer. With it, headers are believed only if the policy trusts it.
    pub peer: Option<IpAddr>,
    /// The client's address, as the caller knows it.
    pub ip: Option<IpAddr>,
    /// The user, as the caller knows it.
    pub user: Option<Cow<'a, str>>,
    /// The tier, as the caller knows it.
    pub tier: Option<Cow<'a, str>>,
    /// Another service of the same owner calls.
    pub internal: bool,
    /// The client's country, as an ISO 3166 code.
    pub country: Option<Cow<'a, str>>,
    /// The operation's name, instead of finding it from method and path.
    pub operation: Option<Cow<'a, str>>,
    /// Attributes that the caller gives. They go before those captured from the path, and before
    /// their declared sources.
    pub attributes: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The lines of the head.
    pub headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The claims of the client's token, which the caller has verified.
    pub claims: Option<Claims>,
    /// The body, from which attributes are read as its `Content-Type` says: JSON in UTF-8 or a form,
    /// of at most 64 KiB. Without that header it is JSON, unless it came from a [`peer`](Self::peer).
    pub body: Option<Cow<'a, [u8]>>,
    /// The body is JSON whatever the headers say: the caller has parsed it already.
    pub is_json_body: bool,
    /// Attributes that are there, but that the caller could not read. They count as such, instead of
    /// as absent.
    pub unreadable: Vec<(Cow<'a, str>, Unreadable)>,
    /// The cost, on limits that name none. Zero peeks.
    pub cost: Option<Amount>,
    /// Asks for a lease, to settle the true cost later.
    pub reserve: bool,
    /// The client has solved a challenge, which the caller has verified.
    pub pass: bool,
    pub(crate) policies: Option<&'a ActivePolicies>,
    pub(crate) countries: Option<&'a dyn Countries>,
}

impl<'a> Request<'a> {
    /// A request with a method and a path, which may carry a query.
    #[must_use]
    pub fn new(method: impl Into<Cow<'a, str>>, path: impl Into<Cow<'a, str>>) -> Self {
        Self { method: Some(method.into()), path: Some(path.into()), ..Self::default() }
    }

    /// The same with all that it says its own, to be asked about later: by the policies that are in
    /// force then, and once it is [located](Self::locate) again.
    #[must_use]
    pub fn into_owned(self) -> Request<'static> {
        let text = |text: Option<Cow<'a, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        let pairs = |pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>| {
            let pair = |(name, value): (Cow<'a, str>, Cow<'a, str>)| {
                (Cow::Owned(name.into_owned()), Cow::Owned(value.into_owned()))
            };
            pairs.into_iter().map(pair).collect()
        };
        Request {
            policy: text(self.policy),
            method: text(self.method),
            path: text(self.path),
            peer: self.peer,
            ip: self.ip,
            user: text(self.user),
            tier: text(self.tier),
            internal: self.internal,
            country: text(self.country),
            operation: text(self.operation),
            attributes: pairs(self.attributes),
            headers: pairs(self.headers),
            claims: self.claims,
            body: self.body.map(|body| Cow::Owned(body.into_owned())),
            is_json_body: self.is_json_body,
            unreadable: owned_names(self.unreadable),
            cost: self.cost,
            reserve: self.reserve,
            pass: self.pass,
            policies: None,
            countries: None,
        }
    }

    /// A request that is known by its operation's name, such as an outgoing call.
    #[must_use]
    pub fn operation(operation: impl Into<Cow<'a, str>>) -> Self {
        Self::default().named(operation)
    }

    /// Names the operation instead of finding it from method and path.
    #[must_use]
    pub fn named(mut self, operation: impl Into<Cow<'a, str>>) -> Self {
        self.operation = Some(operation.into());
        self
    }

    /// Asks the policy of this name instead of the first.
    #[must_use]
    pub fn policy(mut self, name: impl Into<Cow<'a, str>>) -> Self {
        self.policy = Some(name.into());
        self
    }

    /// Has the request decided by these policies, even if others come into force meanwhile. They are
    /// those of the limiter that decides it.
    #[must_use]
    pub fn under(mut self, policies: &'a ActivePolicies) -> Self {
        self.policies = Some(policies);
        self
    }

    /// The method alone.
    #[must_use]
    pub fn method(self, method: impl Into<Cow<'a, str>>) -> Self {
        Self { method: Some(method.into()), ..self }
    }

    /// The path alone.
    #[must_use]
    pub fn path(self, path: impl Into<Cow<'a, str>>) -> Self {
        Self { path: Some(path.into()), ..self }
    }

    /// The socket's peer. Headers are now believed only if the policy trusts it.
    #[must_use]
    pub fn peer(mut self, peer: IpAddr) -> Self {
        self.peer = Some(peer);
        self
    }

    /// The client's address, as the caller knows it.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(ip);
        self
    }

    /// The user, as the caller knows it.
    #[must_use]
    pub fn user(self, user: impl Into<Cow<'a, str>>) -> Self {
        // Changed where it is, it would be moved whole.
        Self { user: Some(user.into()), ..self }
    }

    /// The tier, as the caller knows it.
    #[must_use]
    pub fn tier(self, tier: impl Into<Cow<'a, str>>) -> Self {
        Self { tier: Some(tier.into()), ..self }
    }

    /// Says that another service of the same owner calls.
    #[must_use]
    pub fn internal(mut self, internal: bool) -> Self {
        self.internal = internal;
        self
    }

    /// The client's country, as an ISO 3166 code.
    #[must_use]
    pub fn country(mut self, country: impl Into<Cow<'a, str>>) -> Self {
        self.country = Some(country.into());
        self
    }

    /// Has the client's country looked up here where none is said: by the address that the policy
    /// finds, which may be told by a proxy that it trusts.
    #[must_use]
    pub fn locate(mut self, countries: &'a dyn Countries) -> Self {
        self.countries = Some(countries);
        self
    }

    /// Gives an attribute. It goes before one captured from the path, and before its declared source.
    #[must_use]
    pub fn attribute(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    /// Adds a header line.
    #[must_use]
    pub fn header(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The claims of the client's token, which the caller has verified: they are believed whatever
    /// the peer is. User, tier and attributes that are said go before them.
    #[must_use]
    pub fn claims(mut self, claims: Claims) -> Self {
        self.claims = Some(claims);
        self
    }

    /// The body, from which attributes are read as its `Content-Type` says; JSON without one.
    #[must_use]
    pub fn body(mut self, body: impl Into<Cow<'a, [u8]>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// The cost, on limits that name none. Zero peeks.
    #[must_use]
    pub fn cost(mut self, cost: Amount) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Asks for a lease, to settle the true cost later.
    #[must_use]
    pub fn reserve(mut self) -> Self {
        self.reserve = true;
        self
    }

    /// Says that the client has solved a challenge, which the caller has verified.
    #[must_use]
    pub fn pass(mut self, pass: bool) -> Self {
        self.pass = pass;
        self
    }

    /// The first line of a header, whatever its case.
    pub(crate) fn header_value(&self, name: &str) -> Option<&str> {
        self.header_lines(name).next()
    }

    /// All lines of a header, in order.
    pub(crate) fn header_lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &str> {
        let same = move |(key, _): &&(Cow<'_, str>, Cow<'_, str>)| key.eq_ignore_ascii_case(name);
        self.headers.iter().filter(same).map(|(_, value)| value.trim_ascii())
    }
}

fn owned_names<T>(pairs: Vec<(Cow<'_, str>, T)>) -> Vec<(Cow<'static, str>, T)> {
    pairs.into_iter().map(|(name, value)| (Cow::Owned(name.into_owned()), value)).collect()
}

/// A request that cannot be decided: a surface answers it 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// The field that is at fault, as the decision API names it: `path`, `operation`, `attributes.amount`.
    pub field: String,
    /// What was found and what was expected.
    pub detail: String,
}

impl RequestError {
    pub(crate) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.detail)
    }
}

impl std::error::Error for RequestError {}
