//! The open files that the system allows, shared out: every connection is one of them.
//!
//! Nobody may take what another needs: neither a crowd at the gateway what the other listeners do,
//! nor its clients what the upstream does, lest requests be taken that cannot be passed on.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For whatever is no connection: listeners, files that are read, the log.
const OTHERS: usize = 64;

/// Takes as many open files as the system gives: the usual soft bound of 1024 is there for programs
/// that cannot count further.
pub(crate) fn raise() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where it cannot be raised, connections beyond it wait, which is told when it happens.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// How many there may be.
pub(crate) fn allowed() -> usize {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(allowed).unwrap_or(usize::MAX)
}

/// How many connections there should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// On each listener.
    pub(crate) each: usize,
    /// To the upstream; left out: as many as may be.
    pub(crate) upstream: Option<usize>,
    /// How many ends of a connection to the upstream are in this process: none without a gateway,
    /// both in the demo.
    pub(crate) upstream_ends: usize,
}

/// How many connections there may be of each kind. Together they fit, as long as one of each does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Of clients of the gateway.
    pub(crate) gateway: usize,
    /// Of the gateway to its upstream.
    pub(crate) upstream: usize,
    pub(crate) api: usize,
    pub(crate) admin: usize,
}

impl Shares {
    /// Shares out so many open files. A sixteenth is for the admin listener, and an eighth for the API,
    /// which has all without a gateway. Of the rest the gateway's clients get two thirds, unless they
    /// want less or the upstream's share is chosen, which leaves them a third at least.
    pub(crate) fn of(allowed: usize, wanted: Wanted) -> Self {
        let ends = wanted.upstream_ends;
        let admin = allowed / 16;
        let left = allowed.saturating_sub(OTHERS).saturating_sub(admin);
        let api = if ends > 0 { allowed / 8 } else { left };
        let left = left.saturating_sub(api);
        let upstream = match wanted.upstream {
            Some(upstream) => upstream.saturating_mul(ends).min(left - left / 3),
            None => left / 3,
        };
        let gateway = wanted.each.min(left - upstream).max(1);
        let upstream = left.saturating_sub(gateway).checked_div(ends).unwrap_or(0);
        Self {
            gateway,
            upstream: upstream.min(wanted.upstream.unwrap_or(upstream)).max(1),
            api: api.min(wanted.each).max(1),
            admin: admin.min(wanted.each).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULT: Wanted = Wanted { each: 25_000, upstream: None, upstream_ends: 1 };

    #[test]
    fn where_there_are_plenty_everybody_gets_what_is_wanted_and_the_upstream_the_rest() {
        let shares = Shares::of(1_048_576, DEFAULT);
        assert_eq!((shares.gateway, shares.api, shares.admin), (25_000, 25_000, 25_000));
        assert!(shares.upstream > 500_000, "{shares:?}");
        let chosen = Shares::of(1_048_576, Wanted { upstream: Some(10), ..DEFAULT });
        assert_eq!((chosen.gateway, chosen.upstream), (25_000, 10));
    }

    #[test]
    fn without_a_gateway_the_api_has_what_it_would_take() {
        let shares = Shares::of(4_096, Wanted { upstream_ends: 0, ..DEFAULT });
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
            let shares = Shares::of(allowed, Wanted { each, upstream, upstream_ends });
            let Shares { gateway, upstream, api, admin } = shares;
            let gateway = if upstream_ends > 0 { gateway + upstream * upstream_ends } else { 0 };
            prop_assert!(gateway + api + admin + OTHERS <= allowed, "{:?}", shares);
            prop_assert!(gateway.min(api).min(admin) > 0 || upstream_ends == 0, "{:?}", shares);
        }
    }
}
