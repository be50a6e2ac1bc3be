//! Events through a limiter: where they come from, and what they make of a decision.

use std::sync::Arc;

use super::Limiter;
use super::activate::select;
use super::at_once;
use crate::active_policy::{ActivePolicies, ActivePolicy};
use crate::clock::Moment;
use crate::context::Context;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::{Enforcement, Mode, Plan, Planner};
use crate::policy::model::{Algorithm, Cost, Limit};
use crate::precheck::{Precheck, precheck};
use crate::protection::counts::EventCounts;
use crate::protection::events::{self, Consequences, Events, Report};
use crate::protection::penalties::{Happened, longer};
use crate::request::{Request, RequestError};
use crate::store::{ImmediateStore, Store, StoreError};
use crate::units::Amount;

/// Where events come from.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// Of an answer, or of a decision: a client who sends a value that is none escapes nothing.
    Seen,
    /// By an application, maybe with a value; it is told what is wrong with one.
    Reported(Option<Amount>),
}

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
    /// assert!(!limiter.report_now(&report)?.banned);
    /// assert!(limiter.report_now(&report)?.banned);
    /// assert_eq!(limiter.check(&request)?.outcome, Outcome::Banned);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The request cannot be understood, the policy has no such event, or its value is none: a 400.
    pub async fn report(&self, report: &Report<'_>) -> Result<Consequences, RequestError> {
        let active_policies = self.active_policies_of(&report.request);
        let active = select(active_policies.policies(), &report.request)?;
        let name = &*report.event;
        let known = active.policy.protection.event_names.id(name);
        let known = known.and_then(|id| u16::try_from(id).ok()).ok_or_else(|| {
            let detail = format!("found `{name}`, expected the name of an event of the policy");
            RequestError::new("event", detail)
        })?;
        let events = Events::from_iter([known]);
        let happened = self
            .happen(active, &report.request, &events, Told::Reported(report.value), None)
            .await?;
        Ok(happened.reported)
    }

    /// Sees the status of the upstream's answer to a request: counts the events that it makes, and
    /// says what they led to. Not for refusals of this limiter: those are no answers.
    ///
    /// # Errors
    /// The request cannot be understood.
    pub async fn answered(
        &self,
        request: &Request<'_>,
        status: u16,
    ) -> Result<Consequences, RequestError> {
        let active_policies = self.active_policies_of(request);
        let active = select(active_policies.policies(), request)?;
        if !active.guard.sees_answers {
            return Ok(Consequences::default());
        }
        let events = {
            let context = Context::gather(&active.policy, request)?;
            match precheck(&context) {
                Precheck::Exempt => Events::new(),
                Precheck::Blocked | Precheck::Ordinary => events::of_answer(&context, status),
            }
        };
        if events.is_empty() {
            return Ok(Consequences::default());
        }
        Ok(self.happen(active, request, &events, Told::Seen, None).await?.reported)
    }

    /// The decision after the events that it makes: a violation may pass by grace, start a ban, or be
    /// answered by a challenge.
    pub(super) async fn penalised(
        &self,
        request: &Request<'_>,
        decision: Decision,
        plan: &mut Plan,
    ) -> Decision {
        let active_policies = self.active_policies_of(request);
        let Ok(active) = select(active_policies.policies(), request) else { return decision };
        let events = Context::gather(&active.policy, request)
            .map(|context| events::of_decision(&context, &decision))
            .unwrap_or_default();
        let lost = decision.store_error.clone();
        let Ok(mut happened) = self.happen(active, request, &events, Told::Seen, lost).await else {
            return decision;
        };
        let mut decision = decision;
        let started = happened.ban.take().filter(|_| decision.outcome != Outcome::Blocked);
        let held = decision.ban().cloned().map(|ban| (ban, decision.now));
        let ban = longer(started, held);
        if let Some((_, now)) = &ban {
            decision.outcome = Outcome::Banned;
            // The ban's times are by this node's clock, not by the store's.
            decision.now = *now;
        } else if decision.outcome == Outcome::Limited && happened.reported.challenged {
            decision.outcome = Outcome::Challenged;
        } else if decision.outcome == Outcome::Limited
            && has_grace(active, &decision, &events, &happened)
        {
            let lost = happened.lost.take();
            decision = self.passed_by_grace(active, request, decision, plan, lost).await;
        }
        decision.degraded |= happened.reported.degraded;
        decision.penalise(happened.reported, ban.map(|(ban, _)| ban));
        decision
    }

    /// Whether a decision makes an event that somebody counts.
    pub(super) fn counts(&self, request: &Request<'_>, decision: &Decision, mode: Mode) -> bool {
        mode == Mode::Charge
            && !decision.is_allowed()
            && counts(&self.shared.policies.load(), request, decision.outcome)
    }

    /// Whether a refusal of a request would be counted, so that it may change how the next one is
    /// decided; what cannot be understood is not.
    #[must_use]
    pub fn counts_refusals(&self, request: &Request<'_>) -> bool {
        self.with_policy(request, |active| Ok(active.guard.counts_any())).unwrap_or(false)
    }

    /// Decides again, with the limits that are over only warning: the others are charged.
    async fn passed_by_grace(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        decision: Decision,
        plan: &mut Plan,
        lost: Option<StoreError>,
    ) -> Decision {
        if plan.mode == Mode::Peek {
            // Others wait for their turn, and nobody passes them.
            return decision;
        }
        for (level, report) in plan.levels.iter_mut().zip(&decision.limits) {
            if report.enforcement == Enforcement::Reject && !report.is_allowed() {
                level.enforcement = Enforcement::Warn;
            }
        }
        // What this process refused by itself had no names.
        if S::NAMES_KEYS
            && plan.names.is_empty()
            && let Ok(context) = Context::gather(&active.policy, request)
        {
            let moment = Moment::of(&plan.now);
            let planner = Planner::new(&context, &moment, active);
            plan.names = planner.names(&self.secret(), &plan.levels);
        }
        let open = decision.reopened(plan, request.reserve);
        let answered = match lost {
            Some(error) => Err(error),
            None => self.shared.store.decide(plan).await,
        };
        self.shared.conclude(open, plan, answered)
    }

    /// Counts events and judges them. Once the store has failed this request, it is not asked again: each
    /// call would wait for its own deadline.
    async fn happen(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        events: &Events,
        told: Told,
        lost: Option<StoreError>,
    ) -> Result<Happened, RequestError> {
        let (is_report, value) = match told {
            Told::Seen => (false, None),
            Told::Reported(value) => (true, value),
        };
        let mut happened = Happened { lost, ..Happened::default() };
        let protection = &active.policy.protection;
        let name = |id: &u16| protection.event_names.name(u32::from(*id)).to_owned();
        happened.reported.events = events.iter().map(name).collect();
        let tally = {
            let context = Context::gather(&active.policy, request)?;
            EventCounts::of(active, &context, events, value, S::NAMES_KEYS)
        };
        if let Some(error) = tally.unread.clone().filter(|_| is_report) {
            return Err(error);
        }
        if active.policy.enabled && !tally.is_empty() {
            self.judged(active, request, &tally, &mut happened).await?;
        }
        let context = Context::gather(&active.policy, request)?;
        let moment = Moment::of(&*self.shared.clock);
        let banned = active.guard.ban(&self.shared.marks, &context, &moment).is_some();
        happened.reported.banned = banned || happened.ban.is_some();
        Ok(happened)
    }

    fn active_policies_of(&self, request: &Request<'_>) -> ActivePolicies {
        match request.policies {
            Some(active_policies) => active_policies.clone(),
            None => ActivePolicies::new(Arc::clone(&self.shared.policies.load())),
        }
    }
}

