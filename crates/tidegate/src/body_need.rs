//! Whether a request's body can matter, asked before anyone reads it.

use crate::facts::Facts;
use crate::limiter::Limiter;
use crate::policy::model::{AttributeId, Cost, Limit, Part, Settings};
use crate::policy::when::{Unmet, When};
use crate::request::{Request, RequestError};
use crate::standing::{Standing, standing};
use crate::store::Store;

impl<S: Store> Limiter<S> {
    /// Whether the decision on a request could depend on its body, which is not there yet: whether
    /// an exemption or a limit that may apply reads an attribute from a body. A gateway that is told
    /// `false` need not wait for the body; one that is told `true` reads at most 64 KiB of it.
    ///
    /// The answer is cautious: `true` where the body may turn out not to matter, never `false`
    /// where it does. What [`decide`](Self::decide) refuses as it stands needs no body either.
    #[must_use]
    pub fn wants_body(&self, request: &Request<'_>) -> bool {
        let wanted = self.with_policy(request, |loaded| {
            let facts = Facts::gather(&loaded.policy, request)?;
            Ok::<_, RequestError>(wants_body(&facts))
        });
        wanted.unwrap_or(false)
    }
}

fn wants_body(facts: &Facts<'_>) -> bool {
    let policy = facts.policy;
    let (unsure, sure): (Vec<&When>, Vec<&When>) =
        policy.exempt.iter().partition(|when| reads_body(when, facts));
    if sure.iter().any(|when| when.holds(facts)) {
        return false;
    }
    if unsure.iter().any(|when| may_hold(when, facts)) {
        return true;
    }
    let limited = policy.enabled && standing(facts) == Standing::Ordinary;
    let reads = |limit: &Limit| may_hold(&limit.when, facts) && limit_reads_body(limit, facts);
    limited && policy.limits.iter().any(reads)
}

/// Whether a condition could hold once the body is there. All but attributes are known already.
fn may_hold(when: &When, facts: &Facts<'_>) -> bool {
    match when.unmet(facts) {
        None => true,
        Some(Unmet::Attribute(_) | Unmet::Not) => reads_body(when, facts),
        Some(_) => false,
    }
}

fn reads_body(when: &When, facts: &Facts<'_>) -> bool {
    when.attributes.iter().any(|(id, _)| facts.comes_from_body(*id))
        || when.not.as_deref().is_some_and(|not| reads_body(not, facts))
}

fn limit_reads_body(limit: &Limit, facts: &Facts<'_>) -> bool {
    let attribute = |id: AttributeId| facts.comes_from_body(id);
    let part = |part: &Part| match part {
        Part::Attribute(id) | Part::Row { attribute: id, .. } => attribute(*id),
        _ => false,
    };
    let setting = match &limit.settings {
        Settings::ByAttribute { attribute: id, .. } => attribute(*id),
        Settings::Everyone(_) | Settings::ByTier(_) => false,
    };
    let cost = match limit.cost {
        Cost::Attribute(id) => attribute(id),
        Cost::Requested | Cost::Fixed(_) => false,
    };
    setting
        || cost
        || limit.value.is_some_and(attribute)
        || limit.by.iter().chain(&limit.row).any(part)
        || reads_body(&limit.when, facts)
}
