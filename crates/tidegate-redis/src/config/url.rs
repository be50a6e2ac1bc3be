//! The URL of a store, in its url.
//!
//! It is read here because a list of servers is no URL to other parsers, and because their errors
//! quote what they found: a password, perhaps.

use super::{ConfigError, Endpoints, Server};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const SERVERS_MAX: usize = 64;
/// Redis can be configured to have more than its usual 16.
const DATABASE_MAX: u32 = 1_000_000;

/// The kind of deployment that a URL names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Cluster,
    Sentinel,
}

/// The parts of a URL.
pub(super) struct StoreUrl {
    pub(super) endpoints: Endpoints,
    pub(super) is_tls: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u32,
}

impl StoreUrl {
    pub(super) fn parse(url: &str) -> Result<Self, ConfigError> {
        let (kind, is_tls, rest) = split_scheme(url).ok_or(ConfigError::Scheme)?;
        if rest.contains(['?', '#']) {
            return Err(ConfigError::Url(
                "found `?` or `#`, expected nothing behind the database (write `%3F` or `%23` in a password)",
            ));
        }
        // A password may hold an `@` that nobody encoded; a host cannot.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (user, password) = login.map(credentials).transpose()?.unwrap_or_default();
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let port = if kind == Kind::Sentinel { SENTINEL_PORT } else { PORT };
        let servers: Vec<Server> =
            hosts.split(',').map(|host| server(host, port)).collect::<Result<_, _>>()?;
        if servers.len() > SERVERS_MAX {
            return Err(ConfigError::Url("found more than 64 servers"));
        }
        let (endpoints, database) = endpoints(kind, servers, path)?;
        Ok(Self { endpoints, is_tls, user, password, database })
    }
}

/// The kind, whether it is over TLS, and what stands behind the scheme.
fn split_scheme(url: &str) -> Option<(Kind, bool, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.strip_prefix("redis")?;
    let (is_tls, kind) = match scheme.strip_prefix('s') {
        Some(kind) => (true, kind),
        None => (false, scheme),
    };
    let kind = match kind {
        "" => Kind::Single,
        "+cluster" => Kind::Cluster,
        "+sentinel" => Kind::Sentinel,
        _ => return None,
    };
    Some((kind, is_tls, rest))
}

/// How the servers are found, and which of their databases is used.
fn endpoints(
    kind: Kind,
    servers: Vec<Server>,
    path: &str,
) -> Result<(Endpoints, u32), ConfigError> {
    match kind {
        Kind::Single => {
            let [server] = <[Server; 1]>::try_from(servers).map_err(|_| {
                let detail =
                    "found several servers, expected one (`redis+cluster://` takes a list)";
                ConfigError::Url(detail)
            })?;
            Ok((Endpoints::Single(server), database(path)?))
        }
        Kind::Cluster if database(path)? != 0 => {
            Err(ConfigError::Url("a cluster has only the database 0"))
        }
        Kind::Cluster => Ok((Endpoints::Cluster { seeds: servers }, 0)),
        Kind::Sentinel => {
            let (primary, behind) = path.split_once('/').unwrap_or((path, ""));
            if primary.is_empty() {
                return Err(ConfigError::Url("expected the master's name behind the `/`"));
            }
            let primary = percent_decode(primary)?;
            Ok((Endpoints::Sentinel { sentinels: servers, primary }, database(behind)?))
        }
    }
}

fn database(path: &str) -> Result<u32, ConfigError> {
    let refused = ConfigError::Url("expected the database as a number behind the `/`");
    match path {
        "" => Ok(0),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let database = digits.parse().ok();
            database.filter(|database| *database <= DATABASE_MAX).ok_or(refused)
        }
        _ => Err(refused),
    }
}

/// Reads `USER:PASSWORD` or `:PASSWORD`. A single word would be a user without a password, which no server
/// accepts: most likely the colon was forgotten.
fn credentials(login: &str) -> Result<(Option<String>, Option<String>), ConfigError> {
    let Some((user, password)) = login.split_once(':') else {
        return Err(ConfigError::Url(
            "expected `USER:PASSWORD@` or `:PASSWORD@` before the host, and found no `:`",
        ));
    };
    let user = percent_decode(user)?;
    Ok(((!user.is_empty()).then_some(user), Some(percent_decode(password)?)))
}

fn percent_decode(text: &str) -> Result<String, ConfigError> {
    let refused = || ConfigError::Url("a `%` must have two hexadecimal digits behind it");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_first_chunk::<2>().ok_or_else(refused)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (high, low) = digit(digits[0]).zip(digit(digits[1])).ok_or_else(refused)?;
        // Two hexadecimal digits are a byte.
        bytes.push(u8::try_from(high * 16 + low).unwrap_or(u8::MAX));
        rest = behind;
    }
    String::from_utf8(bytes).map_err(|_| ConfigError::Url("user and password must be UTF-8"))
}

fn server(text: &str, default_port: u16) -> Result<Server, ConfigError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) =
                rest.split_once(']').ok_or(ConfigError::Url("an address lacks its `]`"))?;
            let port = if behind.is_empty() { None } else { Some(behind.strip_prefix(':')) };
            let unexpected = ConfigError::Url("expected `:PORT` behind the `]`");
            (host, port.map(|port| port.ok_or(unexpected)).transpose()?)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(ConfigError::Url("an IPv6 address must stand in `[]`"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if host.is_empty() || !host.bytes().all(plain) {
        return Err(ConfigError::Url("expected a host name or an address"));
    }
    let port = match port.map(str::parse) {
        None => default_port,
        Some(Ok(port @ 1..)) => port,
        Some(_) => return Err(ConfigError::Url("expected a port between 1 and 65535")),
    };
    Ok(Server { host: host.to_owned(), port })
}
