//! Which ladders a request may climb, and what stands on their steps.

use crate::context::Context;
use crate::decision::Outcome;
use crate::key::penalty_name;
use crate::policy::model::Policy;
use crate::policy::protection::{BanBy, Event, EventId, Penalty, Step};
use crate::units::written_duration;

use super::LimitExplanation;

/// One penalty and this request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PenaltyExplanation {
    /// The penalty's name.
    pub name: String,
    /// How it counts, or why it does not.
    pub applies: Result<Counting, String>,
}

/// How a penalty counts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counting {
    /// The name of the count in a store.
    pub key: String,
    /// Whose events are counted together: the parts of its key.
    pub by: Vec<String>,
    /// Those of its events that may come of this request, or be reported of it.
    pub events: Vec<String>,
    /// The span in which they count.
    pub within: String,
    /// From which count on, and what then.
    pub ladder: Vec<(u32, String)>,
}

/// All penalties of the policy, in its order.
pub(super) fn penalties(
    context: &Context<'_>,
    limits: &[LimitExplanation],
) -> Vec<PenaltyExplanation> {
    let policy = context.policy();
    let explain = |(index, penalty): (usize, &Penalty)| {
        let may_happen = |id: &&EventId| {
            let event = policy.protection.events.get(usize::from(**id));
            event.is_some_and(|event| may_be_made(event, context, limits))
        };
        let events: Vec<&EventId> = penalty.events.iter().filter(may_happen).collect();
        let keys = context.active.protection.penalties.get(index);
        let counted = keys.filter(|_| penalty.counts(context));
        let secret = &context.active.protection.secret;
        let key = counted.map(|keys| keys.count.key_by(&penalty.by, context));
        let applies = match (penalty.check_request(context), key) {
            (Err(error), _) => Err(format!("asked, it would answer 400: {error}")),
            (Ok(()), None) => Err(explain_missing_part(penalty, context)),
            (Ok(()), Some(_)) if events.is_empty() => {
                Err("none of its events comes of this".to_owned())
            }
            (Ok(()), Some(key)) => Ok(Counting {
                key: penalty_name(secret, penalty, context, key).as_ref().to_owned(),
                by: penalty.by.iter().map(|part| part.name(policy)).collect(),
                events: events.into_iter().map(|id| name(policy, *id)).collect(),
                within: written_duration(penalty.within_us),
                ladder: penalty.ladder.iter().map(|one| (one.from, step(policy, one))).collect(),
            }),
        };
        PenaltyExplanation { name: penalty.name.clone(), applies }
    };
    policy.protection.penalties.iter().enumerate().map(explain).collect()
}

fn name(policy: &Policy, event: EventId) -> String {
    policy.protection.event_names.name(event.into()).to_owned()
}

/// Whether an event may come of a request. What is only reported may be reported of any.
fn may_be_made(event: &Event, context: &Context<'_>, limits: &[LimitExplanation]) -> bool {
    let named = |place: usize| {
        let named = |places: &Vec<u16>| places.iter().any(|one| usize::from(*one) == place);
        event.limits.as_ref().is_none_or(named)
    };
    let mut applying = limits.iter().enumerate().filter(|(_, limit)| limit.applies.is_ok());
    let made = match event.outcome {
        Some(Outcome::Limited) => applying.any(|(place, _)| named(place)),
        _ => true,
    };
    made && event.when.holds(context)
}

fn explain_missing_part(penalty: &Penalty, context: &Context<'_>) -> String {
    let part = penalty.by.iter().find(|part| !context.has(part));
    let name = part.map(|part| part.name(context.policy())).unwrap_or_default();
    format!("it counts by `{name}`, and there is none")
}

/// A step in words: `delay 5s, warn captcha`.
fn step(policy: &Policy, step: &Step) -> String {
    let mut words = Vec::new();
    words.extend(step.allow.then(|| "allow".to_owned()));
    words.extend((step.delay_us > 0).then(|| format!("delay {}", written_duration(step.delay_us))));
    words.extend(step.warn.as_ref().map(|warning| format!("warn {warning}")));
    words.extend(step.challenge.then(|| "challenge".to_owned()));
    words.extend(step.ban.as_ref().map(|ban| {
        let subject = ban.by.map(|by| format!(" by {}", subject_of(by))).unwrap_or_default();
        format!("ban {}{subject}", written_duration(ban.for_us))
    }));
    words.extend(step.flag.as_ref().map(|flag| format!("flag {flag}")));
    let webhooks = step.notify.iter().filter_map(|at| policy.protection.webhooks.get(*at));
    words.extend(webhooks.map(|webhook| format!("notify {}", webhook.name)));
    if words.is_empty() { "nothing further".to_owned() } else { words.join(", ") }
}

fn subject_of(by: BanBy) -> String {
    match by {
        BanBy::User => "user".to_owned(),
        BanBy::Client => "client".to_owned(),
        BanBy::Ip => "ip".to_owned(),
        BanBy::Network { v4_bits, v6_bits } => format!("network (/{v4_bits}, /{v6_bits})"),
    }
}
