//! The request's target and host: either they have one meaning, or the request is refused.

use std::borrow::Cow;

use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, StatusCode, Uri, Version, header};
use tidegate::engine::operation::forwarded_path;

use super::Upstream;
use super::inbound::Rejection;

/// Checks target and host against each other, and leaves the target in origin form.
///
/// The host is forwarded as the client sent it, which is what a service behind a limiter expects.
pub(super) fn check(parts: &mut Parts, upstream: &Upstream) -> Result<(), Rejection> {
    if parts.method == Method::CONNECT {
        let detail = "this is no forward proxy";
        return Err(Rejection { status: StatusCode::METHOD_NOT_ALLOWED, detail });
    }
    check_host(parts, upstream)?;
    if parts.uri.authority().is_some() {
        let path = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    match parts.uri.path() {
        "*" if parts.method == Method::OPTIONS => Ok(()),
        path if path.starts_with('/') => Ok(()),
        _ => Err(Rejection::bad("the target must be a path")),
    }
}

/// True if a request is for a path, however its dots and slashes are written: it would be forwarded without
/// them.
pub(super) fn is_path(head: &Parts, path: &str) -> bool {
    let (asked, last_slash) = (head.uri.path(), path.rfind('/').unwrap_or_default());
    // Every way to write the path ends as it does; other requests need no closer look.
    asked.ends_with(&path[last_slash..]) && forwarded_path(asked).is_ok_and(|asked| asked == path)
}

/// The target without its dot segments, if it has any.
pub(super) fn without_dot_segments(uri: &Uri) -> Result<Option<Uri>, Rejection> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    match forwarded_path(path).map_err(|_| Rejection::bad("the path cannot be normalised"))? {
        Cow::Borrowed(_) => Ok(None),
        Cow::Owned(path) => Uri::from_maybe_shared(path)
            .map(Some)
            .map_err(|_| Rejection::bad("the path cannot be forwarded safely")),
    }
}

fn check_host(parts: &mut Parts, upstream: &Upstream) -> Result<(), Rejection> {
    let mut lines = parts.headers.get_all(header::HOST).iter();
    let (host, further) = (lines.next(), lines.next());
    if further.is_some() {
        return Err(Rejection::bad("there is more than one Host"));
    }
    let is_ambiguous = |byte: &u8| b"@/\\?#, \t".contains(byte);
    if host.is_some_and(|host| host.as_bytes().iter().any(is_ambiguous)) {
        return Err(Rejection::bad("the Host is not a host"));
    }
    let Some(authority) = parts.uri.authority() else {
        if host.is_some() {
            return Ok(());
        }
        if parts.version > Version::HTTP_10 {
            return Err(Rejection::bad("there is no Host"));
        }
        parts.headers.insert(header::HOST, upstream.host_header());
        return Ok(());
    };
    if parts.uri.scheme().is_none() || authority.as_str().contains('@') {
        return Err(Rejection::bad("the target must be a path"));
    }
    match host {
        Some(host) if is_same(host, authority) => Ok(()),
        Some(_) => Err(Rejection::bad("the target and the Host disagree")),
        None => {
            let host = HeaderValue::from_str(authority.as_str());
            let host = host.map_err(|_| Rejection::bad("the authority is not a host"))?;
            parts.headers.insert(header::HOST, host);
            Ok(())
        }
    }
}

fn is_same(host: &HeaderValue, authority: &Authority) -> bool {
    host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes())
}
