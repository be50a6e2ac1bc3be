//! Address, user and tier of a request, as far as the policy believes it.

use std::net::IpAddr;

use super::{canonical, client_address};
use crate::policy::model::{IdentitySource, Internal, Policy, TierId};
use crate::request::Request;

/// The sender of a request.
#[derive(Debug)]
pub(crate) struct Identity<'r> {
    pub(crate) address: Option<IpAddr>,
    pub(crate) user: Option<&'r str>,
    pub(crate) tier: TierId,
    /// The tier that the request states, known or not.
    pub(crate) stated_tier: Option<&'r str>,
    pub(crate) internal: bool,
    /// True if headers may name the client.
    pub(crate) headers_believed: bool,
}

/// Identifies the sender of a request. A caller without a socket speaks for the application and is
/// believed; behind a socket, headers count only if the peer is a trusted proxy. Claims are verified,
/// and count from anyone.
// Inlined: a returned address would be read back before all of it is written.
#[inline(always)]
pub(crate) fn identify<'r>(policy: &Policy, request: &'r Request<'r>) -> Identity<'r> {
    let rules = &policy.identity;
    let headers_believed = request.peer.is_none_or(|peer| rules.trusted_proxies.contains(peer));
    let sourced = |source: &Option<IdentitySource>| {
        let value = match source.as_ref()? {
            IdentitySource::Header(_) if !headers_believed => None,
            IdentitySource::Header(name) => request.header_value(name).map(str::trim),
            IdentitySource::Jwt(claim) => request.claims.as_ref()?.text(claim),
        };
        value.filter(|value| !value.is_empty())
    };
    let address = address(policy, request);
    let said_user = request.user.as_deref().filter(|user| !user.is_empty());
    let user = said_user.or_else(|| sourced(&rules.user));
    let stated_tier = request.tier.as_deref().or_else(|| sourced(&rules.tier));
    let tier = tier(policy, stated_tier, user.is_some());
    let internal = request.internal
        || match &rules.internal {
            Internal::Never => false,
            Internal::Cidrs(networks) => address.is_some_and(|ip| networks.contains(ip)),
            Internal::Header { name, secret } => {
                headers_believed
                    && request.header_value(name).is_some_and(|value| same_secret(value, secret))
            }
        };
    Identity { address, user, tier, stated_tier, internal, headers_believed }
}

fn address(policy: &Policy, request: &Request<'_>) -> Option<IpAddr> {
    let rules = &policy.identity;
    if let Some(ip) = request.ip {
        return Some(canonical(ip));
    }
    let lines = request.header_lines(rules.forwarded.header_name());
    request.peer.map(|peer| client_address(peer, rules.forwarded, lines, &rules.trusted_proxies))
}

/// A stated tier that the policy has is believed, but no user is in the anonymous tier.
fn tier(policy: &Policy, said: Option<&str>, authenticated: bool) -> TierId {
    let rules = &policy.identity;
    let otherwise = if authenticated { rules.default_tier } else { rules.anonymous_tier };
    let said = said.and_then(|name| policy.tiers.id(name));
    said.filter(|tier| !authenticated || *tier != rules.anonymous_tier).unwrap_or(otherwise)
}

/// Compares every byte, so that the time does not reveal how many were right.
fn same_secret(found: &str, secret: &str) -> bool {
    let differences =
        found.bytes().zip(secret.bytes()).fold(0, |differences, (a, b)| differences | (a ^ b));
    found.len() == secret.len() && differences == 0
}
