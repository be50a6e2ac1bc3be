//! Penalise: the events of a decision, an answer or a report are [counted](penalise), and change the
//! decision. Only a final decision gets here: a request that waits and is served has violated nothing.

use super::pipeline::Attempt;
use super::{Inner, Limiter, block_on_ready};
use crate::context::{Context, OwnedContext};
use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::{Enforcement, Mode};
use crate::policy::model::{Algorithm, Cost, Limit};
use crate::policy::protection::EventId;
use crate::precheck::is_exempt;
use crate::protection::effects::{EventEffects, longer_ban};
use crate::protection::events::{self, Consequences, EventSource, Events, Report};
use crate::protection::penalise::{CountStore, penalise};
use crate::request::{Request, RequestError};
use crate::store::{ImmediateStore, Store, StoreError};
use crate::units::Amount;

impl<S: Store> Limiter<S> {
    /// Takes a report of an event: counts it, and says what it led to.
    ///
    /// ```
    /// use tidegate::{Limiter, Outcome, Policy, Report, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::parse("shop.yaml", "
    /// tidegate: 1
    /// name: shop
    /// events: { wrong_password: {} }
    /// penalties:
    ///   guessing: { event: wrong_password, by: user, within: 15min, ladder: { 2: { ban: 15min } } }
    /// ")?;
    /// let limiter = Limiter::new(policy);
    /// let request = Request::new("POST", "/login").user("u1");
    /// let report = Report::new("wrong_password", request.clone());
    /// assert!(!limiter.report(&report)?.banned);
    /// assert!(limiter.report(&report)?.banned);
    /// assert_eq!(limiter.check(&request)?.outcome, Outcome::Banned);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The request cannot be understood, the policy has no such event, or the value cannot be read: a
    /// 400.
    pub async fn report_async(&self, report: &Report<'_>) -> Result<Consequences, RequestError> {
        let context = self.context(&report.request)?;
        self.record_event_async(&context, &report.event, report.value).await
    }

    /// As [`report_async`](Self::report_async), of a request whose context is made already.
    ///
    /// # Errors
    /// The policy has no such event, or the value cannot be read: a 400.
    pub async fn record_event_async(
        &self,
        context: &Context<'_>,
        name: &str,
        value: Option<Amount>,
    ) -> Result<Consequences, RequestError> {
        let event = context.policy().protection.event_names.id(name);
        let event = event.and_then(|id| u16::try_from(id).ok()).ok_or_else(|| {
            let detail = format!("found `{name}`, expected the name of an event of the policy");
            RequestError::new("event", detail)
        })?;
        context.check_all_attributes()?;
        let (events, source) = (Events::from_iter([event]), EventSource::Report(value));
        Ok(self.count_events(context, &events, source, None).await?.consequences)
    }

    /// Counts the events that the status of the upstream's answer makes, and returns what they led to.
    /// Refusals of this limiter are no answers.
    ///
    /// # Errors
    /// The request cannot be understood.
    pub async fn record_status_async(
        &self,
        request: &Request<'_>,
        status: u16,
    ) -> Result<Consequences, RequestError> {
        Ok(self.count_answer(&self.context(request)?, status).await)
    }

    /// As [`record_status_async`](Self::record_status_async), of a request that was decided before: its
    /// policy, identity and operation are those of the decision.
    pub async fn record_answer_async(&self, request: &OwnedContext, status: u16) -> Consequences {
        self.count_answer(&request.context(self.now()), status).await
    }

    async fn count_answer(&self, context: &Context<'_>, status: u16) -> Consequences {
        if !context.active.protection.sees_answers || is_exempt(context) {
            return Consequences::default();
        }
        let events = events::made_by_answer(context, status);
        if events.is_empty() {
            return Consequences::default();
        }
        // Only the value of a report can be an error.
        let counted = self.count_events(context, &events, EventSource::Traffic, None).await;
        counted.map(|effects| effects.consequences).unwrap_or_default()
    }

