//! The precheck: what is settled before any limit is asked.

use crate::context::Context;
use crate::decision::Outcome;
use crate::protection::marks::{Mark, Marks};

/// How a request stands with the policy before its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Precheck {
    /// The request is never counted and never limited.
    Exempt,
    /// The client's address or country is refused.
    Blocked,
    /// A subject of the request is banned.
    Banned(Box<Mark>),
    /// The limits decide.
    Ordinary,
}

impl Precheck {
    /// The outcome of a request that no limit refuses.
    pub(crate) const fn outcome(&self) -> Outcome {
        match self {
            Self::Exempt => Outcome::Exempt,
            Self::Blocked => Outcome::Blocked,
            Self::Banned(_) => Outcome::Banned,
            Self::Ordinary => Outcome::Allowed,
        }
    }
}

/// Exempt goes before blocked (rule 2), and blocked before banned.
#[inline]
pub(crate) fn precheck(context: &Context<'_>, marks: &Marks) -> Precheck {
    if is_exempt(context) {
        return Precheck::Exempt;
    }
    if is_blocked(context) {
        return Precheck::Blocked;
    }
    match context.active.protection.bans.find(marks, context, context.now) {
        Some(ban) => Precheck::Banned(Box::new(ban)),
        None => Precheck::Ordinary,
    }
}

/// True if one of the policy's exemptions holds.
pub(crate) fn is_exempt(context: &Context<'_>) -> bool {
    context.policy().exempt.iter().any(|when| when.surely_holds(context))
}

/// True if the policy refuses the client's address or country.
pub(crate) fn is_blocked(context: &Context<'_>) -> bool {
    let policy = context.policy();
    let countries = &policy.blocked_countries;
    let is_listed = |country: &str| countries.iter().any(|blocked| blocked == country);
    context.address.is_some_and(|address| policy.blocked.contains(address))
        || !countries.is_empty() && context.country().as_deref().is_some_and(is_listed)
}
