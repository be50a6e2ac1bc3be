//! Everything that is known of one request while it is decided: the policy in force, the identity, the
//! operation, and the values that conditions, keys and costs read.
//!
//! A context is made once for a request and carried to the end, across awaits too. It owns its policy,
//! so that a reload in between changes nothing for this request.

mod owned_context;

pub use owned_context::OwnedContext;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::active_policy::ActivePolicy;
use crate::clock::Now;
use crate::countries::CountryCode;
use crate::fair_share::Client;
use crate::identity::attribute::{self, AttributeValue};
use crate::identity::{self, ClientNetwork, Identity, Unreadable};
use crate::operation::{self, Match, NormalPath, PathPattern, in_upper_case, overridden_method};
use crate::policy::model::{Attribute, AttributeId, OperationId, Part, Policy, Source, TierId};
use crate::policy::when::Reading;
use crate::request::{Request, RequestError};

/// The values of attributes that need not be read again.
type ReadAttributes = Vec<(AttributeId, AttributeValue<'static>)>;

/// One request with its policy, identity, operation and time.
#[derive(Debug)]
pub struct Context<'r> {
    pub(crate) active: Arc<ActivePolicy>,
    pub(crate) request: &'r Request<'r>,
    /// When the request is decided.
    pub(crate) now: Now,
    /// The body, or as much of it as was read.
    body: Option<&'r [u8]>,
    /// True if the client has solved a challenge.
    pub(crate) has_pass: bool,
    pub(crate) address: Option<IpAddr>,
    pub(crate) user: Option<&'r str>,
    pub(crate) tier: TierId,
    pub(crate) stated_tier: Option<&'r str>,
    pub(crate) internal: bool,
    pub(crate) operation: OperationId,
    method: Option<Cow<'r, str>>,
    path: Option<NormalPath<'r>>,
    headers_believed: bool,
    matched: Option<Match>,
    /// The attributes that were parsed. Each is parsed once.
    read_attributes: Mutex<ReadAttributes>,
    /// The country of the client's address. The address is looked up once.
    address_country: OnceLock<Option<CountryCode>>,
}

impl<'r> Context<'r> {
    /// Finds the identity and the operation of a request under a policy. The error of a request that
    /// cannot be understood names the field.
    // Inlined: a context is too large to be copied for every request.
    #[inline(always)]
    pub(crate) fn new(
        active: Arc<ActivePolicy>,
        request: &'r Request<'r>,
        now: Now,
    ) -> Result<Self, RequestError> {
        let policy = &*active.policy;
        let Identity { address, user, tier, stated_tier, internal, headers_believed } =
            identity::identify(policy, request);
        let mut method = request.method.as_deref().map(in_upper_case);
        if policy.paths.method_override {
            method = method.map(|own| overridden_method(request, own)).transpose()?;
        }
        let path = request.path.as_deref().map(NormalPath::parse).transpose();
        let path = path.map_err(|error| RequestError::new("path", error.to_string()))?;
        let found = policy.operations.find(request, method.as_deref(), path.as_ref())?;
        let operation::OperationMatch { operation, matched } = found;
        Ok(Self {
            active,
            request,
            now,
            body: request.body.as_deref(),
            has_pass: request.pass,
            address,
            user,
            tier,
            stated_tier,
            internal,
            operation,
            method,
            path,
            headers_believed,
            matched,
            read_attributes: Mutex::default(),
            address_country: OnceLock::new(),
        })
    }

    /// Goes on under the policy that is in force at another time. Identity and operation are found again
    /// only where that is another policy.
    pub(crate) fn follow(
        &mut self,
        active: Arc<ActivePolicy>,
        now: Now,
    ) -> Result<(), RequestError> {
        if Arc::ptr_eq(&active, &self.active) {
            self.now = now;
        } else {
            let (body, has_pass) = (self.body, self.has_pass);
            *self = Self { body, has_pass, ..Self::new(active, self.request, now)? };
        }
        Ok(())
    }

