//! Warnings about protection: events that never happen, bans of everybody, declarations that nothing
//! uses.

use super::warnings::{before_login, position};
use crate::decision::Outcome;
use crate::policy::diagnostics::{Position, Reporter};
use crate::policy::document::Node;
use crate::policy::model::{Exceed, Limit, Missing, Part, Policy, Source};
use crate::policy::protection::{BUILT_IN_EVENTS, Event, EventId, Penalty, Step};

/// Warns of what only the whole policy shows.
pub(super) fn warn(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    warn_impossible_events(policy, root, diagnostics);
    for penalty in &policy.protection.penalties {
        let at = position(root, "penalties", &penalty.name);
        warn_idle_penalty(policy, penalty, at, diagnostics);
        warn_useless_grace(policy, penalty, at, diagnostics);
        warn_users_before_login(policy, penalty, at, diagnostics);
        warn_unread_bodies(policy, penalty, at, diagnostics);
        for step in &penalty.ladder {
            warn_mass_ban(&penalty.by, step, &penalty.name, at, diagnostics);
        }
    }
    for ratio in &policy.protection.ratios {
        let at = position(root, "ratios", &ratio.name);
        if let Some(step) = &ratio.then {
            warn_mass_ban(&ratio.by, step, &ratio.name, at, diagnostics);
        }
    }
    warn_unused(policy, root, diagnostics);
}

/// True if a limit can refuse or challenge a request.
fn can_refuse(limit: &Limit) -> bool {
    !limit.shadow && limit.exceed != Exceed::Warn
}

fn challenges(policy: &Policy) -> bool {
    let by_limit =
        policy.limits.iter().any(|limit| can_refuse(limit) && limit.exceed == Exceed::Challenge);
    by_limit || policy.protection.steps().any(|step| step.challenge)
}

/// True if a decision can have an outcome, by these limits or by any.
fn can_result(policy: &Policy, outcome: Outcome, limits: Option<&[u16]>) -> bool {
    let named = |(place, _): &(u16, &Limit)| limits.is_none_or(|limits| limits.contains(place));
    let mut limits = (0..).zip(&policy.limits).filter(named);
    match outcome {
        Outcome::Limited => limits.any(|(_, limit)| can_refuse(limit)),
        Outcome::Challenged => challenges(policy),
        Outcome::Blocked => !policy.blocked.is_empty() || !policy.blocked_countries.is_empty(),
        // An operator can ban any subject.
        Outcome::Banned | Outcome::Allowed | Outcome::Exempt | Outcome::Warned => true,
    }
}

/// True if an event can happen, or be reported.
fn can_happen(policy: &Policy, id: EventId) -> bool {
    let event = policy.protection.events.get(usize::from(id));
    let made = |event: &Event| match event.outcome {
        Some(outcome) => can_result(policy, outcome, event.limits.as_deref()),
        None => true,
    };
    let failed_challenge = BUILT_IN_EVENTS.get(usize::from(id)) == Some(&"challenge_failed");
    event.is_some_and(made) && (!failed_challenge || challenges(policy))
}

fn warn_impossible_events(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    let declared = (0..).zip(policy.protection.event_names.iter()).skip(BUILT_IN_EVENTS.len());
    for (_, name) in declared.filter(|(id, _)| !can_happen(policy, *id)) {
        let at = position(root, "events", name);
        let message = format!("the event `{name}` never happens: nothing makes its outcome");
        let help = "no limit that it names acts, or the policy neither blocks nor challenges";
        diagnostics.warn(at, message, help);
    }
}

fn warn_idle_penalty(policy: &Policy, penalty: &Penalty, at: Position, diagnostics: &Reporter) {
    if !penalty.events.is_empty() && penalty.events.iter().all(|id| !can_happen(policy, *id)) {
        let message = format!(
            "the penalty `{}` never counts anything: its events never happen",
            penalty.name
        );
        diagnostics.warn(at, message, "count another event, or take it out");
    }
}

/// Only a request that a limit refuses can pass by grace.
fn warn_useless_grace(policy: &Policy, penalty: &Penalty, at: Position, diagnostics: &Reporter) {
    let refuses = |id: &EventId| {
        let event = policy.protection.events.get(usize::from(*id));
        event.is_some_and(|event| event.outcome == Some(Outcome::Limited))
    };
    let grace = penalty.ladder.iter().any(|step| step.allow);
    if grace && !penalty.events.iter().any(refuses) {
        let message = format!(
            "the grace of `{}` never lets anything pass: no limit refuses it",
            penalty.name
        );
        let help = "count `limited`, or an event with `outcome: limited`";
        diagnostics.warn(at, message, help);
    }
}

