//! `tidegate serve`

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::Uri;
use tidegate::identity::Networks;
use tidegate::units::parse_duration;
use tidegate_server::{
    Bounds, Config, ConnectionTimeouts, IdentityFormat, JwtConfig, LevelFilter, LogFormat,
    LogSettings, SharedStoreConfig, StoreConfig, TlsConfig,
};

use super::Error;
use crate::say;

/// Run the daemon: a gateway in front of a service, and an API that decides.
///
/// The first policy serves the gateway and, unless a call names another, the API. Without a policy a
/// demo starts: a small service behind a gateway, and three commands to try. SIGHUP or a changed
/// file reloads, SIGTERM drains. Every option is also an environment variable, such as
/// TIDEGATE_UPSTREAM.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate serve\n  tidegate serve policy.yaml --upstream http://127.0.0.1:3000\n  tidegate serve policy.yaml --upstream http://127.0.0.1:3000 --gateway 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem\n  tidegate serve a.yaml b.yaml --api 127.0.0.1:7070 --state-dir /var/lib/tidegate\n\nSIGHUP or a changed file reloads; SIGTERM or Ctrl-C finishes what was accepted, and stops."
)]
pub(crate) struct Arguments {
    /// The policies to enforce, the first on the gateway; none for a demo
    #[arg(value_name = "POLICY", env = "TIDEGATE_POLICY", value_delimiter = ',')]
    policies: Vec<PathBuf>,
    /// Where the gateway listens
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GATEWAY", default_value = "127.0.0.1:8080", value_parser = address)]
    gateway: SocketAddr,
    /// The service behind the gateway; without it there is no gateway
    #[arg(long, value_name = "URL", env = "TIDEGATE_UPSTREAM")]
    upstream: Option<Uri>,
    /// Certificates of authorities (PEM) to verify the upstream by, beside the well-known ones
    #[arg(long, value_name = "FILE", env = "TIDEGATE_UPSTREAM_CA", requires = "upstream")]
    upstream_ca: Option<PathBuf>,
    /// Where the decision API listens
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_API", default_value = "127.0.0.1:7070", value_parser = address)]
    api: SocketAddr,
    /// Where status and metrics are
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN", default_value = "127.0.0.1:7071", value_parser = address)]
    admin: SocketAddr,
    /// Who may call the API and the admin listener: lines of ROLE NAME SHA256
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKENS")]
    tokens: Option<PathBuf>,
    /// Let the API and the admin listener go beyond loopback without tokens
    #[arg(long, env = "TIDEGATE_INSECURE")]
    insecure: bool,
    /// Where counters live: memory, or a store that nodes share, such as redis://127.0.0.1:6379
    #[arg(
        long,
        value_name = "STORE",
        env = "TIDEGATE_STORE",
        default_value = "memory",
        hide_env_values = true
    )]
    store: String,
    #[command(flatten)]
    shared: SharedArguments,
    /// At most so many keys in memory
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_KEYS", default_value_t = 1_000_000)]
    max_keys: usize,
    /// Keep counters here over a restart
    #[arg(long, value_name = "DIR", env = "TIDEGATE_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// The secret that hashes keys: 32 hex digits
    #[arg(long, value_name = "FILE", env = "TIDEGATE_HASH_KEY")]
    hash_key: Option<PathBuf>,
    /// Lay this profile over the policies
    #[arg(long, value_name = "NAME", env = "TIDEGATE_PROFILE")]
    profile: Option<String>,
    /// What bearer tokens are verified with: a public key (PEM), a JWKS, or a secret
    #[arg(long, value_name = "FILE", env = "TIDEGATE_JWT_KEY")]
    jwt_key: Option<PathBuf>,
    /// Who must have issued bearer tokens
    #[arg(long, value_name = "ISSUER", env = "TIDEGATE_JWT_ISSUER", requires = "jwt_key")]
    jwt_issuer: Option<String>,
    /// Whom bearer tokens must be meant for
    #[arg(long, value_name = "AUDIENCE", env = "TIDEGATE_JWT_AUDIENCE", requires = "jwt_key")]
    jwt_audience: Option<String>,
    /// Which country addresses are in: a database in the MMDB form
    #[arg(long, value_name = "FILE", env = "TIDEGATE_GEOIP")]
    geoip: Option<PathBuf>,
    /// Networks that are not public, where webhooks may be all the same, such as 10.1.0.0/16,::1
    #[arg(long, value_name = "CIDR,…", env = "TIDEGATE_NOTIFY_ALLOW_PRIVATE", value_parser = networks)]
    notify_allow_private: Option<Networks>,
    /// The certificate chain (PEM) of the gateway, and of whatever else is not on loopback
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How logs are written, to standard error
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG", default_value = "text")]
    log: Format,
    /// How much is logged; allowed requests at debug
    #[arg(long, value_name = "LEVEL", env = "TIDEGATE_LOG_LEVEL", default_value = "info")]
    log_level: Level,
    /// Log users and addresses themselves instead of keyed hashes
    #[arg(long, env = "TIDEGATE_LOG_IDENTITIES")]
    log_identities: bool,
    /// How many threads do the work; one for each core if left out
    #[arg(long, value_name = "N", env = "TIDEGATE_THREADS")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    bounds: BoundsArguments,
}

