//! Where the store is and how long to wait for it, as read from a URL and flags.

mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use url::{Parts, Scheme};

const PREFIX_BYTES_MAX: usize = 64;
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
    pub(crate) server: Server,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: Arc<str>,
    pub(crate) timeout: Duration,
    pub(crate) nodes: u32,
}

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// Reads `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS.
    ///
    /// # Errors
    /// It is no such URL, or one of a kind that is not supported yet.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let parts = Parts::parse(url)?;
        let tls = match parts.scheme {
            Scheme::Plain => None,
            Scheme::Tls => Some(Tls::Public),
            Scheme::Cluster => {
                parts.database()?;
                return Err(ConfigError::Unsupported("Redis Cluster (`redis+cluster://`)"));
            }
            Scheme::Sentinel => {
                parts.master()?;
                return Err(ConfigError::Unsupported("Redis Sentinel (`redis+sentinel://`)"));
            }
        };
        let database = parts.database()?;
        let server = parts.only_server()?;
        Ok(Self {
            server,
            user: parts.user,
            password: parts.password,
            database,
            tls,
            prefix: Self::PREFIX.into(),
            timeout: Self::TIMEOUT,
            nodes: 1,
        })
    }

    /// What the names of all keys begin with, so that deployments can share a server.
    ///
    /// # Errors
    /// It is too long, or holds something that is not plain in a key's name.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, ConfigError> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"{}*?[]\\".contains(&byte);
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(plain) {
            return Err(ConfigError::Prefix(prefix.to_owned()));
        }
        self.prefix = prefix.into();
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

    /// The server's host and port, without secrets.
    #[must_use]
    pub fn address(&self) -> String {
        self.server.to_string()
    }
}

impl fmt::Display for Config {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { Scheme::Tls } else { Scheme::Plain };
        write!(f, "{}{}/{}", scheme.text(), self.server, self.database)
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
    /// A kind of store that is understood and not supported yet.
    Unsupported(&'static str),
    /// A prefix that cannot be used.
    Prefix(String),
    /// A timeout that cannot be used.
    Timeout(Duration),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme => f.write_str(
                "expected a store that begins with `redis://`, `rediss://`, `redis+cluster://` or `redis+sentinel://`",
            ),
            Self::Url(what) => write!(f, "the URL of the store: {what}"),
            Self::Unsupported(what) => write!(f, "{what} is not supported yet; use `redis://` or `rediss://`"),
            Self::Prefix(prefix) => write!(
                f,
                "found the prefix `{}`, expected at most {PREFIX_BYTES_MAX} visible ASCII characters other than `{{}}*?[]\\`",
                prefix.escape_debug()
            ),
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
