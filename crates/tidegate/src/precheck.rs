//! Precheck: how this subject stands with the policy before any limit is asked.

use crate::context::Context;

/// What is decided before limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precheck {
    /// Never counted, never limited.
    Exempt,
    /// Its address is refused.
    Blocked,
    /// Limits decide.
    Ordinary,
}

/// Exempt goes before blocked (rule 2).
pub(crate) fn precheck(context: &Context<'_>) -> Precheck {
    let policy = context.policy;
    if policy.exempt.iter().any(|when| when.holds(context)) {
        return Precheck::Exempt;
    }
    let countries = &policy.blocked_countries;
    let is_blocked = |country: &str| countries.iter().any(|blocked| blocked == country);
    if context.address.is_some_and(|address| policy.blocked.contains(address))
        || !countries.is_empty() && context.country().as_deref().is_some_and(is_blocked)
    {
        return Precheck::Blocked;
    }
    Precheck::Ordinary
}
