//! Standing: how this subject stands with the policy before any limit is asked.

use crate::facts::Facts;

/// What is decided before limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Never counted, never limited.
    Exempt,
    /// Its address is refused.
    Blocked,
    /// Limits decide.
    Ordinary,
}

/// Exempt goes before blocked (rule 2).
pub(crate) fn standing(facts: &Facts<'_>) -> Standing {
    let policy = facts.policy;
    if policy.exempt.iter().any(|when| when.holds(facts)) {
        return Standing::Exempt;
    }
    let countries = &policy.blocked_countries;
    let is_blocked = |country: &str| countries.iter().any(|blocked| blocked == country);
    if facts.address.is_some_and(|address| policy.blocked.contains(address))
        || !countries.is_empty() && facts.country().as_deref().is_some_and(is_blocked)
    {
        return Standing::Blocked;
    }
    Standing::Ordinary
}
