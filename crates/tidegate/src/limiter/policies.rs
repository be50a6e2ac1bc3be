//! Putting policies in force, and finding the one that a request is for.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::error::BuildError;
use super::{Inner, Limiter};
use crate::active_policy::{ActivePolicies, ActivePolicy};
use crate::fallback::Fallback;
use crate::key::HashKey;
use crate::policy::Policy;
use crate::request::{Request, RequestError};
use crate::store::Store;

impl<S: Store> Limiter<S> {
    /// Puts other policies in force. Counters of limits that keep their name, algorithm and `by`
    /// stay as they are.
    ///
    /// # Errors
    /// There is no policy, or two have one name.
    pub fn replace_policies(&self, policies: Vec<Arc<Policy>>) -> Result<(), BuildError> {
        check_policies(&policies)?;
        // Two calls at once would announce one set of limits and put the other in force.
        let _replacing = self.inner.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        self.inner.activate(policies);
        Ok(())
    }

    /// Hashes keys with another secret from now on, such as the one that a shared store keeps. Every
    /// key changes with the secret, so that all counts start afresh.
    pub fn set_hash_key(&self, secret: HashKey) {
        let inner = &*self.inner;
        let _replacing = inner.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        inner.marks.rekey(secret.clone(), self.now());
        inner.secret.store(Arc::new(secret));
        inner.activate(self.policies());
        inner.marks.drop_old_ids(self.now());
        // No other node knows the keys that the debts are counted under.
        self.forgive();
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Vec<Arc<Policy>> {
        self.inner.policies.load().iter().map(|active| Arc::clone(&active.policy)).collect()
    }

    /// The policy that decides requests which name none.
    #[must_use]
    pub fn first_policy(&self) -> Option<Arc<Policy>> {
        self.inner.policies.load().first().map(|active| Arc::clone(&active.policy))
    }

    /// The policies in force, to read and decide a request by the same ones.
    #[must_use]
    pub fn active_policies(&self) -> ActivePolicies {
        ActivePolicies::new(self.inner.policies.load_full())
    }
}

impl<S: Store> Inner<S> {
    /// The policy that a request names, or the first; of those that the request was read under, if it
    /// was read under some.
    #[inline]
    pub(super) fn select(&self, request: &Request<'_>) -> Result<Arc<ActivePolicy>, RequestError> {
        match request.policies {
            Some(policies) => select(policies.policies(), request),
            None => select(&self.policies.load(), request),
        }
    }

    /// The caller holds the lock on replacing.
    fn activate(&self, policies: Vec<Arc<Policy>>) {
        let secret = self.secret.load();
        let mut next = prepare(policies, &secret);
        let before = self.policies.load();
        for active in &mut next {
            let same = |before: &&Arc<ActivePolicy>| before.policy.name == active.policy.name;
            if let Some(before) = before.iter().find(same) {
                active.protection.keep_tripped(&active.policy, &before.protection, &before.policy);
                let (policy, bans) = (&active.policy, &mut active.protection.bans);
                bans.keep_bans(
                    &secret,
                    policy,
                    &self.marks,
                    &before.protection.bans,
                    &before.policy,
                );
            }
            active.protection.set_load(&active.policy, self.load_ppm.load(Ordering::Relaxed));
        }
        let next: Arc<Vec<_>> = Arc::new(next.into_iter().map(Arc::new).collect());
        self.policies.store(Arc::clone(&next));
        announce(&next, &self.store, &self.fallback);
        self.waiting.wake_all();
    }
}

#[inline]
fn select(
    policies: &[Arc<ActivePolicy>],
    request: &Request<'_>,
) -> Result<Arc<ActivePolicy>, RequestError> {
    let selected = match request.policy.as_deref() {
        None => policies.first(),
        Some(name) => policies.iter().find(|active| active.policy.name == name),
    };
    selected.cloned().ok_or_else(|| unknown(request))
}

#[cold]
fn unknown(request: &Request<'_>) -> RequestError {
    let name = request.policy.as_deref().unwrap_or_default();
    RequestError::new("policy", format!("found `{name}`, expected the name of a policy in force"))
}

/// Policies with what depends on no request worked out.
pub(super) fn prepare(policies: Vec<Arc<Policy>>, secret: &HashKey) -> Vec<ActivePolicy> {
    policies.into_iter().map(|policy| ActivePolicy::new(policy, secret)).collect()
}

/// Names the limits of all policies to the store and its fallback, before the first request.
pub(super) fn announce<S: Store>(policies: &[Arc<ActivePolicy>], store: &S, fallback: &Fallback) {
    let mut families: Vec<u64> = policies.iter().flat_map(|active| active.families()).collect();
    families.extend(policies.iter().find_map(|active| active.used_once));
    store.announce(&families);
    for active in policies {
        active.tables.get_or_init(|| store.tables(&active.limit_families()));
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
