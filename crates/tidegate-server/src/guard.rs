//! Who may call a listener that is not for everybody.
//!
//! On loopback a browser on the same machine is the danger: a page from anywhere can make it call
//! here. So what it says of the page (`Host`, `Origin`, `Sec-Fetch-Site`) must be local too. With
//! a file of tokens, each caller needs one; without, only loopback is served.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version};
use http_body_util::Full;

use crate::tokens::{Role, Tokens};

/// Tokens that can be replaced while they are in use.
pub(crate) type SharedTokens = Arc<ArcSwap<Tokens>>;

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// Decisions, for applications.
    Api,
    /// The admin API, the dashboard, metrics.
    Admin,
}

/// Stands before one listener.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    surface: Surface,
    loopback: bool,
    tokens: Option<SharedTokens>,
    /// Who calls without a token, where none is needed.
    unnamed: Caller,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The token's name; `loopback` or `anybody` where none is needed.
    pub name: Arc<str>,
    /// What the caller may do.
    pub role: Role,
}

/// A caller that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// 400, 401 or 403.
    pub status: StatusCode,
    /// Why, for whoever called.
    pub detail: &'static str,
}

impl Guard {
    /// A guard for a listener on this address. That it needs tokens beyond loopback unless
    /// `--insecure` was said is checked before anything listens.
    #[must_use]
    pub(crate) fn new(surface: Surface, address: IpAddr, tokens: Option<SharedTokens>) -> Self {
        let loopback = address.to_canonical().is_loopback();
        let role = match surface {
            Surface::Admin if tokens.is_none() => Role::Operator,
            Surface::Admin | Surface::Api => Role::Client,
        };
        let name = if loopback { "loopback" } else { "anybody" };
        Self { surface, loopback, tokens, unnamed: Caller { name: name.into(), role } }
    }

    /// What the operator should know of a listener that asks for no token.
    #[must_use]
    pub(crate) fn warning(&self) -> Option<&'static str> {
        match (self.surface, self.loopback, &self.tokens) {
            (_, _, Some(_)) | (Surface::Api, true, None) => None,
            (Surface::Admin, true, None) => {
                Some("without --tokens, every user of this machine is an operator on --admin")
            }
            (_, false, None) => {
                Some("without --tokens, everybody who reaches this listener may use it")
            }
        }
    }

    /// Admits a request or says why not. Health is everybody's to ask.
    ///
    /// # Errors
    /// What the caller is to be told.
    pub(crate) fn admit(&self, parts: &Parts) -> Result<Caller, Refused> {
        if is_health(parts) {
            return Ok(self.unnamed.clone());
        }
        if self.loopback {
            check_host(parts)?;
            check_page(parts, self.surface)?;
        }
        let Some(tokens) = &self.tokens else { return Ok(self.unnamed.clone()) };
        let caller = bearer(parts, &tokens.load())?;
        if self.surface.serves(caller.role) { Ok(caller) } else { Err(WRONG_ROLE) }
    }
}

impl Surface {
    const fn serves(self, role: Role) -> bool {
        match (self, role) {
            (_, Role::Operator | Role::Superadmin) => true,
            (Self::Api, Role::Client) | (Self::Admin, Role::Viewer) => true,
            (Self::Api, Role::Viewer) | (Self::Admin, Role::Client) => false,
        }
    }
}

impl Refused {
    /// The answer, as problem details.
    #[must_use]
    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let problem = serde_json::json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = Response::new(Full::new(Bytes::from(problem.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

const NO_HOST: Refused =
    Refused { status: StatusCode::BAD_REQUEST, detail: "expected exactly one Host" };
const FOREIGN_HOST: Refused = Refused {
    status: StatusCode::FORBIDDEN,
    detail: "this listener is on loopback and serves the Host localhost, 127.0.0.1 or [::1] only",
};
const FOREIGN_PAGE: Refused = Refused {
    status: StatusCode::FORBIDDEN,
    detail: "this listener is on loopback and serves no page from elsewhere",
};
const NO_TOKEN: Refused = Refused {
    status: StatusCode::UNAUTHORIZED,
    detail: "expected a token: Authorization: Bearer TOKEN",
};
const UNKNOWN_TOKEN: Refused =
    Refused { status: StatusCode::UNAUTHORIZED, detail: "this token is not known" };
const WRONG_ROLE: Refused = Refused {
    status: StatusCode::FORBIDDEN,
    detail: "the role of this token is not served here: the decision API serves client, the admin \
             API viewer, and both operator and superadmin",
};

fn is_health(parts: &Parts) -> bool {
    let asks = parts.method == Method::GET || parts.method == Method::HEAD;
    asks && matches!(parts.uri.path(), "/health" | "/ready")
}

/// A name that an attacker points at this machine is still the attacker's name.
fn check_host(parts: &Parts) -> Result<(), Refused> {
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
fn check_page(parts: &Parts, surface: Surface) -> Result<(), Refused> {
    let local = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, authority)| is_local(authority))
    };
    let is = |name: &str, value: &str| parts.headers.get(name).is_some_and(|found| found == value);
    let looks = surface == Surface::Admin
        && parts.method == Method::GET
        && is("sec-fetch-mode", "navigate");
    let foreign = is("sec-fetch-site", "cross-site") && !looks;
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
    let loopback = host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    port.bytes().all(|b| b.is_ascii_digit())
        && (loopback || (bracketed.is_none() && host.eq_ignore_ascii_case("localhost")))
}

fn bearer(parts: &Parts, tokens: &Tokens) -> Result<Caller, Refused> {
    let mut headers = parts.headers.get_all(AUTHORIZATION).iter();
    let (Some(header), None) = (headers.next(), headers.next()) else { return Err(NO_TOKEN) };
    let owner = header.to_str().ok().and_then(|header| tokens.owner_of(header));
    owner.map(|(name, role)| Caller { name, role }).ok_or(UNKNOWN_TOKEN)
}

#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
