//! The configuration of the daemon: the arguments of `tidegate serve`, checked one by one.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Uri;
use http::uri::PathAndQuery;
use tidegate::engine::identity::Networks;
use tidegate::engine::operation::forwarded_path;
use tidegate::engine::units::{meant_duration, parse_duration};

use crate::challenge;
use crate::listen::{ConnectionTimeouts, ListenerBounds};
use crate::telemetry::LogSettings;

/// The headings of the help.
pub(crate) const LOGS: &str = "Logs";
const POLICIES: &str = "Policies and what they use";
const LISTENERS: &str = "Listeners";
const UPSTREAM: &str = "Upstream";
const STORE: &str = "Counters and their store";
const BOUNDS: &str = "Bounds";

/// The daemon's configuration. The comments of the fields are the help of the flags.
#[derive(Args, Debug)]
pub struct Config {
    /// The policies to enforce, the first on the gateway; none for a demo
    #[arg(value_name = "POLICY", env = "TIDEGATE_POLICY", value_delimiter = ',')]
    pub(crate) policies: Vec<PathBuf>,
    /// Where the gateway listens; `:8080` is every IPv4 address of the host
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GATEWAY", default_value = "127.0.0.1:8080", value_parser = parse_address, help_heading = LISTENERS)]
    pub(crate) gateway: SocketAddr,
    /// The service behind the gateway; without it there is no gateway
    #[arg(long, value_name = "URL", env = "TIDEGATE_UPSTREAM", help_heading = UPSTREAM)]
    pub(crate) upstream: Option<Uri>,
    /// Certificates of authorities (PEM) to verify the upstream by, beside the well-known ones
    #[arg(long, value_name = "FILE", env = "TIDEGATE_UPSTREAM_CA", requires = "upstream", help_heading = UPSTREAM)]
    pub(crate) upstream_ca: Option<PathBuf>,
    /// Where the decision API listens
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_API", default_value = "127.0.0.1:7070", value_parser = parse_address, help_heading = LISTENERS)]
    pub(crate) api: SocketAddr,
    /// Where status and metrics are
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN", default_value = "127.0.0.1:7071", value_parser = parse_address, help_heading = LISTENERS)]
    pub(crate) admin: SocketAddr,
    /// Who may call the API and the admin listener: lines of ROLE NAME SHA256
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKENS", help_heading = LISTENERS)]
    pub(crate) tokens: Option<PathBuf>,
    /// Let the API and the admin listener go beyond loopback without tokens
    #[arg(long, env = "TIDEGATE_INSECURE", help_heading = LISTENERS)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) store: SharedStoreConfig,
    /// At most N keys in memory: an equal share for each limit, which lends what it does not use
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_KEYS", default_value_t = 1_000_000, help_heading = STORE)]
    pub(crate) max_keys: usize,
    /// Keep counters here over a restart
    #[arg(long, value_name = "DIR", env = "TIDEGATE_STATE_DIR", help_heading = STORE)]
    pub(crate) state_dir: Option<PathBuf>,
    /// The secret that hashes keys: 32 hex digits
    #[arg(long, value_name = "FILE", env = "TIDEGATE_HASH_KEY", help_heading = STORE)]
    pub(crate) hash_key: Option<PathBuf>,
    /// Show the published limits on the gateway at this path, such as /rate-limits
    #[arg(long, value_name = "PATH", env = "TIDEGATE_PUBLIC_LIMITS", value_parser = parse_public_path, help_heading = LISTENERS)]
    pub(crate) public_limits: Option<String>,
    /// Lay this profile over the policies; several, separated by commas, in this order
    #[arg(long, value_name = "NAME,…", env = "TIDEGATE_PROFILE", help_heading = POLICIES)]
    pub(crate) profile: Option<String>,
    /// What bearer tokens are verified with: a public key (PEM), a JWKS, or a secret
    #[arg(long, value_name = "FILE", env = "TIDEGATE_JWT_KEY", help_heading = POLICIES)]
    pub(crate) jwt_key: Option<PathBuf>,
    /// Who must have issued bearer tokens
    #[arg(long, value_name = "ISSUER", env = "TIDEGATE_JWT_ISSUER", requires = "jwt_key", help_heading = POLICIES)]
    pub(crate) jwt_issuer: Option<String>,
    /// Whom bearer tokens must be meant for
    #[arg(long, value_name = "AUDIENCE", env = "TIDEGATE_JWT_AUDIENCE", requires = "jwt_key", help_heading = POLICIES)]
    pub(crate) jwt_audience: Option<String>,
    /// Which country addresses are in: a database in the MMDB form
    #[arg(long, value_name = "FILE", env = "TIDEGATE_GEOIP", help_heading = POLICIES)]
    pub(crate) geoip: Option<PathBuf>,
    /// Networks that are not public, where webhooks may be all the same, such as 10.1.0.0/16,::1
    #[arg(long, value_name = "CIDR,…", env = "TIDEGATE_NOTIFY_ALLOW_PRIVATE", value_parser = parse_networks, help_heading = POLICIES)]
    pub(crate) notify_allow_private: Option<Networks>,
    /// The certificate chain (PEM) of the gateway, and of whatever else is not on loopback
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CERT", requires = "tls_key", help_heading = LISTENERS)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_KEY", requires = "tls_cert", help_heading = LISTENERS)]
    pub(crate) tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) logging: LogSettings,
    /// How many threads do the work; one for each core if left out
    #[arg(long, value_name = "N", env = "TIDEGATE_THREADS", help_heading = BOUNDS)]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
}

