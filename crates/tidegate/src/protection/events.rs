//! Events: what happens to a subject, reported, seen in an answer or made of a decision; and what
//! that led to.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::context::Context;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::Enforcement;
use crate::policy::model::{OnStoreFailure, Policy};
use crate::policy::protection::{Event, EventId};
use crate::protection::marks::{Mark, Subject};
use crate::request::Request;
use crate::units::Amount;

/// The events of one request, each once.
pub(crate) type Events = SmallVec<[EventId; 4]>;

/// An event that an application tells of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report<'a> {
    /// Its name in the policy.
    pub event: Cow<'a, str>,
    /// Whom it happened to, and what else is known of it.
    pub request: Request<'a>,
    /// What ratios sum; without it the event's own attribute, or 1.
    pub value: Option<Amount>,
}

impl<'a> Report<'a> {
    /// An event and whom it happened to.
    #[must_use]
    pub fn new(event: impl Into<Cow<'a, str>>, request: Request<'a>) -> Self {
        Self { event: event.into(), request, value: None }
    }

    /// With what ratios sum.
    #[must_use]
    pub fn value(mut self, value: Amount) -> Self {
        self.value = Some(value);
        self
    }
}

/// What events led to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Consequences {
    /// How long the answer is to be held.
    pub delay_us: u64,
    /// What the client is to be told.
    pub warnings: Vec<String>,
    /// Whether the subject is banned now, by this or before.
    pub banned: bool,
    /// Whether the client is to solve a challenge.
    pub challenged: bool,
    /// The flags that were set.
    pub flags: Vec<String>,
    /// What somebody else is to hear of.
    pub effects: Vec<Effect>,
    /// The names of the events, for metrics.
    pub events: Vec<String>,
    /// Whether the shared store was lost, so that only this node's counts were asked.
    pub degraded: bool,
}

/// Something that happens once, where a step of a ladder is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// A subject was banned.
    Banned {
        /// Who, and until when.
        mark: Mark,
        /// The penalty, or ratio.
        penalty: String,
    },
    /// A subject was flagged.
    Flagged {
        /// Who, and what for.
        mark: Mark,
        /// The penalty, or ratio.
        source: String,
    },
    /// Somebody is to be told.
    Notify(Notice),
}

/// What somebody is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The name of the webhook.
    pub webhook: String,
    /// The policy.
    pub policy: String,
    /// The penalty, or ratio.
    pub source: String,
    /// Whom it is about.
    pub subject: Subject,
    /// How many events there were.
    pub count: u64,
    /// What was done: `ban`, `flag` or `notice`.
    pub action: &'static str,
    /// When it happened, in Unix time.
    pub at_unix_us: u64,
    /// Until when, where it was a ban.
    pub until_unix_us: Option<u64>,
}

/// The events that an upstream's answer makes.
pub(crate) fn of_answer(context: &Context<'_>, status: u16) -> Events {
    let seen = |event: &Event| {
        event.statuses.iter().any(|statuses| statuses.contains(status)) && event.when.holds(context)
    };
    which(context.policy(), seen)
}

/// True if an answer to the request may make an event.
pub(crate) fn sees_answers(context: &Context<'_>) -> bool {
    let mut events = context.policy().protection.events.iter();
    context.active.guard.sees_answers
        && context.policy().enabled
        && events.any(|event| !event.statuses.is_empty() && event.when.holds(context))
}

/// The events that a decision makes.
pub(crate) fn of_decision(context: &Context<'_>, decision: &Decision) -> Events {
    let of_limits = matches!(decision.outcome, Outcome::Limited | Outcome::Challenged);
    let made = |event: &Event| {
        event.outcome == Some(decision.outcome)
            && event.when.holds(context)
            && (!of_limits || violations(decision).any(|violated| of(event, violated)))
    };
    which(context.policy(), made)
}

/// Whether an event is made of a violation of this limit.
pub(crate) fn of(event: &Event, violated: &LimitReport) -> bool {
    event.limits.as_ref().is_none_or(|limits| limits.contains(&violated.limit))
}

/// The limits that a request has violated. One that only lost its store blames nobody.
pub(crate) fn violations(decision: &Decision) -> impl Iterator<Item = &LimitReport> {
    let lost = |report: &LimitReport| {
        let limit = decision.limit_of(report);
        decision.degraded
            && limit.is_some_and(|limit| limit.on_store_failure == OnStoreFailure::Deny)
    };
    decision.limits.iter().filter(move |report| {
        report.enforcement == Enforcement::Reject && !report.is_allowed() && !lost(report)
    })
}

fn which(policy: &Policy, is: impl Fn(&Event) -> bool) -> Events {
    let events = (0..).zip(&policy.protection.events);
    events.filter(|(_, event)| is(event)).map(|(id, _)| id).collect()
}
