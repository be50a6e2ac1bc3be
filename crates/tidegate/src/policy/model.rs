//! A checked policy: the result of compiling a document. All stages read it.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::names::Names;
use super::protection::Protection;
pub(crate) use super::sources::{
    Attribute, BodyFormat, BodySource, IdentityRules, IdentitySource, Internal, Normal, Source,
};
use super::when::When;
use crate::algorithm::{self, calendar};
use crate::clock::Now;
use crate::identity::{ClientNetwork, Networks, canonical, client_network};
use crate::key::Template;
use crate::operation::{LetterCase, METHOD_OVERRIDES, Operations};
use crate::response::{HeaderItems, ResponseRules};
use crate::units::{Amount, written_duration};

/// The operation of a request that matches none.
pub(crate) const DEFAULT_OPERATION: &str = "default";

/// Which operation, by its place in the policy; 0 is `default`.
pub(crate) type OperationId = u32;
/// Which tier, by its place in the policy.
pub(crate) type TierId = u32;
/// Which attribute, by its place in the policy.
pub(crate) type AttributeId = u32;

/// A checked policy. Made by [`Policy::parse`](crate::policy::Policy::parse) or
/// [`Policy::builder`](crate::policy::Policy::builder); immutable.
#[derive(Debug)]
pub struct Policy {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    pub(crate) zone: TimeZone,
    pub(crate) enabled: bool,
    pub(crate) tiers: Names,
    pub(crate) attribute_names: Names,
    pub(crate) attributes: Vec<Attribute>,
    /// Whether one of them comes from the query, the body, or a cookie.
    pub(crate) reads_query: bool,
    pub(crate) reads_body: bool,
    pub(crate) reads_cookies: bool,
    pub(crate) identity: IdentityRules,
    pub(crate) paths: PathRules,
    pub(crate) operations: Operations,
    pub(crate) exempt: Vec<When>,
    pub(crate) blocked: Networks,
    /// In capitals.
    pub(crate) blocked_countries: Vec<String>,
    pub(crate) limits: Vec<Limit>,
    /// The limits whose conditions each operation may meet, in the order of the file.
    pub(crate) limits_by_operation: Vec<Vec<u16>>,
    pub(crate) protection: Protection,
    pub(crate) response: ResponseRules,
    pub(crate) headers_read: Vec<String>,
    /// Those of them that still matter once the attributes are parsed.
    pub(crate) headers_kept: Vec<String>,
}

impl Policy {
    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy's own version, as written.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// True if limits are on at all.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The limits, in the order of the file.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The names of the declared operations, `default` first.
    pub fn operations(&self) -> impl Iterator<Item = &str> {
        self.operations.names().iter()
    }

    /// True if it reads claims of a token. A surface that cannot verify tokens must not use such a
    /// policy: every client would be anonymous.
    #[must_use]
    pub fn uses_jwt(&self) -> bool {
        let identity = [&self.identity.user, &self.identity.tier];
        identity.iter().any(|source| matches!(source, Some(IdentitySource::Jwt(_))))
            || self.attributes.iter().any(|one| matches!(one.source, Source::Jwt(_)))
    }

    /// True if it refuses clients by their country. A surface that knows no countries blocks none.
    #[must_use]
    pub fn blocks_countries(&self) -> bool {
        !self.blocked_countries.is_empty()
    }

    /// True if a request counts as the method that a header of
    /// [`METHOD_OVERRIDES`] names. Otherwise, a surface that passes requests on takes these headers away,
    /// or the service behind it would serve a method that was not counted.
    #[must_use]
    pub fn follows_method_override(&self) -> bool {
        self.paths.method_override
    }

