//! Which attributes a decision can depend on, found before it is made: whether the body must be read
//! for them, and whether one is there twice.

use std::cell::Cell;

use crate::context::Context;
use crate::limiter::Limiter;
use crate::policy::model::{AttributeId, Limit, Part, Settings};
use crate::policy::protection::{Event, EventId, Factor, FactorKind};
use crate::policy::when::{UnmetCondition, When};
use crate::precheck::{is_blocked, is_exempt};
use crate::protection::bans::BanLookups;
use crate::protection::marks::Marks;
use crate::request::RequestError;
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
        let reads = |id| context.comes_from_body(id);
        Readers { context, is_sought: &reads }.exist(self.marks())
    }
}

/// Refuses a request that says an attribute twice which the decision can depend on: a service could
/// believe the other one.
#[inline]
pub(crate) fn check_ambiguity(context: &Context<'_>, marks: &Marks) -> Result<(), RequestError> {
    if context.may_be_ambiguous() { find_ambiguity(context, marks) } else { Ok(()) }
}

#[cold]
fn find_ambiguity(context: &Context<'_>, marks: &Marks) -> Result<(), RequestError> {
    let found = Cell::new(None);
    let is_ambiguous = |id| {
        let ambiguous = context.is_ambiguous(id);
        found.set(found.get().or(ambiguous.then_some(id)));
        ambiguous
    };
    let exist = Readers { context, is_sought: &is_ambiguous }.exist(marks);
    found.get().filter(|_| exist).map_or(Ok(()), |id| Err(context.ambiguity(id)))
}

/// Looks for what may read one of the sought attributes.
struct Readers<'c> {
    context: &'c Context<'c>,
    is_sought: &'c dyn Fn(AttributeId) -> bool,
}

impl Readers<'_> {
    /// True if an exemption, a limit, a penalty or a ban may.
    fn exist(&self, marks: &Marks) -> bool {
        let in_bans = || {
            let parts = self.context.active.protection.bans.other_parts_with_bans(marks);
            let unreadable = BanLookups::unreadable_parts(self.context.policy(), marks);
            parts.chain(unreadable).any(|by| self.in_parts(by))
                && !is_exempt(self.context)
                && !is_blocked(self.context)
        };
        self.in_rules() || in_bans()
    }

    fn in_rules(&self) -> bool {
        let (context, policy) = (self.context, self.context.policy());
        let (unsure, sure): (Vec<&When>, Vec<&When>) =
            policy.exempt.iter().partition(|when| self.in_when(when));
        if sure.iter().any(|when| when.surely_holds(context)) {
            return false;
        }
        if unsure.iter().any(|when| self.may_hold(when)) {
            return true;
        }
        let limited = policy.enabled && !is_exempt(context) && !is_blocked(context);
        let reads = |limit: &Limit| self.may_hold(&limit.when) && self.in_limit(limit);
        limited && (policy.limits.iter().any(reads) || self.in_protection())
    }

    /// True if a penalty, a ratio or a factor may.
    fn in_protection(&self) -> bool {
        let protection = &self.context.policy().protection;
        let counts = |events: &mut dyn Iterator<Item = &EventId>, by: &[Part]| {
            let mut events = events.filter_map(|id| protection.events.get(usize::from(*id)));
            let by = self.in_parts(by);
            events.any(|event| self.may_be_made(event) && (by || self.in_event(event)))
        };
        let scales = |factor: &Factor| match &factor.kind {
            FactorKind::Behaviour(behaviour) => self.in_parts(&behaviour.by),
            FactorKind::Fixed { .. } | FactorKind::Load { .. } => false,
        };
        let reads = |factor: &Factor| {
            self.may_hold(&factor.when) && (scales(factor) || self.in_when(&factor.when))
        };
        let (penalties, ratios) = (&protection.penalties, &protection.ratios);
        penalties.iter().any(|one| counts(&mut one.events.iter().chain(&one.forgive), &one.by))
            || ratios.iter().any(|one| counts(&mut [&one.of, &one.to].into_iter(), &one.by))
            || protection.factors.iter().any(reads)
    }

    /// True if a request, or the answer to it, may make an event.
    fn may_be_made(&self, event: &Event) -> bool {
        let seen = event.outcome.is_some() || !event.statuses.is_empty();
        seen && self.may_hold(&event.when)
    }

    fn in_event(&self, event: &Event) -> bool {
        event.value.is_some_and(self.is_sought) || self.in_when(&event.when)
    }

    fn in_parts(&self, parts: &[Part]) -> bool {
        parts.iter().filter_map(Part::attribute).any(self.is_sought)
    }

    /// True if a condition could hold once the attributes are there. All else is known already.
    fn may_hold(&self, when: &When) -> bool {
        match when.first_unmet(self.context) {
            None => true,
            Some(UnmetCondition::Attribute(_) | UnmetCondition::Not) => self.in_when(when),
            Some(_) => false,
        }
    }

    fn in_when(&self, when: &When) -> bool {
        when.attributes.iter().any(|(id, _)| (self.is_sought)(*id))
            || when.not.as_deref().is_some_and(|not| self.in_when(not))
    }

    fn in_limit(&self, limit: &Limit) -> bool {
        let row = match &limit.settings {
            Settings::ByAttribute { attribute, .. } => Some(*attribute),
            Settings::Everyone(_) | Settings::ByTier(_) => None,
        };
        let by = limit.by.iter().filter_map(Part::attribute);
        let mut attributes = by.chain(row).chain(limit.cost.attribute()).chain(limit.value);
        attributes.any(self.is_sought) || self.in_when(&limit.when)
    }
}
