//! The policies that are in force at one moment.

mod windows;

use std::fmt;
use std::sync::{Arc, OnceLock};

pub(crate) use windows::Windows;

use crate::plan::Outline;
use crate::policy::Policy;
use crate::protection::guard::Guard;
use crate::store::Tables;

/// The policies that a [`Limiter`](crate::Limiter) had in force when it was asked.
///
/// A surface that reads a request by what the policy needs (headers, claims, a body) takes one for
/// each request and has the request decided [under](crate::Request::under) it: else a reload in
/// between would let a policy decide that needs what was not read.
#[derive(Clone)]
pub struct ActivePolicies(Arc<Vec<ActivePolicy>>);

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
    pub(crate) guard: Guard,
    /// Where its quotas are in the calendar.
    pub(crate) windows: Windows,
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

    pub(crate) fn new(policies: Arc<Vec<ActivePolicy>>) -> Self {
        Self(policies)
    }

    pub(crate) fn policies(&self) -> &[ActivePolicy] {
        &self.0
    }
}

impl fmt::Debug for ActivePolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|active| &active.policy.name)).finish()
    }
}
