//! What a penalty does with a request that lacks a part of the penalty's `by`, or has one that cannot be
//! read: a body that is broken, too large or of another type.
//!
//! Unreadable must not help an attacker: the service behind may well read it. So such a request to the
//! penalty's own operations is refused, unless the policy says `missing`. Unreadable must not hurt others
//! either: where such requests are counted together, the ban of that count refuses only requests that
//! cannot be read, and only to those operations.

use crate::context::Context;
use crate::plan::field_of;
use crate::policy::model::{Missing, Part, Policy};
use crate::policy::protection::{Event, Penalty};
use crate::policy::when::When;
use crate::protection::marks::Subject;
use crate::request::RequestError;

impl Event {
    /// The conditions that say which requests are the event's own: its `when`, or those of the limits
    /// that it names, where they name operations or paths.
    fn own_conditions<'p>(&'p self, policy: &'p Policy) -> impl Iterator<Item = &'p When> {
        let limits = self.limits.iter().flatten();
        let limits = limits.filter_map(|index| policy.limits.get(usize::from(*index)));
        let conditions = [&self.when].into_iter().chain(limits.map(|limit| &limit.when));
        conditions.filter(|when| when.names_requests())
    }
}

impl Penalty {
    fn events<'p>(&'p self, policy: &'p Policy) -> impl Iterator<Item = &'p Event> {
        let events = &policy.protection.events;
        self.events.iter().filter_map(|id| events.get(usize::from(*id)))
    }

    /// True if an event of the penalty names the operations or paths that it is about.
    pub(crate) fn has_own_requests(&self, policy: &Policy) -> bool {
        self.events(policy).any(|event| event.own_conditions(policy).next().is_some())
    }

    /// True if a request is one of those that an event of the penalty is about.
    fn owns(&self, context: &Context<'_>) -> bool {
        let policy = context.policy();
        let is_own = |event: &Event| {
            let mut conditions = event.own_conditions(policy);
            event.when.holds(context) && conditions.any(|when| when.holds(context))
        };
        self.events(policy).any(is_own)
    }

    /// True if the penalty refuses some requests for a part of its `by`.
    pub(crate) fn may_refuse(&self, policy: &Policy) -> bool {
        let may_lack = match self.missing {
            None => self.by.iter().any(|part| part.attribute().is_some()),
            Some(missing) => missing == Missing::Refuse,
        };
        may_lack && self.has_own_requests(policy)
    }

    /// True if the penalty bans requests that cannot be read.
    pub(crate) fn may_ban_unreadable(&self, policy: &Policy) -> bool {
        let bans = self.ladder.iter().any(|step| step.ban.is_some());
        bans && self.missing == Some(Missing::Share) && self.has_own_requests(policy)
    }

    /// The first part that makes the penalty refuse a request.
    fn refused_part(&self, context: &Context<'_>) -> Option<&Part> {
        self.by.iter().find(|part| match self.missing {
            None => context.is_unreadable(part),
            Some(missing) => missing == Missing::Refuse && !context.has(part),
        })
    }

    /// Refuses a request to the penalty's own operations whose part is missing or cannot be read.
    pub(crate) fn check_request(&self, context: &Context<'_>) -> Result<(), RequestError> {
        // Conditions are cheap; to read a part may be to parse a body.
        let part = if self.owns(context) { self.refused_part(context) } else { None };
        part.map_or(Ok(()), |part| Err(self.refusal(part, context)))
    }

    /// Refuses a report without a part, if the policy says so. Otherwise the report counts, together with
    /// all whose part cannot be read: the event has happened, and to refuse the report would forget it.
    pub(super) fn check_report(&self, context: &Context<'_>) -> Result<(), RequestError> {
        let part = self.refused_part(context).filter(|_| self.missing == Some(Missing::Refuse));
        part.map_or(Ok(()), |part| Err(self.refusal(part, context)))
    }

    fn refusal(&self, part: &Part, context: &Context<'_>) -> RequestError {
        let problem = if context.is_unreadable(part) { "cannot be read" } else { "is missing" };
        let detail = format!("{problem}, and the penalty `{}` needs it", self.name);
        RequestError::new(field_of(part, &part.name(context.policy())), detail)
    }

    /// True if the events of a request are counted: it has all parts, or shares the count of those that
    /// do not. A request that only lacks a part is counted where the policy says so.
    pub(crate) fn counts(&self, context: &Context<'_>) -> bool {
        self.by.iter().all(|part| {
            context.has(part)
                || match self.missing {
                    Some(Missing::Share) => true,
                    Some(Missing::Skip) => false,
                    Some(Missing::Refuse) | None => context.is_unreadable(part),
                }
        })
    }

    /// The subject that the count of requests without a part bans; `None` if such a count bans nobody.
    pub(super) fn unreadable_subject(&self, context: &Context<'_>) -> Option<Subject> {
        let policy = context.policy();
        let is_shared = self.may_ban_unreadable(policy) && self.counts(context);
        is_shared.then(|| Subject::unreadable(&self.by, &self.name, context))
    }

    /// True if a ban on the [unreadable subject](Self::unreadable_subject) refuses this request: one of
    /// its parts cannot be read, and it is to the penalty's own operations.
    pub(super) fn bans_unreadable(&self, context: &Context<'_>) -> bool {
        self.by.iter().any(|part| context.is_unreadable(part)) && self.owns(context)
    }
}

#[cfg(test)]
mod tests;
