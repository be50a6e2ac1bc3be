//! Events: which events of the policy a decision, an answer or a report makes, and what callers get to
//! know of their consequences.

use std::borrow::Cow;
use std::time::Duration;

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

/// An event that an application reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report<'a> {
    /// Its name in the policy.
    pub event: Cow<'a, str>,
    /// The request that the event belongs to: it tells the subject.
    pub request: Request<'a>,
    /// What ratios sum; without it, the event's attribute, or 1.
    pub value: Option<Amount>,
}

impl<'a> Report<'a> {
    /// An event and its request.
    #[must_use]
    pub fn new(event: impl Into<Cow<'a, str>>, request: Request<'a>) -> Self {
        Self { event: event.into(), request, value: None }
    }

    /// Sets the value that ratios sum.
    #[must_use]
    pub fn value(mut self, value: Amount) -> Self {
        self.value = Some(value);
        self
    }
}

/// Where events come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EventSource {
    /// A decision or an answer. A client that sends an unreadable value escapes nothing.
    Traffic,
    /// An application, maybe with a value. The application is told what is wrong with the value.
    Report(Option<Amount>),
}

/// What events led to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Consequences {
    /// How long to delay the answer.
    pub delay: Duration,
    /// What to tell the client.
    pub warnings: Vec<String>,
    /// True if the subject is banned now, by these events or before.
    pub banned: bool,
    /// True if the client must solve a challenge.
    pub challenged: bool,
    /// The flags that were set.
    pub flags: Vec<String>,
    /// What happened once, for logs and webhooks.
    pub effects: Vec<Effect>,
    /// The names of the events, for metrics.
    pub events: Vec<String>,
    /// True if the store was lost, so that only this node's counts were read.
    pub degraded: bool,
}

/// Something that happens once when a step of a ladder is reached. The enum is exhaustive: the compiler
/// shows a caller every effect that it does not handle yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A subject was banned.
    Banned {
        /// The ban.
        mark: Mark,
        /// The penalty, or ratio.
        penalty: String,
    },
    /// A subject was flagged.
    Flagged {
        /// The flag.
        mark: Mark,
        /// The penalty, or ratio.
        source: String,
    },
    /// A webhook must be called.
    Notify(Notice),
}

/// A message to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The name of the webhook.
    pub webhook: String,
    /// The policy.
    pub policy: String,
    /// The penalty, or ratio.
    pub source: String,
    /// The subject.
    pub subject: Subject,
    /// The count of events.
    pub count: u64,
    /// What was done: `ban`, `flag` or `notice`.
    pub action: &'static str,
    /// When it happened, in Unix time.
    pub at_unix_us: u64,
    /// The end of a ban.
    pub until_unix_us: Option<u64>,
}

/// The events that the status of an upstream's answer makes.
pub(crate) fn made_by_answer(context: &Context<'_>, status: u16) -> Events {
    let seen = |event: &Event| {
        event.statuses.iter().any(|statuses| statuses.contains(status)) && event.when.holds(context)
    };
    made_where(context.policy(), seen)
}

/// True if an answer to the request may make an event.
pub(crate) fn sees_answers(context: &Context<'_>) -> bool {
    let mut events = context.policy().protection.events.iter();
    context.active.protection.sees_answers
        && context.policy().enabled
        && events.any(|event| !event.statuses.is_empty() && event.when.holds(context))
}

/// The events that a decision makes.
pub(crate) fn made_by_decision(context: &Context<'_>, decision: &Decision) -> Events {
    let of_limits = matches!(decision.outcome, Outcome::Limited | Outcome::Challenged);
    let made = |event: &Event| {
        event.outcome == Some(decision.outcome)
            && event.when.holds(context)
            && (!of_limits || violations(decision).any(|report| event.covers(report)))
    };
    made_where(context.policy(), made)
}

impl Event {
    /// True if a violation of the report's limit makes the event.
    pub(crate) fn covers(&self, report: &LimitReport) -> bool {
        self.limits.as_ref().is_none_or(|limits| limits.contains(&report.limit))
    }
}

/// The limits that a request has violated. A limit that only lost its store is not violated.
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

fn made_where(policy: &Policy, is_made: impl Fn(&Event) -> bool) -> Events {
    let events = (0..).zip(&policy.protection.events);
    events.filter(|(_, event)| is_made(event)).map(|(id, _)| id).collect()
}
