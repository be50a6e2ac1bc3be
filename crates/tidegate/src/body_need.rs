//! Whether a decision can depend on the body, decided before the body is read.

use crate::context::Context;
use crate::limiter::Limiter;
use crate::policy::model::{Limit, Part, Settings};
use crate::policy::protection::{Event, EventId, Factor, FactorKind};
use crate::policy::when::{UnmetCondition, When};
use crate::precheck::{is_blocked, is_exempt};
use crate::protection::bans::BanLookups;
use crate::store::Store;

impl<S: Store> Limiter<S> {
    /// True if the decision on a request could depend on its body, which is not there yet: if an
    /// exemption, a limit or a penalty that may apply, or a ban in force, reads an attribute from the
    /// body. On `false` a gateway need not wait for the body; on `true` it reads at most 64 KiB of it.
    ///
    /// The answer is cautious: `true` where the body may turn out not to matter, never `false`
    /// where it does. What [`check`](Self::check) refuses as it stands needs no body either.
    #[must_use]
    pub fn wants_body(&self, context: &Context<'_>) -> bool {
        let bans_read_body = || {
            let parts = context.active.protection.bans.other_parts_with_bans(self.marks());
            let unreadable = BanLookups::unreadable_parts(context.policy(), self.marks());
            parts.chain(unreadable).any(|by| parts_read_body(by, context))
                && !is_exempt(context)
                && !is_blocked(context)
        };
        wants_body(context) || bans_read_body()
    }
}

fn wants_body(context: &Context<'_>) -> bool {
    let policy = context.policy();
    let (unsure, sure): (Vec<&When>, Vec<&When>) =
        policy.exempt.iter().partition(|when| reads_body(when, context));
    if sure.iter().any(|when| when.exempts(context)) {
        return false;
    }
    if unsure.iter().any(|when| may_hold(when, context)) {
        return true;
    }
    let limited = policy.enabled && !is_exempt(context) && !is_blocked(context);
    let reads = |limit: &Limit| may_hold(&limit.when, context) && limit_reads_body(limit, context);
    limited && (policy.limits.iter().any(reads) || protection_reads_body(context))
}

/// True if a penalty, a ratio or a factor may read the body.
fn protection_reads_body(context: &Context<'_>) -> bool {
    let protection = &context.policy().protection;
    let counts = |events: &mut dyn Iterator<Item = &EventId>, by: &[Part]| {
        let mut events = events.filter_map(|id| protection.events.get(usize::from(*id)));
        let by = parts_read_body(by, context);
        events.any(|event| may_be_made(event, context) && (by || event_reads_body(event, context)))
    };
    let scales = |factor: &Factor| match &factor.kind {
        FactorKind::Behaviour(behaviour) => parts_read_body(&behaviour.by, context),
        FactorKind::Fixed { .. } | FactorKind::Load { .. } => false,
    };
    let reads = |factor: &Factor| {
        may_hold(&factor.when, context) && (scales(factor) || reads_body(&factor.when, context))
    };
    protection
        .penalties
        .iter()
        .any(|one| counts(&mut one.events.iter().chain(&one.forgive), &one.by))
        || protection.ratios.iter().any(|one| counts(&mut [&one.of, &one.to].into_iter(), &one.by))
        || protection.factors.iter().any(reads)
}

/// True if a request, or the answer to it, may make an event.
fn may_be_made(event: &Event, context: &Context<'_>) -> bool {
    let seen = event.outcome.is_some() || !event.statuses.is_empty();
    seen && may_hold(&event.when, context)
}

fn event_reads_body(event: &Event, context: &Context<'_>) -> bool {
    event.value.is_some_and(|id| context.comes_from_body(id)) || reads_body(&event.when, context)
}

fn parts_read_body(parts: &[Part], context: &Context<'_>) -> bool {
    parts.iter().filter_map(Part::attribute).any(|id| context.comes_from_body(id))
}

/// True if a condition could hold once the body is there. All but attributes are known already.
fn may_hold(when: &When, context: &Context<'_>) -> bool {
    match when.first_unmet(context) {
        None => true,
        Some(UnmetCondition::Attribute(_) | UnmetCondition::Not) => reads_body(when, context),
        Some(_) => false,
    }
}

fn reads_body(when: &When, context: &Context<'_>) -> bool {
    when.attributes.iter().any(|(id, _)| context.comes_from_body(*id))
        || when.not.as_deref().is_some_and(|not| reads_body(not, context))
}

fn limit_reads_body(limit: &Limit, context: &Context<'_>) -> bool {
    let row = match &limit.settings {
        Settings::ByAttribute { attribute, .. } => Some(*attribute),
        Settings::Everyone(_) | Settings::ByTier(_) => None,
    };
    let by = limit.by.iter().filter_map(Part::attribute);
    let mut attributes = by.chain(row).chain(limit.cost.attribute()).chain(limit.value);
    attributes.any(|id| context.comes_from_body(id)) || reads_body(&limit.when, context)
}
