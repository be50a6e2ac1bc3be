//! Warnings about what protects: events that never happen, bans of everybody, what nothing uses.

use super::warnings::{before_login, position};
use crate::decision::Outcome;
use crate::policy::diagnostics::{Position, Reporter};
use crate::policy::document::Node;
use crate::policy::model::{Exceed, Limit, Part, Policy};
use crate::policy::protection::{BUILT_IN_EVENTS, Event, EventId, Penalty, Step};

/// Everything that can be said once the policy stands.
pub(super) fn warn(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    impossible_events(policy, root, diagnostics);
    for penalty in &policy.protection.penalties {
        let at = position(root, "penalties", &penalty.name);
        never_counts(policy, penalty, at, diagnostics);
        grace_of_nothing(policy, penalty, at, diagnostics);
        nobody_is_a_user_yet(policy, penalty, at, diagnostics);
        for step in &penalty.ladder {
            bans_everybody(&penalty.by, step, &penalty.name, at, diagnostics);
        }
    }
    for ratio in &policy.protection.ratios {
        let at = position(root, "ratios", &ratio.name);
        if let Some(step) = &ratio.then {
            bans_everybody(&ratio.by, step, &ratio.name, at, diagnostics);
        }
    }
    unused(policy, root, diagnostics);
}

/// Whether a limit ever refuses or challenges anybody.
fn acts(limit: &Limit) -> bool {
    !limit.shadow && limit.exceed != Exceed::Warn
}

fn challenges(policy: &Policy) -> bool {
    let by_limit =
        policy.limits.iter().any(|limit| acts(limit) && limit.exceed == Exceed::Challenge);
    by_limit || policy.protection.steps().any(|step| step.challenge)
}

/// Whether an outcome can come of a decision, of these limits or of any.
fn can_come(policy: &Policy, outcome: Outcome, limits: Option<&[u16]>) -> bool {
    let named = |(place, _): &(u16, &Limit)| limits.is_none_or(|limits| limits.contains(place));
    let mut limits = (0..).zip(&policy.limits).filter(named);
    match outcome {
        Outcome::Limited => limits.any(|(_, limit)| acts(limit)),
        Outcome::Challenged => challenges(policy),
        Outcome::Blocked => !policy.blocked.is_empty() || !policy.blocked_countries.is_empty(),
        // An operator may ban anybody.
        Outcome::Banned | Outcome::Allowed | Outcome::Exempt | Outcome::Warned => true,
    }
}

/// Whether an event is ever made, or may be reported.
fn can_happen(policy: &Policy, id: EventId) -> bool {
    let event = policy.protection.events.get(usize::from(id));
    let made = |event: &Event| match event.outcome {
        Some(outcome) => can_come(policy, outcome, event.limits.as_deref()),
        None => true,
    };
    let failed_challenge = BUILT_IN_EVENTS.get(usize::from(id)) == Some(&"challenge_failed");
    event.is_some_and(made) && (!failed_challenge || challenges(policy))
}

fn impossible_events(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    let declared = (0..).zip(policy.protection.event_names.iter()).skip(BUILT_IN_EVENTS.len());
    for (_, name) in declared.filter(|(id, _)| !can_happen(policy, *id)) {
        let at = position(root, "events", name);
        let message = format!("the event `{name}` never happens: nothing makes its outcome");
        let help = "no limit that it names acts, or the policy neither blocks nor challenges";
        diagnostics.warn(at, message, help);
    }
}

fn never_counts(policy: &Policy, penalty: &Penalty, at: Position, diagnostics: &Reporter) {
    if !penalty.events.is_empty() && penalty.events.iter().all(|id| !can_happen(policy, *id)) {
        let message = format!(
            "the penalty `{}` never counts anything: its events never happen",
            penalty.name
        );
        diagnostics.warn(at, message, "count another event, or take it out");
    }
}

/// Only what a limit refuses can pass by grace.
fn grace_of_nothing(policy: &Policy, penalty: &Penalty, at: Position, diagnostics: &Reporter) {
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

/// Whoever logs in is no user before.
fn nobody_is_a_user_yet(policy: &Policy, penalty: &Penalty, at: Position, diagnostics: &Reporter) {
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

/// A ban by a key that does not tell clients apart.
fn bans_everybody(by: &[Part], step: &Step, name: &str, at: Position, diagnostics: &Reporter) {
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

/// What is declared, and used by nothing.
fn unused(policy: &Policy, root: &Node, diagnostics: &Reporter) {
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
