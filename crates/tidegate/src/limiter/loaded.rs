//! Putting policies in force, and finding the one that a request is for.

use std::sync::{Arc, OnceLock};

use super::error::BuildError;
use crate::fallback::Fallback;
use crate::guard::Guard;
use crate::in_force::{InForce, Loaded, Windows};
use crate::key::HashKey;
use crate::plan::Outline;
use crate::policy::model::{Algorithm, Counts};
use crate::policy::{Limit, Policy};
use crate::request::{Request, RequestError};
use crate::store::Store;

/// The policy that a request is decided under: of those that it was read under, or of these.
#[inline]
pub(super) fn select_for<'p>(
    policies: &'p [Loaded],
    request: &'p Request<'_>,
) -> Result<&'p Loaded, RequestError> {
    select(request.in_force.map_or(policies, InForce::policies), request)
}

/// The policy that a request names, or the first.
#[inline]
pub(super) fn select<'p>(
    policies: &'p [Loaded],
    request: &Request<'_>,
) -> Result<&'p Loaded, RequestError> {
    let selected = match request.policy.as_deref() {
        None => policies.first(),
        Some(name) => policies.iter().find(|loaded| loaded.policy.name == name),
    };
    selected.ok_or_else(|| unknown(request))
}

#[cold]
fn unknown(request: &Request<'_>) -> RequestError {
    let name = request.policy.as_deref().unwrap_or_default();
    RequestError::new("policy", format!("found `{name}`, expected the name of a policy in force"))
}

pub(super) fn load(policies: Vec<Arc<Policy>>, secret: &HashKey) -> Vec<Loaded> {
    let load = |policy: Arc<Policy>| {
        let limits = policy.limits.iter().enumerate();
        let outlines =
            limits.map(|(index, limit)| Outline::new(secret, &policy, index, limit)).collect();
        let leased = policy.limits.iter().any(Limit::is_leased);
        let changes = policy.limits.iter().any(changes);
        let guard = Guard::new(secret, &policy);
        let used_once = policy.challenge().map(|_| secret.once_family());
        let (tables, windows) = (OnceLock::new(), Windows::default());
        Loaded { policy, outlines, tables, leased, changes, guard, used_once, windows }
    };
    policies.into_iter().map(load).collect()
}

/// Whether what is charged to a limit may be given back or held.
fn changes(limit: &Limit) -> bool {
    limit.counts != Counts::All || limit.algorithm == Algorithm::Concurrency
}

pub(super) fn announce<S: Store>(policies: &[Loaded], store: &S, fallback: &Fallback) {
    let families = |loaded: &Loaded| -> Vec<u64> {
        loaded.outlines.iter().map(|one| one.keys.family).chain(loaded.guard.families()).collect()
    };
    let mut families: Vec<u64> = policies.iter().flat_map(families).collect();
    families.extend(policies.iter().find_map(|loaded| loaded.used_once));
    store.announce(&families);
    for loaded in policies {
        let limits: Vec<u64> = loaded.outlines.iter().map(|one| one.keys.family).collect();
        loaded.tables.get_or_init(|| store.tables(&limits));
    }
    fallback.announce(&families);
}

pub(super) fn check_policies(policies: &[Arc<Policy>]) -> Result<(), BuildError> {
    if policies.is_empty() {
        return Err(BuildError::NoPolicy);
    }
    for (index, policy) in policies.iter().enumerate() {
        if policies[..index].iter().any(|earlier| earlier.name == policy.name) {
            return Err(BuildError::SameName(policy.name.clone()));
        }
    }
    Ok(())
}
