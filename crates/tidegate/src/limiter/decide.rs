//! One request through all stages: identity and operation ([`context`](crate::context)) → standing →
//! plan, then the store (or its fallback), then the decision.
//!
//! What comes before the store and what comes after it are functions of their own, so that a store
//! that answers at once is a plain call, and only one that must be waited for needs a future.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::activate::select_for;
use super::waiting::Ahead;
use super::{Shared, Ticket};
use crate::active_policy::ActivePolicy;
use crate::algorithm::Spec;
use crate::clock::{Moment, Now};
use crate::context::Context;
use crate::decision::{Decision, Outcome};
use crate::plan::{Level, Mode, Plan, Planner};
use crate::policy::Policy;
use crate::policy::model::{OperationId, TierId};
use crate::precheck::{Precheck, precheck};
use crate::protection::events;
use crate::protection::factors::{self, Times};
use crate::protection::marks::Mark;
use crate::request::{Request, RequestError};
use crate::store::{Answer, Store, StoreError};

/// A request as far as it goes without the store.
#[allow(clippy::large_enum_variant, reason = "it is written once, in place, for every decision")]
pub(super) enum Prepared {
    /// No limit has a part in it.
    Decided(Found),
    /// Its limits must be asked.
    Open(Found),
    /// This process held all that they took.
    Answered(Found, Answer),
}

/// What is found out about a request before its limits are asked. Where it has none, that is all.
pub(super) struct Found {
    pub(super) policy: Arc<Policy>,
    pub(super) outcome: Outcome,
    pub(super) operation: OperationId,
    pub(super) tier: TierId,
    pub(super) now: Now,
    pub(super) ban: Option<Box<Mark>>,
    /// Who waits for its keys already.
    pub(super) ahead: Option<Ahead>,
    pub(super) reserve: bool,
    /// Whether something of its plan may be given back, settled or held.
    pub(super) may_change: bool,
    pub(super) times: Times,
    pub(super) sees_answers: bool,
}

/// Whether the store is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Waits,
    /// If it must be, nothing is decided.
    None,
}

impl<S: Store> Shared<S> {
    /// Everything before the store. The plan, which says whether to charge, is filled where it
    /// stands: it is too large to be moved.
    pub(super) fn prepare(
        &self,
        request: &Request<'_>,
        ticket: Ticket,
        patience: Patience,
        plan: &mut Plan,
    ) -> Result<Prepared, RequestError> {
        let (policies, mut answer) = (self.policies.load(), None);
        let moment = Moment::of(&*self.clock);
        let active = select_for(&policies, request)?;
        let found = self.find(active, request, &moment, ticket, plan, |planner, plan| {
            answer = if active.leased { self.store.decide_at_once(plan) } else { None };
            // What is decided here needs names only where it may be given back.
            let named = match answer {
                Some(_) => may_change(plan, request.reserve),
                None => patience == Patience::Waits,
            };
            if S::NAMES_KEYS && named {
                plan.names = planner.names(&self.secret.load(), &plan.levels);
            }
        })?;
        Ok(match answer {
            Some(answer) => Prepared::Answered(found, answer),
            None if plan.levels.is_empty() => Prepared::Decided(found),
            None => Prepared::Open(found),
        })
    }

    /// Finds identity, operation, standing and levels, of which there are none where the request is
    /// decided without them; `asks` is told before the store is.
    #[inline]
    pub(super) fn find(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        moment: &Moment<'_>,
        ticket: Ticket,
        plan: &mut Plan,
        asks: impl FnOnce(&Planner<'_>, &mut Plan),
    ) -> Result<Found, RequestError> {
        let policy = &*active.policy;
        let context = Context::gather_here(policy, request)?;
        context.check_query()?;
        let (outcome, ban) = match precheck(&context) {
            Precheck::Exempt => (Outcome::Exempt, None),
            Precheck::Blocked => (Outcome::Blocked, None),
            Precheck::Ordinary => match active.guard.ban(&self.marks, &context, moment) {
                Some(ban) => (Outcome::Banned, Some(Box::new(ban))),
                None => (Outcome::Allowed, None),
            },
        };
        let passes = outcome == Outcome::Allowed;
        let (mut times, mut ahead, mut changes) = (Times::ONE, None, false);
        if passes && policy.enabled {
            let mut planner = Planner::new(&context, moment, active);
            if !policy.protection.factors.is_empty() {
                planner.times = factors::of_request(active, &context, &self.marks, moment.now());
            }
            planner.levels(&mut plan.levels)?;
            if !plan.levels.is_empty() {
                times = planner.times;
                ahead = self.waiting.ahead(&plan.levels, ticket);
                changes = (active.changes || request.reserve) && may_change(plan, request.reserve);
                // The memory of its keys is on its way meanwhile.
                plan.now = moment.now();
                if changes {
                    plan.holder = self.holders.next();
                }
                if ahead.is_some() {
                    plan.mode = Mode::Peek;
                }
                asks(&planner, plan);
            }
        }
        Ok(Found {
            policy: Arc::clone(&active.policy),
            outcome,
            operation: context.operation,
            tier: context.tier,
            now: moment.now(),
            ban,
            ahead,
            reserve: request.reserve,
            may_change: changes,
            times,
            sees_answers: passes && active.guard.sees_answers && events::of_answers(&context),
        })
    }

    /// Everything after the store. Where it could not answer, each limit does without it.
    pub(super) fn conclude(
        &self,
        found: Found,
        plan: &mut Plan,
        mut answered: Result<Answer, StoreError>,
    ) -> Decision {
        match &mut answered {
            Ok(answer) => {
                self.note(plan, answer);
                found.conclude(plan, answer, None)
            }
            Err(error) => self.conclude_without(found, plan, error.clone()),
        }
    }

    /// Remembers what the store said, if it may be lost.
    #[inline]
    pub(super) fn note(&self, plan: &Plan, answer: &Answer) {
        if !S::NEVER_LOST {
            self.fallback.note(plan, answer, self.clock.now());
        }
    }

    /// The decision without the store, which could not answer.
    #[cold]
    pub(super) fn conclude_without(
        &self,
        found: Found,
        plan: &mut Plan,
        error: StoreError,
    ) -> Decision {
        let nodes = self.nodes.load(Ordering::Relaxed);
        let whole = plan.levels.clone();
        let mut answer = self.fallback.decide(plan, nodes);
        let decision = found.conclude(plan, &mut answer, Some(error));
        // Whoever decides the plan again shares its limits out anew.
        plan.levels = whole;
        decision
    }
}

/// Whether something of a plan may be given back, settled or held.
pub(super) fn may_change(plan: &Plan, reserve: bool) -> bool {
    let may = |level: &Level| level.refundable || matches!(level.spec, Spec::Concurrency(_));
    reserve || plan.levels.iter().any(may)
}
