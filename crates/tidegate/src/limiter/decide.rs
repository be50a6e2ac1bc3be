//! One request through all stages: identity and operation ([`facts`](crate::facts)) → standing →
//! plan, then the store (or its fallback), then the decision.
//!
//! What comes before the store and what comes after it are functions of their own, so that a store
//! that answers at once is a plain call, and only one that must be waited for needs a future.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::loaded::select_for;
use super::waiting::Ahead;
use super::{Shared, Ticket};
use crate::algorithm::Spec;
use crate::clock::Now;
use crate::decision::{Decision, Outcome};
use crate::events;
use crate::factors::{self, Times};
use crate::facts::Facts;
use crate::in_force::Loaded;
use crate::marks::Mark;
use crate::plan::{Level, Mode, Plan, Planner};
use crate::policy::Policy;
use crate::policy::model::{OperationId, TierId};
use crate::request::{Request, RequestError};
use crate::standing::{Standing, standing};
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
        now: Now,
        ticket: Ticket,
        patience: Patience,
        plan: &mut Plan,
    ) -> Result<Prepared, RequestError> {
        let (policies, mut answer) = (self.policies.load(), None);
        let loaded = select_for(&policies, request)?;
        let found = self.find(loaded, request, now, ticket, plan, |planner, plan| {
            answer = if loaded.leased { self.store.decide_at_once(plan) } else { None };
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
        loaded: &Loaded,
        request: &Request<'_>,
        now: Now,
        ticket: Ticket,
        plan: &mut Plan,
        asks: impl FnOnce(&Planner<'_>, &mut Plan),
    ) -> Result<Found, RequestError> {
        let policy = &*loaded.policy;
        let facts = Facts::gather_here(policy, request)?;
        facts.check_query()?;
        let mut found = Found {
            policy: Arc::clone(&loaded.policy),
            outcome: Outcome::Allowed,
            operation: facts.operation,
            tier: facts.tier,
            now,
            ban: None,
            ahead: None,
            reserve: request.reserve,
            may_change: false,
            times: Times::ONE,
            sees_answers: false,
        };
        match standing(&facts) {
            Standing::Exempt => found.outcome = Outcome::Exempt,
            Standing::Blocked => found.outcome = Outcome::Blocked,
            Standing::Ordinary => {
                if let Some(ban) = loaded.guard.ban(&self.marks, &facts, now) {
                    (found.outcome, found.ban) = (Outcome::Banned, Some(Box::new(ban)));
                }
            }
        }
        if found.outcome != Outcome::Allowed {
            return Ok(found);
        }
        found.sees_answers = loaded.guard.sees_answers && events::of_answers(&facts);
        if !policy.enabled {
            return Ok(found);
        }
        let mut planner = Planner::new(&facts, now, loaded);
        if !policy.protection.factors.is_empty() {
            planner.times = factors::of_request(loaded, &facts, &self.marks, now);
        }
        planner.levels(&mut plan.levels)?;
        if plan.levels.is_empty() {
            return Ok(found);
        }
        found.times = planner.times;
        found.ahead = self.waiting.ahead(&plan.levels, ticket);
        plan.now = now;
        found.may_change = may_change(plan, request.reserve);
        if found.may_change {
            plan.holder = self.holders.next();
        }
        if found.ahead.is_some() {
            plan.mode = Mode::Peek;
        }
        asks(&planner, plan);
        Ok(found)
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
