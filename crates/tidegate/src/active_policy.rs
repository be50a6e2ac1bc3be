//! The policies that are in force at one moment.

mod windows;

use std::fmt;
use std::sync::{Arc, OnceLock};

pub(crate) use windows::Windows;

use crate::key::HashKey;
use crate::plan::Outline;
use crate::policy::model::{Algorithm, Counts};
use crate::policy::{Limit, Policy};
use crate::protection::active::ActiveProtection;
use crate::store::Tables;

/// The policies that a [`Limiter`](crate::Limiter) had in force when it was asked.
///
/// A surface that reads a request by what the policy needs (headers, claims, a body) takes one for
/// each request and has the request decided [under](crate::Request::under) it: else a reload in
/// between would let a policy decide that needs what was not read.
#[derive(Clone)]
pub struct ActivePolicies(Arc<Vec<Arc<ActivePolicy>>>);

/// A policy in force.
pub(crate) struct ActivePolicy {
    pub(crate) policy: Arc<Policy>,
    /// What the levels of each limit have in common.
    pub(crate) outlines: Vec<Outline>,
    /// Where the store keeps their keys, once it has been told of them.
    pub(crate) tables: OnceLock<Tables>,
    /// Whether a limit of it may be leased.
    pub(crate) leased: bool,
    /// Whether a limit of it may give back, settle or hold what was not reserved.
    pub(crate) changes: bool,
    /// Where its answered challenges are remembered, if it has any.
    pub(crate) used_once: Option<u64>,
    /// What protects.
    pub(crate) protection: ActiveProtection,
    /// Where its quotas are in the calendar.
    pub(crate) windows: Windows,
}

impl ActivePolicy {
    pub(crate) fn new(policy: Arc<Policy>, secret: &HashKey) -> Self {
        let limits = policy.limits.iter().enumerate();
        let outlines =
            limits.map(|(index, limit)| Outline::new(secret, &policy, index, limit)).collect();
        Self {
            outlines,
            tables: OnceLock::new(),
            leased: policy.limits.iter().any(Limit::is_leased),
            changes: policy.limits.iter().any(may_change),
            used_once: policy.challenge().map(|_| secret.once_family()),
            protection: ActiveProtection::new(secret, &policy),
            windows: Windows::default(),
            policy,
        }
    }

    /// What the keys of each limit have in common, in the order of the limits.
    pub(crate) fn limit_families(&self) -> Vec<u64> {
        self.outlines.iter().map(|outline| outline.keys.family).collect()
    }

    /// The families of limits, event counts and steps.
    pub(crate) fn families(&self) -> impl Iterator<Item = u64> {
        self.limit_families().into_iter().chain(self.protection.families())
    }
}

/// True if what is charged to a limit may be given back or held.
fn may_change(limit: &Limit) -> bool {
    limit.counts != Counts::All || limit.algorithm == Algorithm::Concurrency
}

impl fmt::Debug for ActivePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivePolicy").field("name", &self.policy.name).finish_non_exhaustive()
    }
}

impl ActivePolicies {
    /// The policy that decides requests which name none.
    #[must_use]
    pub fn first(&self) -> Option<&Policy> {
        self.0.first().map(|active| &*active.policy)
    }

    /// The names of the policies, the first one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|active| &*active.policy.name)
    }

    pub(crate) fn new(policies: Arc<Vec<Arc<ActivePolicy>>>) -> Self {
        Self(policies)
    }

    pub(crate) fn policies(&self) -> &[Arc<ActivePolicy>] {
        &self.0
    }
}

impl fmt::Debug for ActivePolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|active| &active.policy.name)).finish()
    }
}
