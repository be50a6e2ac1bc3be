//! Headers: which ones end at this hop, and which ones only a proxy may write.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use tidegate::Policy;
use tidegate::engine::identity::canonical;
use tidegate::engine::operation::METHOD_OVERRIDES;

use super::inbound::Rejection;
use crate::listen::Peer;
use crate::telemetry::RequestId;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Headers that concern only one connection. The gateway answers `Expect` itself.
static HOP: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("http2-settings"),
    header::EXPECT,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers that a `Connection` line cannot remove: proxies write them, or they decide what the request is.
static PROTECTED: [HeaderName; 13] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::AUTHORIZATION,
    header::COOKIE,
    header::FORWARDED,
    header::ORIGIN,
    header::SET_COOKIE,
    header::WWW_AUTHENTICATE,
    header::CACHE_CONTROL,
    header::VARY,
    REQUEST_ID,
];

/// Prepares the headers of a request: the policy and the upstream see the same.
pub(super) fn prepare(headers: &mut HeaderMap, policy: Option<&Policy>, peer: Peer) {
    let claims = || policy.into_iter().flat_map(Policy::claim_headers);
    let address = canonical(peer.address.ip());
    let trusted = policy.is_some_and(|policy| policy.trusts(address));
    remove_hop_headers(headers, |name| {
        claims().any(|claim| name.as_str().eq_ignore_ascii_case(claim))
    });
    drop_lookalikes(headers, policy);
    if !policy.is_some_and(Policy::follows_method_override) {
        remove_where(headers, overrides_method);
    }
    join_cookies(headers);
    if !trusted {
        claims().for_each(|claim| drop(headers.remove(claim)));
        remove_where(headers, is_origin);
    }
}

/// True for a header in which proxies write where a request came from, or which target it had there.
fn is_origin(name: &HeaderName) -> bool {
    let names = ["forwarded", "x-real-ip", "x-original-url", "x-rewrite-url"];
    let by_name = || names.contains(&name.as_str());
    let is_forwarded = |rest: &str| rest.is_empty() || rest.starts_with('-');
    name.as_str().strip_prefix("x-forwarded").is_some_and(is_forwarded) || by_name()
}

/// True for a header that names another method, with dashes or underscores.
fn overrides_method(name: &HeaderName) -> bool {
    METHOD_OVERRIDES.iter().any(|header| name.as_str().bytes().map(fold_byte).eq(header.bytes()))
}

/// Writes the method that a header overrides by into all headers that services read it from: the service
/// reads one of them, and it must read the method that was counted.
pub(super) fn spread_method_override(headers: &mut HeaderMap) {
    let named = METHOD_OVERRIDES.iter().find_map(|name| headers.get(*name));
    let named = named.map(|named| HeaderValue::from_bytes(&named.as_bytes().to_ascii_uppercase()));
    if let Some(Ok(named)) = named {
        for name in METHOD_OVERRIDES {
            headers.insert(HeaderName::from_static(name), named.clone());
        }
    }
}

/// Adds the headers of this hop: where the request came from, and its id.
pub(super) fn add_hop(headers: &mut HeaderMap, peer: Peer, request_id: &RequestId) {
    append_peer(headers, &canonical(peer.address.ip()).to_string());
    if !headers.contains_key(FORWARDED_PROTO) {
        let proto = if peer.is_tls { "https" } else { "http" };
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(proto));
    }
    if !headers.contains_key(FORWARDED_HOST)
        && let Some(host) = headers.get(header::HOST).cloned()
    {
        headers.insert(FORWARDED_HOST, host);
    }
    headers.insert(REQUEST_ID, request_id.to_header());
}

/// Refuses a request in which a header that the policy reads comes twice: the upstream could believe the
/// other line.
pub(super) fn check_facts(headers: &HeaderMap, policy: Option<&Policy>) -> Result<(), Rejection> {
    let Some(policy) = policy.filter(|_| headers.len() > headers.keys_len()) else {
        return Ok(());
    };
    let is_twice = |fact: &str| headers.get_all(fact).iter().nth(1).is_some();
    match policy.fact_headers().any(is_twice) {
        true => Err(Rejection::bad("a header that the policy reads comes twice")),
        false => Ok(()),
    }
}