    /// The decision after the events that it makes: a violation may pass by grace, start a ban, or be
    /// answered by a challenge.
    pub(super) async fn penalise(
        &self,
        context: &Context<'_>,
        attempt: &mut Attempt,
        mut decision: Decision,
    ) -> Decision {
        if !attempt.counts(context, decision.outcome) {
            return decision;
        }
        let events = events::made_by_decision(context, &decision);
        let (source, error) = (EventSource::Traffic, decision.store_error.clone());
        let Ok(effects) = self.count_events(context, &events, source, error).await else {
            return decision;
        };
        let EventEffects { consequences, ban, grace, store_error } = effects;
        let started = ban.filter(|_| decision.outcome != Outcome::Blocked);
        let before = decision.ban().cloned().map(|ban| (ban, decision.now));
        let ban = longer_ban(started, before);
        if let Some((_, now)) = &ban {
            decision.outcome = Outcome::Banned;
            // The ban's times are by this node's clock, not by the store's.
            decision.now = *now;
        } else if decision.outcome == Outcome::Limited && consequences.challenged {
            decision.outcome = Outcome::Challenged;
        } else if decision.outcome == Outcome::Limited && has_grace(context, &decision, &grace) {
            decision = self.pass_by_grace(context, attempt, decision, store_error).await;
        }
        decision.degraded |= consequences.degraded;
        decision.penalise(consequences, ban.map(|(ban, _)| ban));
        decision
    }

    /// Asks again, with the limits that are over only warning: the others are charged.
    async fn pass_by_grace(
        &self,
        context: &Context<'_>,
        attempt: &mut Attempt,
        decision: Decision,
        store_error: Option<StoreError>,
    ) -> Decision {
        if attempt.plan.mode == Mode::Peek {
            // Others wait for their turn, and nobody passes them.
            return decision;
        }
        if let Some(levels) = attempt.whole_levels.take() {
            attempt.plan.levels = levels;
        }
        for (level, report) in attempt.plan.levels.iter_mut().zip(&decision.limits) {
            if report.enforcement == Enforcement::Reject && !report.is_allowed() {
                level.enforcement = Enforcement::Warn;
            }
        }
        (attempt.conclusion, attempt.store_error) = (None, store_error);
        self.inner.ask(context, attempt).await;
        attempt.conclude(context)
    }

    async fn count_events(
        &self,
        context: &Context<'_>,
        events: &Events,
        source: EventSource,
        store_error: Option<StoreError>,
    ) -> Result<EventEffects, RequestError> {
        let Inner { store, fallback, clock, marks, steps, .. } = &*self.inner;
        let store = CountStore { store, fallback, clock: &**clock, error: store_error };
        penalise(store, context, marks, steps, events, source).await
    }
}

/// The same on a store that answers at once, in plain calls.
impl<S: ImmediateStore> Limiter<S> {
    /// As [`report_async`](Self::report_async).
    ///
    /// # Errors
    /// As [`report_async`](Self::report_async).
    pub fn report(&self, report: &Report<'_>) -> Result<Consequences, RequestError> {
        block_on_ready(self.report_async(report))
    }

    /// As [`record_status_async`](Self::record_status_async).
    ///
    /// # Errors
    /// As [`record_status_async`](Self::record_status_async).
    pub fn record_status(
        &self,
        request: &Request<'_>,
        status: u16,
    ) -> Result<Consequences, RequestError> {
        block_on_ready(self.record_status_async(request, status))
    }
}

/// True if grace covers everything that a request has violated. A limit that charges an attribute is never
/// covered, and neither is a ceiling.
fn has_grace(context: &Context<'_>, decision: &Decision, events: &[EventId]) -> bool {
    let protection = &context.policy().protection;
    let may = |limit: &Limit| {
        limit.algorithm != Algorithm::Ceiling && !matches!(limit.cost, Cost::Attribute(_))
    };
    let events = events.iter().filter_map(|id| protection.events.get(usize::from(*id)));
    let events: Vec<_> = events.collect();
    let refuses =
        |report: &&LimitReport| report.enforcement == Enforcement::Reject && !report.is_allowed();
    let refusing = decision.limits.iter().filter(refuses).count();
    // A limit that only lost its store is not violated, and nothing covers it.
    refusing == events::violations(decision).count()
        && events::violations(decision).all(|report| {
            events.iter().any(|event| event.covers(report))
                && decision.limit_of(report).is_some_and(may)
        })
}
