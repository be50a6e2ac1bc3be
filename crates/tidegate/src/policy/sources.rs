//! Where the identity and the attributes of a request come from.

use super::model::TierId;
use crate::identity::{ForwardingHeader, Networks};

/// How clients are identified.
#[derive(Debug)]
pub(crate) struct IdentityRules {
    pub(crate) trusted_proxies: Networks,
    pub(crate) forwarded: ForwardingHeader,
    pub(crate) ipv6_prefix: u8,
    pub(crate) user: Option<IdentitySource>,
    pub(crate) tier: Option<IdentitySource>,
    pub(crate) default_tier: TierId,
    pub(crate) anonymous_tier: TierId,
    pub(crate) internal: Internal,
}

/// Where the user or the tier comes from when the caller does not give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdentitySource {
    /// Believed from trusted proxies only.
    Header(String),
    /// A claim of a verified token: its name, or a JSON pointer.
    Jwt(String),
}

/// How a service-to-service caller is recognised.
pub(crate) enum Internal {
    Never,
    Cidrs(Networks),
    Header { name: String, secret: String },
}

impl std::fmt::Debug for Internal {
    /// The secret stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Never => f.write_str("Never"),
            Self::Cidrs(networks) => f.debug_tuple("Cidrs").field(networks).finish(),
            Self::Header { name, .. } => {
                f.debug_struct("Header").field("name", name).finish_non_exhaustive()
            }
        }
    }
}

/// A further fact about a request.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    pub(crate) source: Source,
    pub(crate) normal: Normal,
}

impl Attribute {
    /// One that the caller gives, or a pattern captures.
    pub(crate) const GIVEN: Self = Self { source: Source::Given, normal: Normal::AsIs };

    /// True if its value is parsed, so that it is kept once it is known.
    pub(crate) const fn is_parsed(&self) -> bool {
        self.source.is_parsed() || matches!(self.normal, Normal::Number)
    }
}

/// The form in which values count as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Normal {
    AsIs,
    /// Trimmed and lower-cased.
    Folded,
    /// A whole number.
    Number,
}

/// Where an attribute comes from when the caller does not give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Given by the caller, or captured by an operation's pattern.
    Given,
    Header {
        name: String,
        trusted: bool,
    },
    Cookie(String),
    Query(String),
    Body(BodySource),
    /// A claim of a verified token: its name, or a JSON pointer.
    Jwt(String),
}

impl Source {
    /// True if the value is parsed out of the body, the query or the cookies.
    pub(crate) const fn is_parsed(&self) -> bool {
        matches!(self, Self::Body(_) | Self::Query(_) | Self::Cookie(_))
    }
}

/// Where in a body an attribute is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BodySource {
    /// A JSON pointer.
    pub(crate) pointer: String,
    /// The field of a form that it means, if it has one step.
    pub(crate) field: Option<String>,
    /// The only format that is taken.
    pub(crate) format: Option<BodyFormat>,
    /// How many items there are, instead of a value.
    pub(crate) count: bool,
}

impl BodySource {
    pub(crate) fn new(pointer: String, format: Option<BodyFormat>, count: bool) -> Self {
        let mut steps: Vec<String> = crate::identity::tokens(&pointer).collect();
        let field = steps.pop().filter(|_| steps.is_empty());
        Self { pointer, field, format, count }
    }
}

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Json,
    /// Urlencoded or multipart.
    Form,
}
