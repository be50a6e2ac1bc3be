//! Who may call a listener that is not for everybody.
//!
//! On loopback a browser on the same machine is the danger: a page from anywhere can make it call
//! here. So what it says of the page (`Host`, `Origin`, `Sec-Fetch-Site`) must be local too. With
//! a file of tokens, each caller needs one; without, only loopback is served.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, Version};

use crate::body::Body;
use crate::respond;
use crate::tokens::{Holder, Role, Tokens};

/// Tokens that can be replaced while they are in use.
pub(crate) type SharedTokens = Arc<ArcSwap<Tokens>>;

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarded {
    /// Decisions, for applications.
    Api,
    /// The admin API, the dashboard, metrics.
    Admin,
}

/// Stands before one listener.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    guarded: Guarded,
    loopback: bool,
    tokens: Option<SharedTokens>,
}

/// A caller that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotAdmitted {
    /// 400, 401 or 403.
    pub status: StatusCode,
    /// Why, for whoever called.
    pub detail: &'static str,
}

impl Guard {
    /// A guard for a listener on this address. That it needs tokens beyond loopback unless
    /// `--insecure` was said is checked before anything listens.
    #[must_use]
    pub(crate) fn new(guarded: Guarded, address: IpAddr, tokens: Option<SharedTokens>) -> Self {
        Self { guarded, loopback: is_loopback(address), tokens }
    }

    /// What the operator should know of a listener that asks for no token.
    #[must_use]
    pub(crate) fn warning(&self) -> Option<&'static str> {
        match (self.guarded, self.loopback, &self.tokens) {
            (_, _, Some(_)) | (Guarded::Api, true, None) => None,
            (Guarded::Admin, true, None) => {
                Some("without --tokens, every user of this machine is an operator on --admin")
            }
            (_, false, None) => {
                Some("without --tokens, everybody who reaches this listener may use it")
            }
        }
    }

    /// Admits a request, and says whose token it has, or why not. Health is everybody's to ask.
    ///
    /// # Errors
    /// What the caller is to be told.
    pub(crate) fn admit(&self, parts: &Parts) -> Result<Option<Holder>, NotAdmitted> {
        if is_health(parts) {
            return Ok(None);
        }
        if self.loopback {
            check_host(parts)?;
            check_page(parts, self.guarded)?;
        }
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let holder = bearer(parts, &tokens.load())?;
        let role = holder.role;
        if !self.guarded.serves(role) {
            return Err(WRONG_ROLE);
        }
        let looks = matches!(parts.method, Method::GET | Method::HEAD);
        let may_change = self.guarded != Guarded::Admin || role != Role::Viewer;
        if looks || may_change { Ok(Some(holder)) } else { Err(ONLY_LOOKS) }
    }
}

/// Whether only this machine reaches an address.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

impl Guarded {
    const fn serves(self, role: Role) -> bool {
        match (self, role) {
            (_, Role::Operator | Role::Superadmin) => true,
            (Self::Api, Role::Client) | (Self::Admin, Role::Viewer) => true,
            (Self::Api, Role::Viewer) | (Self::Admin, Role::Client) => false,
        }
    }
}

impl NotAdmitted {
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

const NO_HOST: NotAdmitted =
    NotAdmitted { status: StatusCode::BAD_REQUEST, detail: "expected exactly one Host" };
const FOREIGN_HOST: NotAdmitted = NotAdmitted {
    status: StatusCode::FORBIDDEN,
    detail: "this listener is on loopback and serves the Host localhost, 127.0.0.1 or [::1] only",
};
const FOREIGN_PAGE: NotAdmitted = NotAdmitted {
    status: StatusCode::FORBIDDEN,
    detail: "this listener is on loopback and serves no page from elsewhere",
};
const NO_TOKEN: NotAdmitted = NotAdmitted {
    status: StatusCode::UNAUTHORIZED,
    detail: "expected a token: Authorization: Bearer TOKEN",
};
const UNKNOWN_TOKEN: NotAdmitted =
    NotAdmitted { status: StatusCode::UNAUTHORIZED, detail: "this token is not known" };
const WRONG_ROLE: NotAdmitted = NotAdmitted {
    status: StatusCode::FORBIDDEN,
    detail: "the role of this token is not served here: the decision API serves client, the admin \
             API viewer, and both operator and superadmin",
};

const ONLY_LOOKS: NotAdmitted = NotAdmitted {
    status: StatusCode::FORBIDDEN,
    detail: "a viewer may look and change nothing: this takes an operator or a superadmin",
};

fn is_health(parts: &Parts) -> bool {
    let asks = parts.method == Method::GET || parts.method == Method::HEAD;
    asks && matches!(parts.uri.path(), "/health" | "/ready")
}

/// A name that an attacker points at this machine is still the attacker's name.
fn check_host(parts: &Parts) -> Result<(), NotAdmitted> {
    let mut headers = parts.headers.get_all(HOST).iter();
    let (header, second) = (headers.next(), headers.next());
    let target = parts.uri.authority().map(|authority| authority.as_str());
    // HTTP/1.0 knows no Host, and no browser speaks it.
    let missing = target.is_none() && header.is_none() && parts.version > Version::HTTP_10;
    if missing || second.is_some() || header.is_some_and(HeaderValue::is_empty) {
        return Err(NO_HOST);
    }
    let header_is_local = |header: &HeaderValue| header.to_str().is_ok_and(is_local);
    let local = target.is_none_or(is_local) && header.is_none_or(header_is_local);
    if local { Ok(()) } else { Err(FOREIGN_HOST) }
}

/// A page that says where it is from must be from this machine. Images and links say no `Origin`,
/// but browsers tell that they come from another site; following a link to look at something is
/// harmless where a GET changes nothing, which is so on the admin listener alone.
fn check_page(parts: &Parts, guarded: Guarded) -> Result<(), NotAdmitted> {
    let local = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, authority)| is_local(authority))
    };
    const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
    let is = |name: &HeaderName, value: &str| {
        parts.headers.get(name).is_some_and(|found| found == value)
    };
    let looks =
        || guarded == Guarded::Admin && parts.method == Method::GET && is(&MODE, "navigate");
    let foreign = is(&SITE, "cross-site") && !looks();
    if foreign || !parts.headers.get_all(ORIGIN).iter().all(local) {
        return Err(FOREIGN_PAGE);
    }
    Ok(())
}

/// Whether `host` or `host:port` is this machine, by a name or address that nobody else can give.
fn is_local(authority: &str) -> bool {
    let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, rest) = bracketed
        .unwrap_or_else(|| authority.split_at(authority.find(':').unwrap_or(authority.len())));
    let port = rest.strip_prefix(':').unwrap_or(rest);
    let is_address = || host.parse::<IpAddr>().is_ok_and(is_loopback);
    let is_name = bracketed.is_none() && host.eq_ignore_ascii_case("localhost");
    // Nearly all callers say one of two, which take no reading.
    let is_here = host == "127.0.0.1" || is_name || is_address();
    is_here && port.bytes().all(|b| b.is_ascii_digit())
}

fn bearer(parts: &Parts, tokens: &Tokens) -> Result<Holder, NotAdmitted> {
    let mut headers = parts.headers.get_all(AUTHORIZATION).iter();
    let (Some(header), None) = (headers.next(), headers.next()) else { return Err(NO_TOKEN) };
    let holder = header.to_str().ok().and_then(|header| tokens.holder_of(header));
    holder.cloned().ok_or(UNKNOWN_TOKEN)
}

#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
