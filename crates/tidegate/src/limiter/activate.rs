//! Putting policies in force, and finding the one that a request is for.

use std::sync::{Arc, OnceLock};

use super::error::BuildError;
use crate::active_policy::{ActivePolicies, ActivePolicy, Windows};
use crate::fallback::Fallback;
use crate::key::HashKey;
use crate::plan::Outline;
use crate::policy::model::{Algorithm, Counts};
use crate::policy::{Limit, Policy};
use crate::protection::guard::Guard;
use crate::request::{Request, RequestError};
use crate::store::Store;

/// The policy that a request is decided under: of those that it was read under, or of these.
#[inline]
pub(super) fn select_for<'p>(
    policies: &'p [ActivePolicy],
    request: &'p Request<'_>,
) -> Result<&'p ActivePolicy, RequestError> {
    select(request.policies.map_or(policies, ActivePolicies::policies), request)
}

/// The policy that a request names, or the first.
#[inline]
pub(super) fn select<'p>(
    policies: &'p [ActivePolicy],
    request: &Request<'_>,
) -> Result<&'p ActivePolicy, RequestError> {
    let selected = match request.policy.as_deref() {
        None => policies.first(),
        Some(name) => policies.iter().find(|active| active.policy.name == name),
    };
    selected.ok_or_else(|| unknown(request))
}

#[cold]
fn unknown(request: &Request<'_>) -> RequestError {
    let name = request.policy.as_deref().unwrap_or_default();
    RequestError::new("policy", format!("found `{name}`, expected the name of a policy in force"))
}

pub(super) fn load(policies: Vec<Arc<Policy>>, secret: &HashKey) -> Vec<ActivePolicy> {
    let load = |policy: Arc<Policy>| {
        let limits = policy.limits.iter().enumerate();
        let outlines =
            limits.map(|(index, limit)| Outline::new(secret, &policy, index, limit)).collect();
        let leased = policy.limits.iter().any(Limit::is_leased);
        let changes = policy.limits.iter().any(changes);
        let guard = Guard::new(secret, &policy);
        let used_once = policy.challenge().map(|_| secret.once_family());
        let (tables, windows) = (OnceLock::new(), Windows::default());
        ActivePolicy { policy, outlines, tables, leased, changes, guard, used_once, windows }
    };
    policies.into_iter().map(load).collect()
}

/// Whether what is charged to a limit may be given back or held.
fn changes(limit: &Limit) -> bool {
    limit.counts != Counts::All || limit.algorithm == Algorithm::Concurrency
}

pub(super) fn announce<S: Store>(policies: &[ActivePolicy], store: &S, fallback: &Fallback) {
    let families = |active: &ActivePolicy| -> Vec<u64> {
        active.outlines.iter().map(|one| one.keys.family).chain(active.guard.families()).collect()
    };
    let mut families: Vec<u64> = policies.iter().flat_map(families).collect();
    families.extend(policies.iter().find_map(|active| active.used_once));
    store.announce(&families);
    for active in policies {
        let limits: Vec<u64> = active.outlines.iter().map(|one| one.keys.family).collect();
        active.tables.get_or_init(|| store.tables(&limits));
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