#[derive(Args)]
#[command(next_help_heading = "Shared store")]
struct SharedArguments {
    /// What all keys in the shared store begin with
    #[arg(long, value_name = "PREFIX", env = "TIDEGATE_STORE_PREFIX", default_value = "tg:")]
    store_prefix: String,
    /// Certificates of authorities (PEM) to verify a store `rediss://…` by, beside the well-known ones
    #[arg(long, value_name = "FILE", env = "TIDEGATE_STORE_CA")]
    store_ca: Option<PathBuf>,
    /// How long a call to the shared store may take; then limits do without it
    #[arg(long, value_name = "TIME", env = "TIDEGATE_STORE_TIMEOUT", default_value = "20ms", value_parser = bound)]
    store_timeout: Duration,
    /// How many nodes share the store, for one that starts while it is lost
    #[arg(long, value_name = "N", env = "TIDEGATE_NODES")]
    nodes: Option<NonZeroU32>,
    /// Keep all keys in the slot of this tag in a cluster, so that each request is decided in one call
    #[arg(long, value_name = "NAME", env = "TIDEGATE_CLUSTER_TAG")]
    cluster_tag: Option<String>,
}

#[derive(Args)]
#[command(next_help_heading = "Bounds")]
struct BoundsArguments {
    /// At most so many connections on each listener
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS", default_value = "25000")]
    max_connections: NonZeroUsize,
    /// At most so many connections to the upstream; as many as open files are left for if left out
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_UPSTREAM_CONNECTIONS")]
    max_upstream_connections: Option<NonZeroUsize>,
    /// At most so many requests that wait their turn
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_WAITERS", default_value_t = 10_000)]
    max_waiters: usize,
    /// For the head of a request
    #[arg(long, value_name = "TIME", env = "TIDEGATE_HEADER_TIMEOUT", default_value = "10s", value_parser = bound)]
    header_timeout: Duration,
    /// Between two pieces of a body, and for a reader who takes nothing
    #[arg(long, value_name = "TIME", env = "TIDEGATE_BODY_TIMEOUT", default_value = "30s", value_parser = bound)]
    body_timeout: Duration,
    /// For a connection without a request
    #[arg(long, value_name = "TIME", env = "TIDEGATE_IDLE_TIMEOUT", default_value = "75s", value_parser = bound)]
    idle_timeout: Duration,
    /// Until the upstream is connected
    #[arg(long, value_name = "TIME", env = "TIDEGATE_CONNECT_TIMEOUT", default_value = "5s", value_parser = bound)]
    connect_timeout: Duration,
    /// Until the upstream begins its answer
    #[arg(long, value_name = "TIME", env = "TIDEGATE_UPSTREAM_TIMEOUT", default_value = "60s", value_parser = bound)]
    upstream_timeout: Duration,
    /// For what is under way at SIGTERM
    #[arg(long, value_name = "TIME", env = "TIDEGATE_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration)]
    drain_timeout: Duration,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

pub(crate) fn run(arguments: Arguments) -> Result<bool, Error> {
    match tidegate_server::run(&config(arguments), |line| say!("{line}")) {
        Err(error) if error.is_report() => {
            anstream::eprintln!("{error}");
            Ok(false)
        }
        outcome => outcome.map(|()| true).map_err(Error::from),
    }
}

fn config(arguments: Arguments) -> Config {
    let jwt = arguments.jwt_key.map(|key| JwtConfig {
        key,
        issuer: arguments.jwt_issuer,
        audience: arguments.jwt_audience,
    });
    let tls = arguments.tls_cert.zip(arguments.tls_key);
    Config {
        policies: arguments.policies,
        profile: arguments.profile,
        gateway: arguments.gateway,
        upstream: arguments.upstream,
        upstream_ca: arguments.upstream_ca,
        api: arguments.api,
        admin: arguments.admin,
        tokens: arguments.tokens,
        insecure: arguments.insecure,
        store: arguments.shared.of(arguments.store),
        max_keys: arguments.max_keys,
        state_dir: arguments.state_dir,
        hash_key: arguments.hash_key,
        jwt,
        geoip: arguments.geoip,
        notify_private: arguments.notify_allow_private.unwrap_or_default(),
        tls: tls.map(|(certificate, key)| TlsConfig { certificate, key }),
        logging: LogSettings {
            format: match arguments.log {
                Format::Text => LogFormat::Text,
                Format::Json => LogFormat::Json,
            },
            level: match arguments.log_level {
                Level::Error => LevelFilter::ERROR,
                Level::Warn => LevelFilter::WARN,
                Level::Info => LevelFilter::INFO,
                Level::Debug => LevelFilter::DEBUG,
                Level::Trace => LevelFilter::TRACE,
            },
            identities: match arguments.log_identities {
                true => IdentityFormat::Plain,
                false => IdentityFormat::Hashed,
            },
        },
        threads: arguments.threads,
        bounds: arguments.bounds.checked(),
    }
}

impl SharedArguments {
    fn of(self, store: String) -> StoreConfig {
        // Memory has neither slots nor certificates, and whoever connects refuses them for it as for
        // any other store.
        if store == "memory" && self.cluster_tag.is_none() && self.store_ca.is_none() {
            return StoreConfig::Memory;
        }
        // What it is, is told by whoever connects, without its password.
        StoreConfig::Shared(SharedStoreConfig {
            url: store,
            prefix: self.store_prefix,
            ca: self.store_ca,
            timeout: self.store_timeout,
            nodes: self.nodes,
            cluster_tag: self.cluster_tag,
        })
    }
}

impl BoundsArguments {
    fn checked(&self) -> Bounds {
        Bounds {
            connections_max: self.max_connections.get(),
            upstream_connections_max: self.max_upstream_connections.map(NonZeroUsize::get),
            waiters_max: self.max_waiters,
            timeouts: ConnectionTimeouts {
                head: self.header_timeout,
                idle: self.idle_timeout,
                stalled: self.body_timeout,
            },
            body: self.body_timeout,
            connect: self.connect_timeout,
            upstream: self.upstream_timeout,
            drain: self.drain_timeout,
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).unwrap_or(0);
        format!("expected an address and a port, such as 127.0.0.1:{port}")
    })
}

fn networks(text: &str) -> Result<Networks, String> {
    let nets = text.split(',').map(|net| Networks::parse_net(net.trim()));
    nets.collect::<Result<Networks, _>>().map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map(Duration::from_micros).map_err(|error| error.to_string())
}

/// A bound of no time would end everything before it began.
fn bound(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected more than no time, such as 500ms or 10s".to_owned()),
        bound => Ok(bound),
    }
}