    /// True if a peer may speak for clients.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.identity.trusted_proxies.contains(peer)
    }

    /// The client behind an address. `None` for loopback and trusted proxies, behind which one address is
    /// everybody.
    #[must_use]
    pub fn fair_client(&self, ip: IpAddr) -> Option<ClientNetwork> {
        let ip = canonical(ip);
        let is_everybody = ip.is_loopback() || self.trusts(ip);
        (!is_everybody).then(|| client_network(ip, self.identity.ipv6_prefix))
    }

    /// The headers that are believed from trusted proxies only. A surface that passes requests on
    /// takes them away from everybody else, or the service behind it would believe them.
    pub fn claim_headers(&self) -> impl Iterator<Item = &str> {
        let rules = &self.identity;
        let internal = match &rules.internal {
            Internal::Header { name, .. } => Some(name),
            Internal::Never | Internal::Cidrs(_) => None,
        };
        let trusted = self.attributes.iter().filter_map(|attribute| match &attribute.source {
            Source::Header { name, trusted: true } => Some(name),
            _ => None,
        });
        let identity = [&rules.user, &rules.tier].map(|source| match source {
            Some(IdentitySource::Header(name)) => Some(name),
            _ => None,
        });
        identity.into_iter().chain([internal]).flatten().chain(trusted).map(String::as_str)
    }

    /// The headers that hold one fact each: the client's identity, the operation, attributes and
    /// parts of keys. Of two such lines, the service behind a surface could believe the one that was
    /// not counted. A name may come more than once.
    pub fn fact_headers(&self) -> impl Iterator<Item = &str> {
        let attributes = self.attributes.iter().filter_map(|attribute| match &attribute.source {
            Source::Header { name, trusted: false } => Some(name.as_str()),
            _ => None,
        });
        let counted = self.limits.iter().flat_map(|limit| &limit.by);
        let keys = counted.chain(self.protection.parts()).filter_map(|part| match part {
            Part::Header(name) => Some(name.as_str()),
            _ => None,
        });
        let overrides = METHOD_OVERRIDES.into_iter().filter(|_| self.paths.method_override);
        let facts = self.claim_headers().chain(attributes).chain(self.operations.header_names());
        facts.chain(keys).chain(overrides)
    }

    /// The headers that attributes are parsed with or from.
    pub(crate) fn parsed_headers(&self) -> impl Iterator<Item = &str> {
        let body = self.reads_body.then_some(["content-type", "content-encoding"]);
        body.into_iter().flatten().chain(self.reads_cookies.then_some("cookie"))
    }

    /// The headers that a decision can depend on, in lower case. A surface may leave out all others.
    #[must_use]
    pub fn headers_read(&self) -> &[String] {
        &self.headers_read
    }

    /// The names of the tiers.
    pub fn tiers(&self) -> impl Iterator<Item = &str> {
        self.tiers.iter()
    }
}

/// How methods and paths are read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathRules {
    pub(crate) case: LetterCase,
    /// True if a request counts as the method that an overriding header names.
    pub(crate) method_override: bool,
}

/// One limit: its subject, its rate, and what happens beyond.
#[derive(Debug)]
pub struct Limit {
    pub(crate) name: String,
    /// How the rate limit headers name it.
    pub(crate) items: HeaderItems,
    pub(crate) when: When,
    pub(crate) by: Vec<Part>,
    /// What keeps the rows of a map apart where several users share a key.
    pub(crate) row: Option<Part>,
    pub(crate) algorithm: Algorithm,
    pub(crate) settings: Settings,
    pub(crate) cost: Cost,
    pub(crate) value: Option<AttributeId>,
    pub(crate) missing: Option<Missing>,
    pub(crate) exceed: Exceed,
    pub(crate) shadow: bool,
    pub(crate) counts: Counts,
    /// Whether factors apply.
    pub(crate) scaled: bool,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) consistency: Consistency,
    pub(crate) key: Option<Template>,
    pub(crate) refusal: Refusal,
    pub(crate) describe: Option<String>,
    pub(crate) publish: bool,
}

impl Limit {
    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which algorithm it uses.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The beginning of a JSON object that describes it: its name and algorithm, and a comma.
    #[must_use]
    pub fn json_head(&self) -> &str {
        &self.items.json_head
    }

    /// True if a request that exceeds it may wait for its turn.
    pub(crate) fn lets_wait(&self) -> bool {
        matches!(self.exceed, Exceed::Wait { .. })
    }

    /// True if nodes that share a store may borrow tokens of it in advance.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.consistency == Consistency::Leased
    }

    /// True if it only counts and reports.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// True if it may be shown to the public.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.publish
    }

    /// Its text for the public limits page.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.describe.as_deref()
    }
}

/// What a limit answers when it refuses, where it differs from the policy's response.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    pub(crate) message: Option<Vec<crate::response::Piece>>,
    pub(crate) status: Option<u16>,
    pub(crate) body: Option<crate::response::Body>,
}

/// The algorithms by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// `token_bucket`
    TokenBucket,
    /// `sliding_window`
    SlidingWindow,
    /// `sliding_counter`
    SlidingCounter,
    /// `fixed_window`
    FixedWindow,
    /// `quota`
    Quota,
    /// `concurrency`
    Concurrency,
    /// `total`
    Total,
    /// `ceiling`
    Ceiling,
}

impl Algorithm {
    /// The key that names it in a policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingCounter => "sliding_counter",
            Self::FixedWindow => "fixed_window",
            Self::Quota => "quota",
            Self::Concurrency => "concurrency",
            Self::Total => "total",
            Self::Ceiling => "ceiling",
        }
    }

    /// The algorithm of a spec.
    #[must_use]
    pub const fn of(spec: &algorithm::Spec) -> Self {
        match spec {
            algorithm::Spec::TokenBucket(_) => Self::TokenBucket,
            algorithm::Spec::SlidingWindow(_) => Self::SlidingWindow,
            algorithm::Spec::SlidingCounter(_) => Self::SlidingCounter,
            algorithm::Spec::FixedWindow(_) => Self::FixedWindow,
            algorithm::Spec::Quota(_) => Self::Quota,
            algorithm::Spec::Concurrency(_) => Self::Concurrency,
            algorithm::Spec::Total(_) => Self::Total,
            algorithm::Spec::Ceiling(_) => Self::Ceiling,
        }
    }

    /// All of them.
    pub(crate) const ALL: [Self; 8] = [
        Self::TokenBucket,
        Self::SlidingWindow,
        Self::SlidingCounter,
        Self::FixedWindow,
        Self::Quota,
        Self::Concurrency,
        Self::Total,
        Self::Ceiling,
    ];
}

