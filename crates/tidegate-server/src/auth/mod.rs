//! Authentication and authorisation on the API and the admin listener: tokens and roles.
//!
//! With a tokens file every caller needs a token; without one only loopback is served. On loopback
//! the danger is a browser on the same machine, because a page from anywhere can make the browser
//! call this listener. So the `Host`, `Origin` and `Sec-Fetch-Site` that a browser sends must be
//! local too.

mod tokens;

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, Version};

pub(crate) use self::tokens::{Role, TokenHolder, Tokens};
use crate::body::Body;
use crate::respond;

/// Tokens that can be replaced while they are in use.
pub(crate) type SharedTokens = Arc<ArcSwap<Tokens>>;

/// The listeners that need authorisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Realm {
    /// Decisions, for applications.
    Api,
    /// The admin API and metrics, for operators.
    Admin,
}

impl Realm {
    /// Who may make a call that does not exist: 404 and 405 are for those who may call.
    pub(crate) fn least_access(self, method: &Method) -> Access {
        Access::Role(match self {
            Self::Api => Role::Client,
            Self::Admin if matches!(*method, Method::GET | Method::HEAD) => Role::Viewer,
            Self::Admin => Role::Operator,
        })
    }
}

/// Who may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody, with any `Host` and from any page: probes send what they like.
    Anywhere,
    /// Everybody; on loopback no page from elsewhere.
    Everybody,
    /// The holder of a token with a role that covers this one.
    Role(Role),
}

/// Authorises the requests of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    realm: Realm,
    loopback: bool,
    tokens: Option<SharedTokens>,
}

/// Why a request is not authorised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthError {
    /// 400, 401 or 403.
    status: StatusCode,
    detail: &'static str,
}

/// Who makes a call, for the audit log.
#[derive(Clone, Debug)]
pub(crate) struct Actor {
    /// The holder of the token; `None` where the daemon has no tokens file.
    pub(crate) holder: Option<TokenHolder>,
    pub(crate) peer: IpAddr,
}

impl Actor {
    /// The name of the token's holder.
    pub(crate) fn name(&self) -> &str {
        self.holder.as_ref().map_or("anybody", |holder| &holder.name)
    }

    /// The role of the token. Without a tokens file everybody is an operator.
    pub(crate) fn role(&self) -> &'static str {
        self.holder.as_ref().map_or("operator", |holder| holder.role.name())
    }
}

impl Auth {
    /// `server::run` refuses an address beyond loopback without tokens, unless `--insecure` is given.
    #[must_use]
    pub(crate) fn new(realm: Realm, address: IpAddr, tokens: Option<SharedTokens>) -> Self {
        Self { realm, loopback: is_loopback(address), tokens }
    }

    pub(crate) const fn realm(&self) -> Realm {
        self.realm
    }

    /// A warning for the operator if this listener asks for no token.
    #[must_use]
    pub(crate) fn warning(&self) -> Option<&'static str> {
        match (self.realm, self.loopback, &self.tokens) {
            (_, _, Some(_)) | (Realm::Api, true, None) => None,
            (Realm::Admin, true, None) => {
                Some("without --tokens, every user of this machine is an operator on --admin")
            }
            (_, false, None) => {
                Some("without --tokens, everybody who reaches this listener may use it")
            }
        }
    }

    /// Authorises a request for a call, and returns the token's holder.
    pub(crate) fn authorize(
        &self,
        parts: &Parts,
        access: Access,
    ) -> Result<Option<TokenHolder>, AuthError> {
        if self.loopback && access != Access::Anywhere {
            check_host(parts)?;
            check_page(parts, self.realm)?;
        }
        let (Access::Role(role), Some(tokens)) = (access, &self.tokens) else { return Ok(None) };
        let holder = bearer(parts, &tokens.load())?;
        match holder.role {
            found if found.covers(role) => Ok(Some(holder)),
            Role::Viewer if self.realm == Realm::Admin => Err(READ_ONLY),
            _ => Err(WRONG_ROLE),
        }
    }
}

/// True if only this machine reaches the address.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