    /// Adds the body to a request that came without one. Identity and operation do not depend on it.
    pub fn set_body(&mut self, body: &'r [u8]) {
        self.body = Some(body);
        self.read_attributes = Mutex::default();
    }

    /// Says whether the client has solved a challenge, which the caller has verified.
    pub fn set_pass(&mut self, has_pass: bool) {
        self.has_pass = has_pass;
    }

    /// The request.
    #[must_use]
    pub const fn request(&self) -> &'r Request<'r> {
        self.request
    }

    /// True if headers may name the client: the peer is a trusted proxy, or there is no socket.
    pub(crate) const fn headers_believed(&self) -> bool {
        self.headers_believed
    }

    /// The policy that decides the request.
    #[inline]
    pub(crate) fn policy(&self) -> &Policy {
        &self.active.policy
    }

    /// The method, in upper case: the one that an override names where the policy follows overrides.
    pub(crate) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// The method as keys count it: HEAD is a GET without its body, not a second allowance.
    fn counted_method(&self) -> Option<&str> {
        self.method().map(|method| if method == "HEAD" { "GET" } else { method })
    }

    /// The normalised path as keys count it: in lower case where case is ignored.
    pub(crate) fn counted_path(&self) -> Option<Cow<'_, str>> {
        self.path.as_ref().map(|path| self.policy().paths.case.fold(path.as_str()))
    }

    /// The country in capitals: as the caller said it, else that of the client's address.
    pub(crate) fn country(&self) -> Option<Cow<'r, str>> {
        let Some(said) = self.request.country.as_deref().filter(|code| !code.is_empty()) else {
            return self.located().map(|code| Cow::Borrowed(code.as_str()));
        };
        let capital = said.bytes().all(|b| b.is_ascii_uppercase());
        Some(if capital { Cow::Borrowed(said) } else { Cow::Owned(said.to_ascii_uppercase()) })
    }

    /// The country of the client's address.
    fn located(&self) -> Option<CountryCode> {
        let countries = self.request.countries?;
        *self.address_country.get_or_init(|| countries.country(self.address?))
    }

    pub(crate) fn path_matches(&self, patterns: &[PathPattern], reading: Reading) -> bool {
        let matches = match reading {
            Reading::Wide => PathPattern::matches,
            Reading::Narrow => PathPattern::matches_as_forwarded,
        };
        self.path.as_ref().is_some_and(|path| patterns.iter().any(|one| matches(one, path)))
    }

    /// True if the operation would also be found by the very form in which the path is forwarded, or was
    /// not found by a path.
    pub(crate) fn is_operation_as_forwarded(&self) -> bool {
        let (Some(found), Some(path)) = (self.matched, &self.path) else { return true };
        self.policy().operations.matches_as_forwarded(found, path)
    }

    /// The value of an attribute: given, else captured, else from its declared source.
    #[inline]
    pub(crate) fn attribute(&self, id: AttributeId) -> Option<Cow<'_, str>> {
        match self.find(id) {
            AttributeValue::Text(value) => Some(value),
            AttributeValue::Absent | AttributeValue::Unreadable(_) => None,
        }
    }

    /// As [`attribute`](Self::attribute), but tells what is absent from what cannot be read.
    #[inline]
    pub(crate) fn find(&self, id: AttributeId) -> AttributeValue<'_> {
        let Some(declared) = self.declared(id) else { return AttributeValue::Absent };
        if !declared.is_parsed() {
            return self.read(id, declared);
        }
        let mut values = self.read_attributes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = values.iter().find(|(known, _)| *known == id) {
            return value.clone();
        }
        let value = self.read(id, declared).into_owned();
        values.push((id, value.clone()));
        value
    }

    fn read(&self, id: AttributeId, declared: &Attribute) -> AttributeValue<'_> {
        let found = match (self.stated(id), self.stated_unreadable(id)) {
            (Some(value), _) => AttributeValue::Text(Cow::Borrowed(value)),
            (None, Some(why)) => AttributeValue::Unreadable(why),
            (None, None) => {
                attribute::from_source(declared, self.request, self.body, self.headers_believed)
            }
        };
        found.normalised(declared.normal)
    }

    fn declared(&self, id: AttributeId) -> Option<&Attribute> {
        usize::try_from(id).ok().and_then(|id| self.policy().attributes.get(id))
    }

    /// The attributes that were asked for and could not be read, each with its reason.
    pub fn unreadable_attributes(&mut self) -> Vec<(&str, Unreadable)> {
        let read = self.read_attributes.get_mut().unwrap_or_else(PoisonError::into_inner);
        let unreadable = read.iter().filter_map(|(id, value)| Some((*id, value.unreadable()?)));
        let names = &self.active.policy.attribute_names;
        unreadable.map(|(id, why)| (names.name(id), why)).collect()
    }

    /// Whether an attribute of the body or the query is there twice: a service could believe the
    /// other one. Of two cookies browsers know nothing, so that these are only unreadable.
    pub(crate) fn is_ambiguous(&self, id: AttributeId) -> bool {
        let source = self.declared(id).map(|declared| &declared.source);
        matches!(source, Some(Source::Body(_) | Source::Query(_)))
            && self.find(id) == AttributeValue::Unreadable(Unreadable::Ambiguous)
    }

    /// Whether the body or the query could hold an attribute.
    #[inline]
    pub(crate) fn may_be_ambiguous(&self) -> bool {
        let policy = self.policy();
        policy.reads_body && self.body.is_some_and(|body| !body.is_empty())
            || policy.reads_query
                && self.request.path.as_deref().is_some_and(|path| path.contains('?'))
    }

    /// Refuses a report that says any attribute twice: its caller need not say what no event reads.
    pub(crate) fn check_all_attributes(&self) -> Result<(), RequestError> {
        let mut ids = (0..).zip(&self.policy().attributes).map(|(id, _)| id);
        let ambiguous = ids.find(|id| self.may_be_ambiguous() && self.is_ambiguous(*id));
        ambiguous.map_or(Ok(()), |id| Err(self.ambiguity(id)))
    }

    /// The error of an attribute that is there twice.
    pub(crate) fn ambiguity(&self, id: AttributeId) -> RequestError {
        let (name, source) = (self.policy().attribute_names.name(id), self.declared(id));
        let from_body = source.is_some_and(|one| matches!(one.source, Source::Body(_)));
        let detail = match from_body {
            true if self.request.header_lines("content-type").count() > 1 => {
                "found two `Content-Type` lines, expected one".to_owned()
            }
            true => found_twice("body"),
            false => found_twice("query"),
        };
        RequestError::new(format!("attributes.{name}"), detail)
    }

    /// Whether an attribute would be read out of the body, if there were one.
    pub(crate) fn comes_from_body(&self, id: AttributeId) -> bool {
        let from_body = self.declared(id).is_some_and(|one| matches!(one.source, Source::Body(_)));
        from_body && !self.overrides_source(id)
    }

    /// Whether an attribute is given or captured, so that its declared source is not asked.
    pub(crate) fn overrides_source(&self, id: AttributeId) -> bool {
        self.stated(id).is_some() || self.stated_unreadable(id).is_some()
    }

    /// Why the caller could not read an attribute.
    fn stated_unreadable(&self, id: AttributeId) -> Option<Unreadable> {
        let stated = &self.request.unreadable;
        if stated.is_empty() {
            return None;
        }
        let name = self.policy().attribute_names.name(id);
        stated.iter().find(|(key, _)| key == name).map(|(_, why)| *why)
    }

    /// An attribute as the caller says it, or as the path does.
    fn stated(&self, id: AttributeId) -> Option<&str> {
        self.given(id).or_else(|| self.captured(id))
    }

    /// An attribute as the caller says it.
    fn given(&self, id: AttributeId) -> Option<&str> {
        let given = &self.request.attributes;
        if given.is_empty() {
            return None;
        }
        let name = self.policy().attribute_names.name(id);
        given.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// An attribute as the pattern captured it that the path matched.
    #[inline]
    fn captured(&self, id: AttributeId) -> Option<&str> {
        let (found, path) = (self.matched?, self.path.as_ref()?);
        self.policy().operations.captured(found, path, id)
    }

    /// Whom the client's address stands for.
    pub(crate) fn client_network(&self) -> Option<ClientNetwork> {
        self.address.map(|ip| identity::client_network(ip, self.policy().identity.ipv6_prefix))
    }

    /// Who the request is from, where a bounded number is shared: its user, or else its address, if that
    /// is one client's.
    #[must_use]
    pub fn fair_client(&self) -> Option<Client> {
        match (self.user, self.address) {
            (Some(user), _) => Some(Client::User(user.into())),
            (None, Some(ip)) => self.policy().fair_client(ip).map(Client::Network),
            (None, None) => None,
        }
    }

    /// Whether the request has this part of a key.
    pub(crate) fn has(&self, part: &Part) -> bool {
        match part {
            Part::Ip => self.address.is_some(),
            Part::User => self.user.is_some(),
            Part::Client => self.user.is_some() || self.address.is_some(),
            Part::Tier | Part::Operation | Part::Row { .. } | Part::Global => true,
            Part::Method | Part::Path | Part::Country | Part::Header(_) | Part::Attribute(_) => {
                self.part(part).is_some()
            }
        }
    }

    /// Whether the request is told from those of others by this part, if only as one of those whose
    /// value cannot be read. Those are counted together, so that nobody gets away by sending what is
    /// no value; but nobody is banned for what another has sent.
    pub(crate) fn distinguishes(&self, part: &Part) -> bool {
        self.has(part) || self.is_unreadable(part)
    }

    /// Whether this part may be there, but cannot be read.
    pub(crate) fn is_unreadable(&self, part: &Part) -> bool {
        matches!(part, Part::Attribute(id) if self.find(*id).unreadable().is_some())
    }

    /// The value of one part of a key; `None` where it is missing, or is no value.
    pub(crate) fn part(&self, part: &Part) -> Option<Cow<'_, str>> {
        match part {
            Part::Ip => self.client_network().map(|subject| Cow::Owned(subject.to_string())),
            Part::User => self.user.map(Cow::Borrowed),
            Part::Client => match (self.user, self.client_network()) {
                (Some(user), _) => Some(Cow::Owned(format!("user:{user}"))),
                (None, Some(subject)) => Some(Cow::Owned(format!("ip:{subject}"))),
                (None, None) => None,
            },
            Part::Tier => Some(Cow::Borrowed(self.policy().tiers.name(self.tier))),
            Part::Operation => Some(Cow::Borrowed(self.policy().operations.name(self.operation))),
            Part::Method => self.counted_method().map(Cow::Borrowed),
            Part::Path => self.counted_path(),
            Part::Country => self.country(),
            Part::Header(name) => self.request.header_value(name).map(Cow::Borrowed),
            Part::Attribute(id) => self.attribute(*id),
            Part::Row { attribute, rows } => {
                let value =
                    self.attribute(*attribute).filter(|value| rows.iter().any(|row| row == value));
                Some(value.unwrap_or(Cow::Borrowed("default")))
            }
            Part::Global => Some(Cow::Borrowed("")),
        }
    }
}

fn found_twice(place: &str) -> String {
    format!("found twice in the {place} (in another case or as `name[]` too), expected it once")
}

#[cfg(test)]
impl<'r> Context<'r> {
    /// The context of a request under a policy alone.
    pub(crate) fn under(policy: &Arc<Policy>, request: &'r Request<'r>) -> Self {
        let secret = crate::key::HashKey::new([0; 16]);
        let active = Arc::new(ActivePolicy::new(Arc::clone(policy), &secret));
        Self::new(active, request, Now { steady_us: 0, unix_us: 0 }).unwrap()
    }
}
