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
    /// Trimmed and lower-cased before it is used.
    pub(crate) fold: bool,
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
    Query(String),
    /// A JSON pointer.
    Body(String),
    /// A claim of a verified token: its name, or a JSON pointer.
    Jwt(String),
}

impl Source {
    /// True if the value is parsed out of the body or the query.
    pub(crate) const fn is_parsed(&self) -> bool {
        matches!(self, Self::Body(_) | Self::Query(_))
    }
}
