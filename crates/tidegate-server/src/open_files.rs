//! Shares the open files that the system allows among the listeners: every connection is one open file.
//!
//! A crowd at the gateway must not take the connections of the other listeners. Clients of the gateway
//! must not take those to the upstream, or requests would be accepted that cannot be forwarded.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For open files that are no connections: listeners, files that are read, the log.
const OTHERS: usize = 64;

/// Raises the soft limit of open files to the hard limit: the usual soft limit of 1024 exists for programs
/// that use `select`.
pub(crate) fn raise() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where that fails, connections beyond the limit wait, and a warning says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The number of open files that the system allows.
pub(crate) fn allowed() -> usize {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(allowed).unwrap_or(usize::MAX)
}

/// The number of connections that the operator asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionDemand {
    /// On each listener.
    pub(crate) each: usize,
    /// To the upstream; `None` for as many as possible.
    pub(crate) upstream: Option<usize>,
    /// The number of ends of a connection to the upstream that are in this process: none without a
    /// gateway, both in the demo.
    pub(crate) upstream_ends: usize,
}

/// The most connections of each kind. Together they fit, as long as one of each kind fits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionShares {
    /// Of clients of the gateway.
    pub(crate) gateway: usize,
    /// Of the gateway to its upstream.
    pub(crate) upstream: usize,
    pub(crate) api: usize,
    pub(crate) admin: usize,
}

impl ConnectionShares {
    /// Shares out the allowed open files. The admin listener gets a sixteenth. The API gets an eighth, or
    /// all the rest without a gateway. Of what is left, two thirds are for the gateway's clients and a
    /// third is for the upstream. Clients get less if they ask for less, or if the operator chooses the
    /// upstream's share, which leaves clients a third at least.
    pub(crate) fn new(allowed: usize, demand: ConnectionDemand) -> Self {
        let ends = demand.upstream_ends;
        let admin = allowed / 16;
        let left = allowed.saturating_sub(OTHERS).saturating_sub(admin);
        let api = if ends > 0 { allowed / 8 } else { left };
        let left = left.saturating_sub(api);
        let upstream = match demand.upstream {
            Some(upstream) => upstream.saturating_mul(ends).min(left - left / 3),
            None => left / 3,
        };
        let gateway = demand.each.min(left - upstream).max(1);
        let upstream = left.saturating_sub(gateway).checked_div(ends).unwrap_or(0);
        Self {
            gateway,
            upstream: upstream.min(demand.upstream.unwrap_or(upstream)).max(1),
            api: api.min(demand.each).max(1),
            admin: admin.min(demand.each).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULT: ConnectionDemand =
        ConnectionDemand { each: 25_000, upstream: None, upstream_ends: 1 };

    #[test]
    fn where_there_are_plenty_everybody_gets_what_is_wanted_and_the_upstream_the_rest() {
        let shares = ConnectionShares::new(1_048_576, DEFAULT);
        assert_eq!((shares.gateway, shares.api, shares.admin), (25_000, 25_000, 25_000));
        assert!(shares.upstream > 500_000, "{shares:?}");
        let chosen =
            ConnectionShares::new(1_048_576, ConnectionDemand { upstream: Some(10), ..DEFAULT });
        assert_eq!((chosen.gateway, chosen.upstream), (25_000, 10));
    }

    #[test]
    fn without_a_gateway_the_api_has_what_it_would_take() {
        let shares = ConnectionShares::new(4_096, ConnectionDemand { upstream_ends: 0, ..DEFAULT });
        assert!(shares.api > 3_500, "{shares:?}");
    }

    proptest! {
        #[test]
        fn together_they_fit(
            allowed in 128usize..2_000_000,
            each in 1usize..100_000,
            upstream in prop::option::of(1usize..2_000_000),
            upstream_ends in 0usize..=2,
        ) {
            let shares = ConnectionShares::new(allowed, ConnectionDemand { each, upstream, upstream_ends });
            let ConnectionShares { gateway, upstream, api, admin } = shares;
            let gateway = if upstream_ends > 0 { gateway + upstream * upstream_ends } else { 0 };
            prop_assert!(gateway + api + admin + OTHERS <= allowed, "{:?}", shares);
            prop_assert!(gateway.min(api).min(admin) > 0 || upstream_ends == 0, "{:?}", shares);
        }
    }
}