/// A request that logs in has no user yet.
fn warn_users_before_login(
    policy: &Policy,
    penalty: &Penalty,
    at: Position,
    diagnostics: &Reporter,
) {
    let events = penalty.events.iter().filter_map(|id| {
        policy.protection.events.get(usize::from(*id)).filter(|event| !event.statuses.is_empty())
    });
    let mut names =
        events.filter_map(|event| before_login(policy, event.when.operations.as_deref()?));
    if let Some(name) = names.next().filter(|_| penalty.by.contains(&Part::User)) {
        let message = format!(
            "the penalty `{}` counts users, but at `{name}` nobody is one yet",
            penalty.name
        );
        let help = "use `by: ip`, or an attribute such as the e-mail address in the body";
        diagnostics.warn(at, message, help);
    }
}

/// A client chooses what its body says. If it says nothing that can be read, the penalty must not be
/// without a subject.
fn warn_unread_bodies(policy: &Policy, penalty: &Penalty, at: Position, diagnostics: &Reporter) {
    let is_of_body = |part: &&Part| {
        let id = part.attribute().and_then(|id| usize::try_from(id).ok());
        let attribute = id.and_then(|id| policy.attributes.get(id));
        attribute.is_some_and(|attribute| matches!(attribute.source, Source::Body(_)))
    };
    let is_seen = |id: &EventId| {
        let event = policy.protection.events.get(usize::from(*id));
        event.is_some_and(|event| event.outcome.is_some() || !event.statuses.is_empty())
    };
    let bans = penalty.ladder.iter().any(|step| step.ban.is_some());
    let delays = penalty.ladder.iter().any(|step| step.delay_us > 0);
    let part = penalty.by.iter().find(is_of_body).filter(|_| bans || delays);
    let Some(part) = part.filter(|_| penalty.events.iter().any(is_seen)) else { return };
    let (name, part) = (&penalty.name, part.name(policy));
    let escapes = match penalty.missing {
        _ if !penalty.has_own_requests(policy) && !bans => return,
        _ if !penalty.has_own_requests(policy) => {
            let message = format!(
                "`{name}` counts by `{part}` of the body, at no operation: a client whose body cannot \
                 be read is never banned"
            );
            let help = "name the operations in the `when` of its events, and say `missing: refuse`";
            return diagnostics.warn(at, message, help);
        }
        Some(Missing::Refuse) => return,
        Some(Missing::Skip) => "whose body cannot be read is not counted",
        Some(Missing::Share) if !bans => return,
        Some(Missing::Share) => "without it is never banned",
        None => "without it is not counted",
    };
    let message = format!("`{name}` counts by `{part}` of the body, and a request {escapes}");
    let help = "say `missing: refuse`: such a request is answered with 400";
    diagnostics.warn(at, message, help);
}

/// A ban by a key that does not tell clients apart.
fn warn_mass_ban(by: &[Part], step: &Step, name: &str, at: Position, diagnostics: &Reporter) {
    let of_many = |part: &Part| {
        matches!(
            part,
            Part::Global | Part::Tier | Part::Operation | Part::Method | Part::Path | Part::Country
        )
    };
    if step.ban.as_ref().is_some_and(|ban| ban.by.is_none()) && by.iter().all(of_many) {
        let message = format!("`{name}` bans many at once: its key does not tell clients apart");
        diagnostics.warn(at, message, "say whom: `ban: { for: 1h, by: client }`");
    }
}

/// Declarations that nothing uses.
fn warn_unused(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    let protection = &policy.protection;
    if let Some(node) = root.get("challenge").filter(|_| !challenges(policy)) {
        let help = "say `exceed: challenge` on a limit, or `challenge: true` on a step";
        diagnostics.warn(node.at, "nothing challenges, so that `challenge` is for nothing", help);
    }
    for (place, webhook) in protection.webhooks.iter().enumerate() {
        if !protection.steps().any(|step| step.notify.contains(&place)) {
            let at = position(root, "notify", &webhook.name);
            let message = format!("nothing notifies `{}`", webhook.name);
            diagnostics.warn(at, message, "name it in the `notify` of a step");
        }
    }
    if let Some(factor) = protection.factors.first()
        && !policy.limits.iter().any(|limit| limit.scaled)
    {
        let at = position(root, "factors", &factor.name);
        let help = "say `scaled: true` on a limit that they are for";
        diagnostics.warn(at, "no limit is scaled, so that factors are for nothing", help);
    }
}