impl Config {
    /// True if there is a service to stand in front of.
    pub(crate) fn has_gateway(&self) -> bool {
        self.upstream.is_some() || self.is_demo()
    }

    /// True if there is no policy to enforce.
    pub(crate) fn is_demo(&self) -> bool {
        self.policies.is_empty()
    }

    /// The store that nodes share; `None` for the memory of this process.
    pub(crate) fn shared_store(&self) -> Option<&SharedStoreConfig> {
        let SharedStoreConfig { url, cluster_tag, ca, .. } = &self.store;
        // Memory has neither slots nor certificates. The connection refuses these flags for it, as
        // for any other store that lacks them.
        let is_memory = url == "memory" && cluster_tag.is_none() && ca.is_none();
        (!is_memory).then_some(&self.store)
    }

    /// The certificate chain of the listeners, and its private key.
    pub(crate) fn tls(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.tls_cert.as_ref().zip(self.tls_key.as_ref())
    }

    /// All files that a reload reads again.
    pub(crate) fn reloaded_files(&self) -> Vec<PathBuf> {
        let single = [&self.jwt_key, &self.tokens, &self.tls_cert, &self.tls_key];
        let single = single.into_iter().chain([&self.upstream_ca, &self.geoip]).flatten();
        self.policies.iter().chain(single).cloned().collect()
    }
}

/// The store that nodes share.
#[derive(Args, Clone, PartialEq, Eq)]
pub(crate) struct SharedStoreConfig {
    /// Where counters live: memory, or a store that nodes share, such as redis://127.0.0.1:6379
    #[arg(
        long = "store",
        value_name = "STORE",
        env = "TIDEGATE_STORE",
        default_value = "memory",
        hide_env_values = true,
        help_heading = STORE
    )]
    pub(crate) url: String,
    /// What all keys in the shared store begin with
    #[arg(long = "store-prefix", value_name = "PREFIX", env = "TIDEGATE_STORE_PREFIX", default_value = "tg:", help_heading = STORE)]
    pub(crate) prefix: String,
    /// Certificates of authorities (PEM) to verify a store `rediss://…` by, beside the well-known ones
    #[arg(long = "store-ca", value_name = "FILE", env = "TIDEGATE_STORE_CA", help_heading = STORE)]
    pub(crate) ca: Option<PathBuf>,
    /// How long a call to the shared store may take; then limits do without it
    #[arg(long = "store-timeout", value_name = "TIME", env = "TIDEGATE_STORE_TIMEOUT", default_value = "20ms", value_parser = parse_bound, help_heading = STORE)]
    pub(crate) timeout: Duration,
    /// How many nodes share the store, for one that starts while it is lost
    #[arg(long, value_name = "N", env = "TIDEGATE_NODES", help_heading = STORE)]
    pub(crate) nodes: Option<NonZeroU32>,
    /// Keep all keys in the slot of this tag in a cluster, so that each request is decided in one call
    #[arg(long, value_name = "NAME", env = "TIDEGATE_CLUSTER_TAG", help_heading = STORE)]
    pub(crate) cluster_tag: Option<String>,
}

