//! One request through all stages: identity and operation ([`facts`](crate::facts)) → standing →
//! plan, then the store (or its fallback), then the decision.
//!
//! What comes before the store and what comes after it are functions of their own, so that a store
//! that answers at once is a plain call, and only one that must be waited for needs a future.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::loaded::select;
use super::turn::HeldUp;
use super::waiting::{Ahead, let_past};
use super::{Shared, Ticket};
use crate::clock::Now;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::events::{self, Reported};
use crate::factors::{self, Times};
use crate::facts::Facts;
use crate::lease::Lease;
use crate::marks::Mark;
use crate::plan::{Level, Mode, Plan, Planner};
use crate::policy::Policy;
use crate::policy::model::{OperationId, TierId};
use crate::request::{Request, RequestError};
use crate::standing::{Standing, standing};
use crate::store::{Answer, Reply, Store, StoreError};

/// A request as far as it goes without the store.
#[allow(clippy::large_enum_variant, reason = "it is written once, in place, for every decision")]
pub(super) enum Prepared {
    /// No limit has a part in it.
    Decided(Decided),
    /// Its limits must be asked.
    Open(Open),
    /// This process held all that they took.
    Answered(Open, Answer),
}

/// A request that is decided without any limit.
pub(super) struct Decided {
    policy: Arc<Policy>,
    outcome: Outcome,
    operation: OperationId,
    tier: TierId,
    now: Now,
    sees_answers: bool,
    ban: Option<Box<Mark>>,
}

/// Whether the store is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Waits,
    /// If it must be, nothing is decided.
    None,
}

/// A request whose limits must be asked.
pub(super) struct Open {
    policy: Arc<Policy>,
    operation: OperationId,
    tier: TierId,
    /// Who waits for its keys already.
    ahead: Option<Ahead>,
    reserve: bool,
    times: Times,
    sees_answers: bool,
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
        let now_in_force;
        let policies = match request.in_force {
            Some(in_force) => in_force.policies(),
            None => {
                now_in_force = self.policies.load();
                &now_in_force
            }
        };
        let loaded = select(policies, request)?;
        let policy = Arc::clone(&loaded.policy);
        let facts = Facts::gather(&loaded.policy, request)?;
        let (operation, tier) = (facts.operation, facts.tier);
        let sees_answers = loaded.guard.sees_answers && events::of_answers(&facts);
        let decided = |policy, outcome: Outcome, ban| {
            let sees_answers = outcome == Outcome::Allowed && sees_answers;
            let decided = Decided { policy, outcome, operation, tier, now, sees_answers, ban };
            Ok(Prepared::Decided(decided))
        };
        match standing(&facts) {
            Standing::Exempt => return decided(policy, Outcome::Exempt, None),
            Standing::Blocked => return decided(policy, Outcome::Blocked, None),
            Standing::Ordinary => {}
        }
        if let Some(ban) = loaded.guard.ban(&self.marks, &facts, now) {
            return decided(policy, Outcome::Banned, Some(Box::new(ban)));
        }
        if !policy.enabled {
            return decided(policy, Outcome::Allowed, None);
        }
        let mut planner = Planner::new(&facts, now, &loaded.keys);
        if !policy.protection.factors.is_empty() {
            planner.times = factors::of_request(loaded, &facts, &self.marks, now);
        }
        let times = planner.times;
        planner.levels(&mut plan.levels)?;
        if plan.levels.is_empty() {
            return decided(policy, Outcome::Allowed, None);
        }
        let ahead = self.waiting.ahead(&plan.levels, ticket);
        (plan.now, plan.holder) = (now, self.holders.next());
        if ahead.is_some() {
            plan.mode = Mode::Peek;
        }
        let reserve = request.reserve;
        let open = Open { policy, operation, tier, ahead, reserve, times, sees_answers };
        let answer = if loaded.leased { self.store.decide_at_once(plan) } else { None };
        let may_change = || reserve || plan.levels.iter().any(|level: &Level| level.refundable);
        // What is decided here needs names only where it may be given back.
        let named = if answer.is_some() { may_change() } else { patience == Patience::Waits };
        if S::NAMES_KEYS && named {
            plan.names = planner.names(&self.secret.load(), &plan.levels);
        }
        Ok(match answer {
            Some(answer) => Prepared::Answered(open, answer),
            None => Prepared::Open(open),
        })
    }

    /// Everything after the store. Where it could not answer, each limit does without it.
    pub(super) fn conclude(
        &self,
        open: Open,
        plan: &mut Plan,
        answered: Result<Answer, StoreError>,
    ) -> Decision {
        match answered {
            Ok(mut answer) => {
                if !S::NEVER_LOST {
                    self.fallback.note(plan, &answer, self.clock.now());
                }
                open.conclude(plan, &mut answer, None)
            }
            Err(error) => {
                let nodes = self.nodes.load(Ordering::Relaxed);
                let whole = plan.levels.clone();
                let mut answer = self.fallback.decide(plan, nodes);
                let decision = open.conclude(plan, &mut answer, Some(error));
                // Whoever decides the plan again shares its limits out anew.
                plan.levels = whole;
                decision
            }
        }
    }
}

impl Decided {
    pub(super) fn decision(self) -> Decision {
        let Self { policy, outcome, operation, tier, now, sees_answers, ban } = self;
        let mut decision = Decision::without_limits(policy, outcome, operation, tier, now);
        decision.sees_answers = sees_answers;
        if let Some(ban) = ban {
            decision.penalise(Reported::default(), Some(*ban));
        }
        decision
    }
}

impl Open {
    /// The decision that an answer comes to.
    pub(super) fn conclude(
        self,
        plan: &Plan,
        answer: &mut Answer,
        store_error: Option<StoreError>,
    ) -> Decision {
        let Self { policy, operation, tier, ahead, reserve, times, sees_answers } = self;
        if let Some(ahead) = &ahead {
            let_past(ahead, plan, answer);
        }
        // A shared store has a wall clock to go by, but its steady time means nothing here.
        let now = Now { steady_us: plan.now.steady_us, ..answer.now };
        let mut decision = Decision::without_limits(policy, Outcome::Allowed, operation, tier, now);
        decision.conclude(reports(plan, answer));
        decision.times = times;
        decision.sees_answers = sees_answers;
        decision.degraded = store_error.is_some();
        decision.store_error = store_error;
        decision.lease = Lease::of(&decision.policy, plan, answer, reserve, decision.degraded);
        decision.held_up = HeldUp::of(&decision, &plan.levels);
        decision
    }
}

impl Decision {
    /// The request again, to be asked once more.
    pub(super) fn reopened(&self, reserve: bool) -> Open {
        let (policy, operation, tier) = (Arc::clone(&self.policy), self.operation, self.tier);
        let (times, sees_answers) = (self.times, self.sees_answers);
        Open { policy, operation, tier, ahead: None, reserve, times, sees_answers }
    }
}

fn reports(plan: &Plan, answer: &Answer) -> impl Iterator<Item = LimitReport> {
    let report = |(level, reply): (&Level, &Reply)| LimitReport {
        limit: level.limit,
        spec: level.spec,
        cost: level.cost,
        verdict: reply.verdict,
        charged: reply.charged,
        available: reply.reading.available,
        reset_us: reply.reading.reset_us,
        enforcement: level.enforcement,
    };
    plan.levels.iter().zip(&answer.replies).map(report)
}