/// Removes from an answer what concerns only the connection to the upstream.
pub(super) fn clean_answer(headers: &mut HeaderMap) {
    remove_hop_headers(headers, |_| false);
}

/// Removes the headers that end at this hop. `is_kept` names further headers that a `Connection` line
/// cannot remove.
fn remove_hop_headers(headers: &mut HeaderMap, is_kept: impl Fn(&HeaderName) -> bool) {
    if headers.contains_key(header::CONNECTION) {
        let lines: Vec<HeaderValue> = headers.get_all(header::CONNECTION).iter().cloned().collect();
        let tokens = lines.iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        for token in tokens {
            let Ok(name) = HeaderName::from_bytes(token.trim_ascii()) else { continue };
            if !is_origin(&name) && !PROTECTED.contains(&name) && !is_kept(&name) {
                headers.remove(name);
            }
        }
        headers.remove(header::CONNECTION);
    }
    let is_for_proxy = |name: &str| name == "proxy" || name.starts_with("proxy-");
    remove_where(headers, |name| HOP.contains(name) || is_for_proxy(name.as_str()));
}

fn remove_where(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    while let Some(name) = headers.keys().find(|name| is_removed(name)).cloned() {
        headers.remove(name);
    }
}

/// Removes `X_User_Id` where the policy reads `X-User-Id`, and the other way round. A service that turns
/// headers into variables cannot tell the two apart, so that a client could write what only proxies may.
fn drop_lookalikes(headers: &mut HeaderMap, policy: Option<&Policy>) {
    let facts = || policy.into_iter().flat_map(Policy::fact_headers);
    let underscored = facts().any(|fact| fact.contains('_'));
    let is_lookalike = |name: &HeaderName| {
        let name = name.as_str();
        let has_twins = underscored || name.contains('_');
        has_twins && (looks_forwarded(name) || is_like_another(name, facts()))
    };
    remove_where(headers, is_lookalike);
}

/// True for a name that only proxies write, but for its underscores.
fn looks_forwarded(name: &str) -> bool {
    let folded = || name.bytes().map(fold_byte);
    let looks_so = folded().take(12).eq("x-forwarded-".bytes()) || folded().eq("x-real-ip".bytes());
    looks_so && name.contains('_')
}

/// True for a name that differs from a fact's only in dashes and underscores, and is no fact itself.
fn is_like_another<'f>(name: &str, facts: impl Iterator<Item = &'f str>) -> bool {
    let mut is_like = false;
    for fact in facts {
        if name.eq_ignore_ascii_case(fact) {
            return false;
        }
        is_like |=
            name.len() == fact.len() && name.bytes().map(fold_byte).eq(fact.bytes().map(fold_byte));
    }
    is_like
}

/// A byte of a header's name, as services write it in the name of a variable.
fn fold_byte(byte: u8) -> u8 {
    if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
}

/// Joins the cookies that HTTP/2 splits: HTTP/1.1 has one line for them.
fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    for line in std::iter::once(second).chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    // Made of header values, so it is one.
    if let Ok(joined) = HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Appends the peer to `X-Forwarded-For`.
fn append_peer(headers: &mut HeaderMap, peer: &str) {
    let mut hops = Vec::new();
    for line in headers.get_all(FORWARDED_FOR) {
        hops.extend_from_slice(line.as_bytes());
        hops.extend_from_slice(b", ");
    }
    hops.extend_from_slice(peer.as_bytes());
    // Made of parts of header values and an address, so it is one.
    if let Ok(hops) = HeaderValue::from_maybe_shared(bytes::Bytes::from(hops)) {
        headers.insert(FORWARDED_FOR, hops);
    }
}
