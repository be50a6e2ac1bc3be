//! Whether a request's body can matter, asked before anyone reads it.

use crate::context::Context;
use crate::limiter::Limiter;
use crate::policy::model::{AttributeId, Cost, Limit, Part, Settings};
use crate::policy::protection::{Event, EventId, Factor, FactorKind};
use crate::policy::when::{Unmet, When};
use crate::precheck::{is_blocked, is_exempt};
use crate::request::Request;
use crate::store::Store;

impl<S: Store> Limiter<S> {
    /// Whether the decision on a request could depend on its body, which is not there yet: whether
    /// an exemption, a limit or a penalty that may apply, or a ban that there is, reads an attribute
    /// from a body. A gateway that is told
    /// `false` need not wait for the body; one that is told `true` reads at most 64 KiB of it.
    ///
    /// The answer is cautious: `true` where the body may turn out not to matter, never `false`
    /// where it does. What [`check`](Self::check) refuses as it stands needs no body either.
    #[must_use]
    pub fn wants_body(&self, request: &Request<'_>) -> bool {
        self.context(request).is_ok_and(|context| {
            let bans_read_body = || {
                let mut parts = context.active.protection.bans.other_parts_with_bans(self.marks());
                parts.any(|by| parts_read_body(by, &context))
                    && !is_exempt(&context)
                    && !is_blocked(&context)
            };
            wants_body(&context) || bans_read_body()
        })
    }
}

fn wants_body(context: &Context<'_>) -> bool {
    let policy = context.policy();
    let (unsure, sure): (Vec<&When>, Vec<&When>) =
        policy.exempt.iter().partition(|when| reads_body(when, context));
    if sure.iter().any(|when| when.holds(context)) {
        return false;
    }
    if unsure.iter().any(|when| may_hold(when, context)) {
        return true;
    }
    let limited = policy.enabled && !is_exempt(context) && !is_blocked(context);
    let reads = |limit: &Limit| may_hold(&limit.when, context) && limit_reads_body(limit, context);
    limited && (policy.limits.iter().any(reads) || protection_reads_body(context))
}

/// Whether what counts, sums or scales may read the body.
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

/// Whether a request, or the answer to it, may make an event.
fn may_be_made(event: &Event, context: &Context<'_>) -> bool {
    let seen = event.outcome.is_some() || !event.statuses.is_empty();
    seen && may_hold(&event.when, context)
}

fn event_reads_body(event: &Event, context: &Context<'_>) -> bool {
    event.value.is_some_and(|id| context.comes_from_body(id)) || reads_body(&event.when, context)
}

fn parts_read_body(parts: &[Part], context: &Context<'_>) -> bool {
    let reads = |part: &Part| match part {
        Part::Attribute(id) | Part::Row { attribute: id, .. } => context.comes_from_body(*id),
        _ => false,
    };
    parts.iter().any(reads)
}

/// Whether a condition could hold once the body is there. All but attributes are known already.
fn may_hold(when: &When, context: &Context<'_>) -> bool {
    match when.unmet(context) {
        None => true,
        Some(Unmet::Attribute(_) | Unmet::Not) => reads_body(when, context),
        Some(_) => false,
    }
}

fn reads_body(when: &When, context: &Context<'_>) -> bool {
    when.attributes.iter().any(|(id, _)| context.comes_from_body(*id))
        || when.not.as_deref().is_some_and(|not| reads_body(not, context))
}

fn limit_reads_body(limit: &Limit, context: &Context<'_>) -> bool {
    let attribute = |id: AttributeId| context.comes_from_body(id);
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
        || parts_read_body(&limit.by, context)
        || parts_read_body(limit.row.as_slice(), context)
        || reads_body(&limit.when, context)
}