impl AuthError {
    /// The answer, as problem details.
    #[must_use]
    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = respond::problem(self.status, self.detail);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

const NO_HOST: AuthError =
    AuthError { status: StatusCode::BAD_REQUEST, detail: "expected exactly one Host" };
const FOREIGN_HOST: AuthError = AuthError {
    status: StatusCode::FORBIDDEN,
    detail: "this listener is on loopback and serves the Host localhost, 127.0.0.1 or [::1] only",
};
const FOREIGN_PAGE: AuthError = AuthError {
    status: StatusCode::FORBIDDEN,
    detail: "this listener is on loopback and serves no page from elsewhere",
};
const NO_TOKEN: AuthError = AuthError {
    status: StatusCode::UNAUTHORIZED,
    detail: "expected a token: Authorization: Bearer TOKEN",
};
const UNKNOWN_TOKEN: AuthError =
    AuthError { status: StatusCode::UNAUTHORIZED, detail: "this token is not known" };
const WRONG_ROLE: AuthError = AuthError {
    status: StatusCode::FORBIDDEN,
    detail: "the role of this token is not served here: the decision API serves client, the admin \
             API viewer, and both operator and superadmin",
};
const READ_ONLY: AuthError = AuthError {
    status: StatusCode::FORBIDDEN,
    detail: "a viewer may look and change nothing: this takes an operator or a superadmin",
};

/// A name that an attacker points at this machine is still the attacker's name.
fn check_host(parts: &Parts) -> Result<(), AuthError> {
    let mut headers = parts.headers.get_all(HOST).iter();
    let (header, second) = (headers.next(), headers.next());
    let target = parts.uri.authority().map(|authority| authority.as_str());
    // HTTP/1.0 has no Host, and no browser speaks HTTP/1.0.
    let missing = target.is_none() && header.is_none() && parts.version > Version::HTTP_10;
    if missing || second.is_some() || header.is_some_and(HeaderValue::is_empty) {
        return Err(NO_HOST);
    }
    let header_is_local = |header: &HeaderValue| header.to_str().is_ok_and(is_local);
    let local = target.is_none_or(is_local) && header.is_none_or(header_is_local);
    if local { Ok(()) } else { Err(FOREIGN_HOST) }
}

/// A page that names its origin must be from this machine. Images and links send no `Origin`, but
/// browsers mark them as cross-site. Following a link is harmless where a GET changes nothing,
/// which is so on the admin listener.
fn check_page(parts: &Parts, realm: Realm) -> Result<(), AuthError> {
    let local = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, authority)| is_local(authority))
    };
    const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
    let is = |name: &HeaderName, value: &str| {
        parts.headers.get(name).is_some_and(|found| found == value)
    };
    let follows_link =
        || realm == Realm::Admin && parts.method == Method::GET && is(&MODE, "navigate");
    let foreign = is(&SITE, "cross-site") && !follows_link();
    if foreign || !parts.headers.get_all(ORIGIN).iter().all(local) {
        return Err(FOREIGN_PAGE);
    }
    Ok(())
}

/// True if `host` or `host:port` is this machine, by a name or address that nobody else can claim.
fn is_local(authority: &str) -> bool {
    let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, rest) = bracketed
        .unwrap_or_else(|| authority.split_at(authority.find(':').unwrap_or(authority.len())));
    let port = rest.strip_prefix(':').unwrap_or(rest);
    let is_address = || host.parse::<IpAddr>().is_ok_and(is_loopback);
    let is_name = bracketed.is_none() && host.eq_ignore_ascii_case("localhost");
    // Nearly all callers send one of these two, which need no parsing.
    let is_here = host == "127.0.0.1" || is_name || is_address();
    is_here && port.bytes().all(|b| b.is_ascii_digit())
}

fn bearer(parts: &Parts, tokens: &Tokens) -> Result<TokenHolder, AuthError> {
    let mut headers = parts.headers.get_all(AUTHORIZATION).iter();
    let (Some(header), None) = (headers.next(), headers.next()) else { return Err(NO_TOKEN) };
    let holder = header.to_str().ok().and_then(|header| tokens.find_holder(header));
    holder.cloned().ok_or(UNKNOWN_TOKEN)
}

#[cfg(test)]
mod tests;