/// One part of a limit's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Ip,
    User,
    Client,
    Tier,
    Operation,
    Method,
    Path,
    Country,
    Header(String),
    Attribute(AttributeId),
    /// Which row of a `tier_by` map holds: the attribute's value if it is one of these.
    Row {
        attribute: AttributeId,
        rows: Vec<String>,
    },
    Global,
}

impl Part {
    /// The attribute that it is made of, if it is made of one.
    pub(crate) const fn attribute(&self) -> Option<AttributeId> {
        match self {
            Self::Attribute(id) | Self::Row { attribute: id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// The settings of a limit, by tier or by an attribute.
#[derive(Debug)]
pub(crate) enum Settings {
    /// The same for all.
    Everyone(Setting),
    /// By tier, indexed by its id; `None` where the tier cannot reach the limit.
    ByTier(Vec<Option<Setting>>),
    /// By the value of an attribute.
    ByAttribute { attribute: AttributeId, settings: HashMap<String, Setting>, default: Setting },
}

impl Settings {
    /// Every setting of the limit, the default first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Setting> {
        let (one, by_tier, by_value) = match self {
            Self::Everyone(setting) => (Some(setting), None, None),
            Self::ByTier(settings) => (None, Some(settings), None),
            Self::ByAttribute { settings, default, .. } => (Some(default), None, Some(settings)),
        };
        let by_tier = by_tier.into_iter().flatten().flatten();
        one.into_iter().chain(by_tier).chain(by_value.into_iter().flat_map(HashMap::values))
    }

    /// Every spec of the limit; none if it is unlimited for all.
    pub(crate) fn specs(&self) -> impl Iterator<Item = Spec> {
        self.all().filter_map(|setting| match setting {
            Setting::Limited(spec) => Some(*spec),
            Setting::Unlimited => None,
        })
    }

    /// Any spec of the limit.
    pub(crate) fn first_spec(&self) -> Option<Spec> {
        self.specs().next()
    }
}

/// A spec as written, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Unlimited,
    Limited(Spec),
}

/// How much, as the policy says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    /// Numbers that do not depend on the date.
    Plain(algorithm::Spec),
    /// A calendar window, whose bounds depend on date and zone.
    Calendar { limit: Amount, unit: calendar::Unit },
}

impl Spec {
    /// The numbers in force at this moment.
    pub(crate) fn at(&self, now: Now, zone: &TimeZone) -> algorithm::Spec {
        self.within(|unit| calendar::boundaries(unit, zone, now.unix_us))
    }

    /// The same, where the calendar window of a unit is this one.
    #[inline]
    pub(crate) fn within(
        &self,
        window: impl FnOnce(calendar::Unit) -> calendar::Boundaries,
    ) -> algorithm::Spec {
        match *self {
            Self::Plain(spec) => spec,
            Self::Calendar { limit, unit } => {
                let calendar::Boundaries { previous_us, start_us, end_us, next_end_us } =
                    window(unit);
                algorithm::Spec::Quota(algorithm::quota::Spec {
                    limit,
                    unit,
                    previous_us,
                    start_us,
                    end_us,
                    next_end_us,
                })
            }
        }
    }
}

/// What a request costs on a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Not named: what the request says, or 1.
    Requested,
    Fixed(Amount),
    Attribute(AttributeId),
}

impl Cost {
    /// The attribute that holds it, if one does.
    pub(crate) const fn attribute(self) -> Option<AttributeId> {
        match self {
            Self::Attribute(id) => Some(id),
            Self::Requested | Self::Fixed(_) => None,
        }
    }
}

/// What to do when a part of the key is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Skip,
    Share,
    Refuse,
}

/// What happens beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceed {
    Reject,
    Warn,
    /// Hold the request for at most this long, then reject it.
    Wait {
        max_us: u64,
    },
    /// A client that solves a challenge passes, with a warning.
    Challenge,
}

impl fmt::Display for Exceed {
    /// As a policy writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reject => f.write_str("reject"),
            Self::Warn => f.write_str("warn"),
            Self::Challenge => f.write_str("challenge"),
            Self::Wait { max_us } => write!(f, "wait {}", written_duration(*max_us)),
        }
    }
}

/// Which answers a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Counts {
    All,
    Failures,
    Successes,
}

/// How a limit asks a shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consistency {
    /// For every request.
    Exact,
    /// Nodes borrow tokens in advance, and spend them without asking.
    Leased,
}

/// What a limit does while the shared store is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnStoreFailure {
    /// This node's own memory decides, with this node's share of the limit.
    Local,
    /// Everything passes, and is not charged afterwards.
    Allow,
    /// Nothing passes.
    Deny,
}