impl fmt::Debug for SharedStoreConfig {
    /// The URL may hold a password, which stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStoreConfig").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Bounds on times and numbers.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = BOUNDS)]
pub(crate) struct Bounds {
    /// At most N connections on each listener
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS", default_value = "25000")]
    pub(crate) max_connections: NonZeroUsize,
    /// At most N connections of one address at the gateway, once three quarters of them are in use; a
    /// sixteenth of them if left out
    #[arg(long, value_name = "N", env = "TIDEGATE_CONNECTIONS_PER_ADDRESS")]
    pub(crate) connections_per_address: Option<NonZeroUsize>,
    /// At most N connections to the upstream; as many as open files are left for if left out
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_UPSTREAM_CONNECTIONS")]
    pub(crate) max_upstream_connections: Option<NonZeroUsize>,
    /// At most N requests that wait their turn
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_WAITERS", default_value_t = 10_000)]
    pub(crate) max_waiters: usize,
    /// How long the head of a request may take
    #[arg(long, value_name = "TIME", env = "TIDEGATE_HEADER_TIMEOUT", default_value = "10s", value_parser = parse_bound)]
    pub(crate) header_timeout: Duration,
    /// How long a body may pause, and a client may read less than 1 KiB a second of its answer
    #[arg(long, value_name = "TIME", env = "TIDEGATE_BODY_TIMEOUT", default_value = "30s", value_parser = parse_bound)]
    pub(crate) body_timeout: Duration,
    /// How long a connection may be without a request
    #[arg(long, value_name = "TIME", env = "TIDEGATE_IDLE_TIMEOUT", default_value = "75s", value_parser = parse_bound)]
    pub(crate) idle_timeout: Duration,
    /// How long it may take to connect to the upstream
    #[arg(long, value_name = "TIME", env = "TIDEGATE_CONNECT_TIMEOUT", default_value = "5s", value_parser = parse_bound)]
    pub(crate) connect_timeout: Duration,
    /// How long the upstream may take to begin its answer
    #[arg(long, value_name = "TIME", env = "TIDEGATE_UPSTREAM_TIMEOUT", default_value = "60s", value_parser = parse_bound)]
    pub(crate) upstream_timeout: Duration,
    /// How long, from SIGTERM on, new requests are still accepted; meanwhile /ready is 503
    #[arg(long, value_name = "TIME", env = "TIDEGATE_DRAIN_DELAY", default_value = "0s", value_parser = parse_wait)]
    pub(crate) drain_delay: Duration,
    /// How long requests under way may take after that
    #[arg(long, value_name = "TIME", env = "TIDEGATE_DRAIN_TIMEOUT", default_value = "30s", value_parser = parse_wait)]
    pub(crate) drain_timeout: Duration,
}

/// Without a flag, an address has a sixteenth of the connections in a crowd, and never fewer than these: a
/// browser opens six.
const ADDRESS_SHARE_MIN: usize = 16;

impl Bounds {
    /// The bounds of a listener that may have this many connections.
    pub(crate) fn of_listener(&self, connections_max: usize) -> ListenerBounds {
        let share = self.connections_per_address.map(NonZeroUsize::get);
        let address_share = share.unwrap_or((connections_max / 16).max(ADDRESS_SHARE_MIN));
        ListenerBounds { connections_max, address_share, timeouts: self.timeouts() }
    }

    /// The timeouts of every connection.
    const fn timeouts(&self) -> ConnectionTimeouts {
        ConnectionTimeouts {
            head: self.header_timeout,
            idle: self.idle_timeout,
            stalled: self.body_timeout,
        }
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let port = port.parse::<u16>().ok();
    let address = match (host, port) {
        ("", Some(port)) if text.starts_with(':') => Some((Ipv4Addr::UNSPECIFIED, port).into()),
        ("localhost", Some(port)) => Some((Ipv4Addr::LOCALHOST, port).into()),
        _ => text.parse().ok(),
    };
    address.ok_or_else(|| {
        let port = port.unwrap_or(8080);
        format!(
            "expected an address and a port, such as 127.0.0.1:{port}, localhost:{port}, or :{port} for all IPv4 addresses"
        )
    })
}

/// A path that requests have only one way to write, and that nothing else answers.
fn parse_public_path(text: &str) -> Result<String, String> {
    let is_path =
        text.starts_with('/') && text.parse::<PathAndQuery>().is_ok_and(|path| path.path() == text);
    if !is_path || !forwarded_path(text).is_ok_and(|forwarded| forwarded == text) {
        return Err("expected a path without dots and a query, such as /rate-limits".to_owned());
    }
    if text == challenge::PATH {
        return Err("this is where the solutions of challenges go".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_networks(text: &str) -> Result<Networks, String> {
    let nets = text.split(',').map(|net| Networks::parse_net(net.trim()));
    nets.collect::<Result<Networks, _>>().map_err(|error| error.to_string())
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    parse_duration(text).map(Duration::from_micros).map_err(|error| {
        let meant = meant_duration(text).map(|meant| format!("; did you mean {meant}?"));
        format!("{error}{}", meant.unwrap_or_default())
    })
}

/// A bound of no time would end everything before it began.
fn parse_bound(text: &str) -> Result<Duration, String> {
    match parse_wait(text)? {
        Duration::ZERO => Err("expected more than no time, such as 500ms or 10s".to_owned()),
        bound => Ok(bound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_leave_out_the_host_or_name_this_one() {
        let parse = |text| parse_address(text).map(|address| address.to_string());
        assert_eq!(parse(":8080").unwrap(), "0.0.0.0:8080");
        assert_eq!(parse("localhost:0").unwrap(), "127.0.0.1:0");
        assert_eq!(parse("192.0.2.1:80").unwrap(), "192.0.2.1:80");
        assert_eq!(parse("[::1]:80").unwrap(), "[::1]:80");
        for text in ["8080", "", ":", "localhost", "localhost:", "example.org:80", ":65536", "::1"]
        {
            let error = parse(text).unwrap_err();
            assert!(
                error.starts_with("expected an address and a port, such as"),
                "{text}: {error}"
            );
        }
        assert!(parse("example.org:90").unwrap_err().contains("localhost:90, or :90 for all"));
    }
}
