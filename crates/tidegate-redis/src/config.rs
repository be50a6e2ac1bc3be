//! Where the store is and how long to wait for it, as read from a URL and flags.

mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use url::Parts;

const PREFIX_BYTES_MAX: usize = 64;
const TAG_BYTES_MAX: usize = 32;
const TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// A store that can be connected to.
///
/// ```
/// use tidegate_redis::Config;
///
/// let config = Config::parse("redis://tidegate:secret@127.0.0.1:6380/2").unwrap();
/// assert_eq!(config.to_string(), "redis://127.0.0.1:6380/2");
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) place: Place,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: Arc<str>,
    /// What keeps all keys in one slot.
    pub(crate) tag: Option<Arc<str>>,
    pub(crate) timeout: Duration,
    pub(crate) nodes: u32,
}

/// Where the servers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is one.
    Single(Server),
    /// Wherever these say that the server of this name is.
    Sentinel { sentinels: Vec<Server>, master: String },
    /// Wherever any of these say that a slot is.
    Cluster { seeds: Vec<Server> },
}

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Whom a TLS connection trusts.
#[derive(Clone)]
pub(crate) enum Tls {
    /// The certificate authorities that browsers trust.
    Public,
    /// As the deployment says.
    Given(Arc<ClientConfig>),
}

impl Config {
    /// What the names of all keys begin with, unless told otherwise.
    pub const PREFIX: &str = "tg:";
    /// How long a request waits for the store, unless told otherwise.
    pub const TIMEOUT: Duration = Duration::from_millis(20);

    /// Reads `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`,
    /// `redis+sentinel://…HOST[:PORT][,…]/MASTER[/DATABASE]` or `redis+cluster://…HOST[:PORT][,…]`;
    /// `rediss…` is the same over TLS.
    ///
    /// # Errors
    /// It is no such URL.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let parts = Parts::parse(url)?;
        let (place, database) = parts.place()?;
        Ok(Self {
            place,
            tls: parts.scheme.tls.then_some(Tls::Public),
            user: parts.user,
            password: parts.password,
            database,
            prefix: Self::PREFIX.into(),
            tag: None,
            timeout: Self::TIMEOUT,
            nodes: 1,
        })
    }

    /// What the names of all keys begin with, so that deployments can share a server.
    ///
    /// # Errors
    /// It is too long, or holds something that is not plain in a key's name.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, ConfigError> {
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(is_plain) {
            return Err(ConfigError::Prefix(prefix.to_owned()));
        }
        self.prefix = prefix.into();
        Ok(self)
    }

    /// Keeps all keys of the deployment in one slot of a cluster, so that all limits of a request are
    /// charged in one call or none are.
    ///
    /// # Errors
    /// The store is no cluster, or the tag holds something that is not plain in a key's name.
    pub fn cluster_tag(mut self, tag: &str) -> Result<Self, ConfigError> {
        if !matches!(self.place, Place::Cluster { .. }) {
            return Err(ConfigError::NoSlots);
        }
        if !(1..=TAG_BYTES_MAX).contains(&tag.len()) || !tag.bytes().all(is_plain) {
            return Err(ConfigError::Tag(tag.to_owned()));
        }
        self.tag = Some(tag.into());
        Ok(self)
    }

    /// How long a request waits for the store at most.
    ///
    /// # Errors
    /// It is none, or longer than ten seconds.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        if timeout.is_zero() || timeout > TIMEOUT_MAX {
            return Err(ConfigError::Timeout(timeout));
        }
        self.timeout = timeout;
        Ok(self)
    }

    /// How many nodes there are until the store tells.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes.max(1);
        self
    }

    /// Whom to trust, in place of the authorities that browsers trust; says nothing without TLS.
    #[must_use]
    pub fn trust(mut self, trust: Arc<ClientConfig>) -> Self {
        self.tls = self.tls.map(|_| Tls::Given(trust));
        self
    }

    /// Host and port of all servers that it names, without secrets.
    #[must_use]
    pub fn address(&self) -> String {
        match &self.place {
            Place::Single(server) => server.to_string(),
            Place::Sentinel { sentinels: servers, .. } | Place::Cluster { seeds: servers } => {
                let servers: Vec<String> = servers.iter().map(Server::to_string).collect();
                servers.join(",")
            }
        }
    }

    /// What the names of all keys begin with, the tag included.
    pub(crate) fn front(&self) -> Arc<str> {
        match &self.tag {
            None => Arc::clone(&self.prefix),
            Some(tag) => format!("{}{{{tag}}}", self.prefix).into(),
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"{}*?[]\\".contains(&byte)
}

impl fmt::Display for Config {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, database) = (self.address(), self.database);
        let s = if self.tls.is_some() { "s" } else { "" };
        match &self.place {
            Place::Single(_) => write!(f, "redis{s}://{address}/{database}"),
            Place::Sentinel { master, .. } => {
                write!(f, "redis{s}+sentinel://{address}/{master}/{database}")
            }
            Place::Cluster { .. } => write!(f, "redis{s}+cluster://{address}"),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config({self})")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why something is no store. No text of it holds a password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// It begins with none of the schemes.
    Scheme,
    /// What is wrong with the rest of the URL.
    Url(&'static str),
    /// A prefix that cannot be used.
    Prefix(String),
    /// A tag that cannot be used.
    Tag(String),
    /// A tag for a store that has no slots.
    NoSlots,
    /// A timeout that cannot be used.
    Timeout(Duration),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme => f.write_str(
                "expected a store that begins with `redis://`, `redis+cluster://` or `redis+sentinel://`, or with `rediss` instead of `redis`",
            ),
            Self::Url(what) => write!(f, "the URL of the store: {what}"),
            Self::Prefix(prefix) => write!(
                f,
                "found the prefix `{}`, expected at most {PREFIX_BYTES_MAX} visible ASCII characters other than `{{}}*?[]\\`",
                prefix.escape_debug()
            ),
            Self::Tag(tag) => write!(
                f,
                "found the tag `{}`, expected 1 to {TAG_BYTES_MAX} visible ASCII characters other than `{{}}*?[]\\`",
                tag.escape_debug()
            ),
            Self::NoSlots => f.write_str("only a store `redis+cluster://…` has slots to keep keys in"),
            Self::Timeout(timeout) => write!(
                f,
                "found the timeout {timeout:?}, expected more than 0 and at most {TIMEOUT_MAX:?}"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests;
