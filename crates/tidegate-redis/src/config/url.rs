//! The URL of a store, in its parts.
//!
//! It is read here because a list of servers is no URL to other parsers, and because their errors
//! quote what they found: a password, perhaps.

use super::{ConfigError, Place, Server};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const SERVERS_MAX: usize = 64;
/// Redis can be told to have more than its usual 16.
const DATABASE_MAX: u32 = 1_000_000;

/// What a URL begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scheme {
    kind: Kind,
    pub(super) tls: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Single,
    Cluster,
    Sentinel,
}

impl Scheme {
    /// It, and what stands behind it.
    fn parse(url: &str) -> Option<(Self, &str)> {
        let (scheme, rest) = url.split_once("://")?;
        let (kind, tls) = match scheme {
            "redis" => (Kind::Single, false),
            "rediss" => (Kind::Single, true),
            "redis+cluster" => (Kind::Cluster, false),
            "rediss+cluster" => (Kind::Cluster, true),
            "redis+sentinel" => (Kind::Sentinel, false),
            "rediss+sentinel" => (Kind::Sentinel, true),
            _ => return None,
        };
        Some((Self { kind, tls }, rest))
    }
}

/// The parts of a URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) scheme: Scheme,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    servers: Vec<Server>,
    path: String,
}

impl Parts {
    pub(super) fn parse(url: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = Scheme::parse(url).ok_or(ConfigError::Scheme)?;
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
        let port = if scheme.kind == Kind::Sentinel { SENTINEL_PORT } else { PORT };
        let servers: Vec<Server> =
            hosts.split(',').map(|host| server(host, port)).collect::<Result<_, _>>()?;
        if servers.len() > SERVERS_MAX {
            return Err(ConfigError::Url("found more than 64 servers"));
        }
        Ok(Self { scheme, user, password, servers, path: path.to_owned() })
    }

    /// Where the servers are, and which of their databases is used.
    pub(super) fn place(&self) -> Result<(Place, u32), ConfigError> {
        match self.scheme.kind {
            Kind::Single => Ok((Place::Single(self.only_server()?), database(&self.path)?)),
            Kind::Cluster if database(&self.path)? != 0 => {
                Err(ConfigError::Url("a cluster has only the database 0"))
            }
            Kind::Cluster => Ok((Place::Cluster { seeds: self.servers.clone() }, 0)),
            Kind::Sentinel => {
                let (master, behind) = self.path.split_once('/').unwrap_or((&self.path, ""));
                if master.is_empty() {
                    return Err(ConfigError::Url("expected the master's name behind the `/`"));
                }
                let (sentinels, master) = (self.servers.clone(), decoded(master)?);
                Ok((Place::Sentinel { sentinels, master }, database(behind)?))
            }
        }
    }

    fn only_server(&self) -> Result<Server, ConfigError> {
        match self.servers.as_slice() {
            [server] => Ok(server.clone()),
            _ => Err(ConfigError::Url(
                "found several servers, expected one (`redis+cluster://` takes a list)",
            )),
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

/// `USER`, `USER:PASSWORD` or `:PASSWORD`. A lone word is a user without a password, which no server
/// takes, so that a forgotten colon is told instead of refused later.
fn credentials(login: &str) -> Result<(Option<String>, Option<String>), ConfigError> {
    let Some((user, password)) = login.split_once(':') else {
        return Err(ConfigError::Url(
            "expected `USER:PASSWORD@` or `:PASSWORD@` before the host, and found no `:`",
        ));
    };
    let user = decoded(user)?;
    Ok(((!user.is_empty()).then_some(user), Some(decoded(password)?)))
}

fn decoded(text: &str) -> Result<String, ConfigError> {
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
