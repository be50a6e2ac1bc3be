//! The configuration of a store, from a URL and flags.

mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use url::StoreUrl;

const PREFIX_BYTES_MAX: usize = 64;
const TAG_BYTES_MAX: usize = 32;
const TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// The configuration of a store.
///
/// ```
/// use tidegate_redis::Config;
///
/// let config = Config::parse("redis://tidegate:secret@127.0.0.1:6380/2").unwrap();
/// assert_eq!(config.to_string(), "redis://127.0.0.1:6380/2");
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) endpoints: Endpoints,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: Arc<str>,
    /// A hash tag that keeps all keys in one slot.
    pub(crate) tag: Option<Arc<str>>,
    pub(crate) timeout: Duration,
    pub(crate) nodes: u32,
}

/// How the servers are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoints {
    /// One server.
    Single(Server),
    /// The primary of this name, as sentinels report it.
    Sentinel { sentinels: Vec<Server>, primary: String },
    /// A cluster, as any of these servers reports it.
    Cluster { seeds: Vec<Server> },
}

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The certificate authorities that TLS connections trust.
#[derive(Clone)]
pub(crate) enum Tls {
    /// Those that browsers trust.
    Public,
    /// Those of the deployment.
    Given(Arc<ClientConfig>),
}

impl Config {
    /// The default prefix of all keys.
    pub const PREFIX: &str = "tg:";
    /// The default time that a request waits for the store.
    pub const TIMEOUT: Duration = Duration::from_millis(20);

    /// Reads `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`,
    /// `redis+sentinel://…HOST[:PORT][,…]/MASTER[/DATABASE]` or `redis+cluster://…HOST[:PORT][,…]`;
    /// `rediss…` is the same over TLS.
    ///
    /// # Errors
    /// The URL is not valid.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let url = StoreUrl::parse(url)?;
        Ok(Self {
            endpoints: url.endpoints,
            tls: url.is_tls.then_some(Tls::Public),
            user: url.user,
            password: url.password,
            database: url.database,
            prefix: Self::PREFIX.into(),
            tag: None,
            timeout: Self::TIMEOUT,
            nodes: 1,
        })
    }

    /// Sets the prefix of all keys, so that deployments can share a server.
    ///
    /// # Errors
    /// The prefix is too long, or has characters that are not plain in a key's name.
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
    /// The store is no cluster, or the tag has characters that are not plain in a key's name.
    pub fn cluster_tag(mut self, tag: &str) -> Result<Self, ConfigError> {
        if !matches!(self.endpoints, Endpoints::Cluster { .. }) {
            return Err(ConfigError::NoSlots);
        }
        if !(1..=TAG_BYTES_MAX).contains(&tag.len()) || !tag.bytes().all(is_plain) {
            return Err(ConfigError::Tag(tag.to_owned()));
        }
        self.tag = Some(tag.into());
        Ok(self)
    }

    /// Sets how long a request waits for the store at most.
    ///
    /// # Errors
    /// The time is zero, or longer than ten seconds.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        if timeout.is_zero() || timeout > TIMEOUT_MAX {
            return Err(ConfigError::Timeout(timeout));
        }
        self.timeout = timeout;
        Ok(self)
    }

    /// Sets how many nodes there are, until the first heartbeat.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes.max(1);
        self
    }

    /// Trusts these certificate authorities instead of those of browsers. Without TLS it has no effect.
    #[must_use]
    pub fn trust(mut self, trust: Arc<ClientConfig>) -> Self {
        self.tls = self.tls.map(|_| Tls::Given(trust));
        self
    }

    /// Host and port of all servers, without secrets.
    #[must_use]
    pub fn address(&self) -> String {
        match &self.endpoints {
            Endpoints::Single(server) => server.to_string(),
            Endpoints::Sentinel { sentinels: servers, .. }
            | Endpoints::Cluster { seeds: servers } => {
                let servers: Vec<String> = servers.iter().map(Server::to_string).collect();
                servers.join(",")
            }
        }
    }

    /// The prefix of all keys, with the hash tag.
    pub(crate) fn key_prefix(&self) -> Arc<str> {
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
        match &self.endpoints {
            Endpoints::Single(_) => write!(f, "redis{s}://{address}/{database}"),
            Endpoints::Sentinel { primary, .. } => {
                write!(f, "redis{s}+sentinel://{address}/{primary}/{database}")
            }
            Endpoints::Cluster { .. } => write!(f, "redis{s}+cluster://{address}"),
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

/// Why a configuration is not valid. No message shows a password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The URL has another scheme.
    Scheme,
    /// What is wrong with the rest of the URL.
    Url(&'static str),
    /// A prefix that cannot be used.
    Prefix(String),
    /// A tag that cannot be used.
    Tag(String),
    /// A tag for a store without slots.
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