/// The same on a store that answers at once, as plain calls.
impl<S: ImmediateStore> Limiter<S> {
    /// As [`report`](Self::report).
    ///
    /// # Errors
    /// As [`report`](Self::report).
    pub fn report_now(&self, report: &Report<'_>) -> Result<Consequences, RequestError> {
        at_once(self.report(report))
    }

    /// As [`answered`](Self::answered).
    ///
    /// # Errors
    /// As [`answered`](Self::answered).
    pub fn answered_now(
        &self,
        request: &Request<'_>,
        status: u16,
    ) -> Result<Consequences, RequestError> {
        at_once(self.answered(request, status))
    }
}

/// Whether a decision of this outcome makes an event that somebody counts.
#[inline]
pub(super) fn counts(policies: &[ActivePolicy], request: &Request<'_>, outcome: Outcome) -> bool {
    let policies = request.policies.map_or(policies, ActivePolicies::policies);
    !outcome.passes() && select(policies, request).is_ok_and(|active| active.guard.counts(outcome))
}

/// Whether grace covers all that a request has violated. What costs an attribute is never covered, and
/// neither is a ceiling.
fn has_grace(
    active: &ActivePolicy,
    decision: &Decision,
    made: &Events,
    happened: &Happened,
) -> bool {
    let protection = &active.policy.protection;
    let may = |limit: &Limit| {
        limit.algorithm != Algorithm::Ceiling && !matches!(limit.cost, Cost::Attribute(_))
    };
    let allowing = happened.allowing.iter().filter_map(|at| protection.penalties.get(*at));
    let events = allowing.flat_map(|penalty| &penalty.events).filter(|id| made.contains(id));
    let events = events.filter_map(|id| protection.events.get(usize::from(*id)));
    let events: Vec<_> = events.collect();
    let refuses =
        |report: &&LimitReport| report.enforcement == Enforcement::Reject && !report.is_allowed();
    let refusing = decision.limits.iter().filter(refuses).count();
    // What only lost its store is no violation, and nothing covers it.
    refusing == events::violations(decision).count()
        && events::violations(decision).all(|report| {
            events.iter().any(|event| events::of(event, report))
                && decision.limit_of(report).is_some_and(may)
        })
}
