//! What the daemon is told at its start, as values that are known to make sense together.

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use tidegate::identity::Networks;

use crate::listen::ConnectionTimeouts;
use crate::telemetry::Settings as LogSettings;

/// How the daemon runs.
#[derive(Debug)]
pub struct Config {
    /// The policies; none for the demo.
    pub policies: Vec<PathBuf>,
    /// Laid over the policies.
    pub profile: Option<String>,
    /// Where the gateway listens, if it has an upstream or in the demo.
    pub gateway: SocketAddr,
    /// Where the gateway sends what it lets through.
    pub upstream: Option<Uri>,
    /// Roots that the upstream is verified by, beside the well-known ones.
    pub upstream_ca: Option<PathBuf>,
    /// Where the decision API listens.
    pub api: SocketAddr,
    /// Where status and metrics are.
    pub admin: SocketAddr,
    /// Who may call the API and the admin listener.
    pub tokens: Option<PathBuf>,
    /// Lets the API and the admin listener go beyond loopback without tokens.
    pub insecure: bool,
    /// Where counters live.
    pub store: StoreConfig,
    /// At most so many keys in memory.
    pub max_keys: usize,
    /// Where counters outlive a restart.
    pub state_dir: Option<PathBuf>,
    /// The secret that hashes keys.
    pub hash_key: Option<PathBuf>,
    /// What bearer tokens are verified with.
    pub jwt: Option<JwtConfig>,
    /// Which country addresses are in: an MMDB file.
    pub geoip: Option<PathBuf>,
    /// Networks that are not public, where webhooks may be all the same.
    pub notify_private: Networks,
    /// The certificate and key of the gateway, and of whatever else is not on loopback.
    pub tls: Option<TlsConfig>,
    /// What is logged, and how.
    pub logging: LogSettings,
    /// How many threads do the work; one for each core if left out.
    pub threads: Option<NonZeroUsize>,
    /// How long things may take, and how many there may be.
    pub bounds: Bounds,
}

impl Config {
    /// Whether there is a service to stand in front of.
    pub(crate) fn has_gateway(&self) -> bool {
        self.upstream.is_some() || self.is_demo()
    }

    /// Whether it was given nothing to enforce.
    pub(crate) fn is_demo(&self) -> bool {
        self.policies.is_empty()
    }
}

/// Where counters live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process.
    Memory,
    /// In a store that several nodes share.
    Shared(SharedStoreConfig),
}

/// The store that nodes share.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedStoreConfig {
    /// Where it is, as `redis://…`, `redis+cluster://…` or `redis+sentinel://…`, or with `rediss` for TLS.
    /// It may hold a password.
    pub url: String,
    /// What all keys begin with.
    pub prefix: String,
    /// Certificates of authorities, as PEM, to verify it by beside the well-known ones.
    pub ca: Option<PathBuf>,
    /// How long a call may take.
    pub timeout: Duration,
    /// How many nodes there are, for one that starts while the store is lost.
    pub nodes: Option<NonZeroU32>,
    /// Keeps all keys in one slot of a cluster: that of this tag.
    pub cluster_tag: Option<String>,
}

impl fmt::Debug for SharedStoreConfig {
    /// The password stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStoreConfig").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// How bearer tokens are verified.
#[derive(Clone, Debug)]
pub struct JwtConfig {
    /// A public key, a JWKS or a shared secret.
    pub key: PathBuf,
    /// Who must have issued them.
    pub issuer: Option<String>,
    /// Whom they must be meant for.
    pub audience: Option<String>,
}

/// Where the certificate is.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// The chain, as PEM.
    pub certificate: PathBuf,
    /// The private key, as PEM.
    pub key: PathBuf,
}

/// How long things may take, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// At most so many connections on each listener.
    pub connections_max: usize,
    /// At most so many connections to the upstream; left out: as many as open files are left for.
    pub upstream_connections_max: Option<usize>,
    /// At most so many requests that wait their turn.
    pub waiters_max: usize,
    /// For heads, idle connections and stalled readers.
    pub timeouts: ConnectionTimeouts,
    /// Between two pieces of a body.
    pub body: Duration,
    /// Until the upstream is connected.
    pub connect: Duration,
    /// Until the upstream begins its answer.
    pub upstream: Duration,
    /// For what is under way when the daemon is told to stop.
    pub drain: Duration,
}
