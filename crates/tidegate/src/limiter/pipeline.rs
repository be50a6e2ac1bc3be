//! One request through all stages, in one direction:
//!
//! ```text
//! context → precheck → plan → ask → conclude → penalise
//! ```
//!
//! A [`Context`] is made once and carried to the end. The stages up to *conclude* are plain functions:
//! [`Limiter::start`] runs them as far as they go without waiting. [`Limiter::finish`] waits for the
//! rest: for a store that is not ready, for the request's turn, and for the counts of its penalties. A
//! store in memory is always ready, so that [`Limiter::check`] is the same path in a plain call.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::conclude::Conclusion;
use super::waiting::{Acquisition, Ahead, NEWCOMER, Ticket, Timer, Turn};
use super::{Inner, Limiter, block_on_ready};
use crate::active_policy::ActivePolicy;
use crate::algorithm::Spec;
use crate::body_need::check_ambiguity;
use crate::context::Context;
use crate::decision::{Decision, Outcome};
use crate::plan::{Level, Mode, PerLevel, Plan, Planner};
use crate::policy::Limit;
use crate::precheck::{Precheck, precheck};
use crate::protection::factors::{self, Multiplier};
use crate::request::{Request, RequestError};
use crate::store::{Answer, ImmediateStore, Store, StoreError};

/// Whether a refused request may wait for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The request is refused, and told when to come back.
    Never,
    /// The request waits as long as the policy's `exceed: wait` says.
    ByPolicy,
    /// The request waits for at most this long.
    AtMost(Duration),
}

/// How far a request gets without waiting.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly every request is decided at once")]
pub enum Progress {
    /// The request is decided.
    Decided(Decision),
    /// Something must be waited for.
    Pending(Pending),
}

/// A request that waits. [`Limiter::finish`] goes on with it.
#[derive(Debug)]
pub struct Pending {
    /// The policy of the plan: [`Limiter::finish`] goes on under it, whatever is in force by then.
    active: Arc<ActivePolicy>,
    attempt: Box<Attempt>,
    wait: Wait,
}

impl Pending {
    // Not inlined: few requests wait, and the copy onto the heap would be code of all.
    #[inline(never)]
    fn new(context: &Context<'_>, attempt: Attempt, wait: Wait) -> Self {
        Self { active: Arc::clone(&context.active), attempt: Box::new(attempt), wait }
    }

    /// True if the request may wait for its turn, and not only for the store.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.wait != Wait::Never
    }
}

/// One plan of a request on its way through the stages. Each stage fills its part where it stands: plan and
/// answer are too large to be copied from stage to stage.
#[derive(Debug)]
pub(super) struct Attempt {
    /// True if the request is to be charged. The plan of a request behind others that wait only peeks.
    pub(super) charges: bool,
    pub(super) precheck: Precheck,
    pub(super) plan: Plan,
    /// The factors that apply, multiplied.
    pub(super) factor: Multiplier,
    /// What the requests that wait for the same keys want, where there are any.
    pub(super) ahead: Option<Ahead>,
    /// True if something of the plan may be settled, released or refunded.
    pub(super) may_change: bool,
    /// The answer of the store, or of this node without it.
    pub(super) answer: Answer,
    /// Why the store is lost, if it is.
    pub(super) store_error: Option<StoreError>,
    /// The levels as the policy has them, where the plan has this node's shares without the store.
    pub(super) whole_levels: Option<PerLevel<Level>>,
    /// What the answer comes to; `None` while the store is waited for.
    pub(super) conclusion: Option<Conclusion>,
}

impl Attempt {
    // Inlined, as what it is made of, so that it is written where it stays.
    #[inline(always)]
    pub(super) fn new(context: &Context<'_>, mode: Mode) -> Self {
        let mut attempt = Self {
            charges: mode == Mode::Charge,
            precheck: Precheck::Ordinary,
            plan: Plan::new(mode),
            factor: Multiplier::ONE,
            ahead: None,
            may_change: false,
            answer: Answer::empty(),
            store_error: None,
            whole_levels: None,
            conclusion: None,
        };
        attempt.plan.now = context.now;
        attempt
    }

    /// True if the request is decided: nothing is waited for, and no penalty counts the decision.
    #[inline]
    fn is_final(&self, context: &Context<'_>, wait: Wait) -> bool {
        let Some(conclusion) = &self.conclusion else { return false };
        conclusion.outcome.passes()
            || !self.counts(context, conclusion.outcome) && !self.may_wait(context, wait)
    }

    /// True if a decision of this outcome makes an event that a penalty counts.
    pub(super) fn counts(&self, context: &Context<'_>, outcome: Outcome) -> bool {
        self.charges && !outcome.passes() && context.active.protection.counts(outcome)
    }

    /// True if a refused request may be worth its wait.
    fn may_wait(&self, context: &Context<'_>, wait: Wait) -> bool {
        let is_limited = |conclusion: &Conclusion| conclusion.outcome == Outcome::Limited;
        self.conclusion.as_ref().is_some_and(is_limited)
            && match wait {
                Wait::Never => false,
                Wait::ByPolicy => self.refusing(context).all(Limit::lets_wait),
                Wait::AtMost(_) => true,
            }
    }
}

impl<S: Store> Limiter<S> {
    /// Everything that is known of a request, found once and used for all calls about it.
    ///
    /// # Errors
    /// The request cannot be understood, or names a policy that is not in force: a 400.
    #[inline]
    pub fn context<'r>(&self, request: &'r Request<'r>) -> Result<Context<'r>, RequestError> {
        Context::new(self.inner.select(request)?, request, self.now())
    }

    /// Decides a request as far as that needs no waiting.
    ///
    /// # Errors
    /// The request lacks what a limit needs: a 400.
    #[inline]
    pub fn start(&self, context: &Context<'_>, wait: Wait) -> Result<Progress, RequestError> {
        self.start_in(context, Mode::Charge, wait)
    }

    #[inline]
    pub(super) fn start_in(
        &self,
        context: &Context<'_>,
        mode: Mode,
        wait: Wait,
    ) -> Result<Progress, RequestError> {
        let mut attempt = Attempt::new(context, mode);
        self.inner.try_decide(context, &mut attempt, NEWCOMER)?;
        if attempt.is_final(context, wait) {
            return Ok(Progress::Decided(attempt.conclude(context)));
        }
        Ok(Progress::Pending(Pending::new(context, attempt, wait)))
    }

    /// Decides a request that had to wait.
    ///
    /// # Errors
    /// The request lacks what a limit needs, by a policy that came into force while it waited: a 400.
    pub async fn finish<T: Timer>(
        &self,
        context: &mut Context<'_>,
        pending: Pending,
        timer: &T,
    ) -> Result<Acquisition, RequestError> {
        let Pending { active, mut attempt, wait } = pending;
        context.follow(active, attempt.plan.now)?;
        self.inner.ask(context, &mut attempt).await;
        if attempt.may_wait(context, wait) {
            let turn = Turn::new(self, context.now, wait);
            return turn.take(context, *attempt, timer).await;
        }
        let decision = attempt.conclude(context);
        let decision = self.penalise(context, &mut attempt, decision).await;
        Ok(Acquisition { decision, waited: Duration::ZERO })
    }

    /// Decides a request, and charges it if it passes. The store may have to be waited for.
    ///
    /// A request is refused while others [wait](Self::acquire) for one of its keys.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs: a 400.
    pub async fn check_async(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.decide_in(request, Mode::Charge).await
    }

    /// Decides a request without charging it. The store may have to be waited for.
    ///
    /// # Errors
    /// As [`check_async`](Self::check_async).
    pub async fn peek_async(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.decide_in(request, Mode::Peek).await
    }

    async fn decide_in(&self, request: &Request<'_>, mode: Mode) -> Result<Decision, RequestError> {
        let context = self.context(request)?;
        // The future must not hold the progress while it waits: thousands of them may wait.
        let finishing = match self.start_in(&context, mode, Wait::Never)? {
            Progress::Decided(decision) => return Ok(decision),
            Progress::Pending(pending) => self.finish_now(&context, pending),
        };
        Ok(finishing.await)
    }

    /// Decides a request that waits for the store or its penalties alone.
    // Boxed: a future has room for everything that it may wait for, and few requests wait.
    fn finish_now<'f>(
        &'f self,
        context: &'f Context<'_>,
        pending: Pending,
    ) -> Pin<Box<dyn Future<Output = Decision> + Send + 'f>> {
        Box::pin(async move {
            let mut attempt = pending.attempt;
            self.inner.ask(context, &mut attempt).await;
            let decision = attempt.conclude(context);
            self.penalise(context, &mut attempt, decision).await
        })
    }

    /// True if a refusal of the request would be counted, so that it may change how the next request is
    /// decided.
    #[must_use]
    pub fn counts_refusals(&self, request: &Request<'_>) -> bool {
        self.inner.select(request).is_ok_and(|active| active.protection.counts_any())
    }
}

/// The same on a store that answers at once, in plain calls.
impl<S: ImmediateStore> Limiter<S> {
    /// Decides a request, and charges it if it passes.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs: a 400.
    pub fn check(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.check_context(&self.context(request)?, Mode::Charge)
    }

    /// Decides a request without charging it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn peek(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.check_context(&self.context(request)?, Mode::Peek)
    }

    #[inline]
    pub(super) fn check_context(
        &self,
        context: &Context<'_>,
        mode: Mode,
    ) -> Result<Decision, RequestError> {
        let mut attempt = Attempt::new(context, mode);
        self.inner.try_decide(context, &mut attempt, NEWCOMER)?;
        if attempt.is_final(context, Wait::Never) {
            return attempt.conclude_ok(context);
        }
        let pending = Pending::new(context, attempt, Wait::Never);
        Ok(block_on_ready(self.finish_now(context, pending)))
    }
}

impl<S: Store> Inner<S> {
    /// Every stage up to the answer of a store that need not be waited for.
    #[inline]
    pub(super) fn try_decide(
        &self,
        context: &Context<'_>,
        attempt: &mut Attempt,
        ticket: Ticket,
    ) -> Result<(), RequestError> {
        check_ambiguity(context, &self.marks)?;
        attempt.precheck = precheck(context, &self.marks);
        if attempt.precheck == Precheck::Ordinary && context.policy().enabled {
            self.plan(context, attempt, ticket)?;
        }
        self.try_ask(context, attempt);
        Ok(())
    }

    /// Plan: the levels of the limits that apply.
    #[inline]
    fn plan(
        &self,
        context: &Context<'_>,
        attempt: &mut Attempt,
        ticket: Ticket,
    ) -> Result<(), RequestError> {
        let plan = &mut attempt.plan;
        for penalty in &context.active.protection.refusing {
            context.policy().protection.penalties[*penalty].check_request(context)?;
        }
        let mut planner = Planner::new(context);
        if !context.policy().protection.factors.is_empty() {
            planner.factor = factors::of_request(context, &self.marks);
        }
        planner.levels(&mut plan.levels)?;
        if plan.levels.is_empty() {
            return Ok(());
        }
        let reserve = context.request.reserve;
        attempt.factor = planner.factor;
        attempt.may_change = (context.active.changes || reserve) && may_change(plan, reserve);
        if attempt.may_change {
            plan.holder = self.holders.next();
        }
        attempt.ahead = self.waiting.ahead(&plan.levels, ticket);
        if attempt.ahead.is_some() {
            plan.mode = Mode::Peek;
        }
        Ok(())
    }

    /// Ask, where the store need not be waited for. Otherwise the attempt has no conclusion.
    #[inline]
    fn try_ask(&self, context: &Context<'_>, attempt: &mut Attempt) {
        if attempt.plan.levels.is_empty() {
            return attempt.judge(context);
        }
        if !self.store.is_immediate() && !context.active.leased {
            return;
        }
        let tables = context.active.tables.get();
        let answered = self.store.try_decide(&attempt.plan, tables, &mut attempt.answer);
        if let Some(answered) = answered {
            if attempt.may_change {
                self.name_keys(context, &mut attempt.plan);
            }
            self.judge_answer(context, attempt, answered);
        }
    }

    /// Ask, where the store must be waited for. An attempt that has its conclusion asks nothing.
    pub(super) async fn ask(&self, context: &Context<'_>, attempt: &mut Attempt) {
        if attempt.conclusion.is_some() {
            return;
        }
        self.name_keys(context, &mut attempt.plan);
        let answered = match attempt.store_error.take() {
            // A store that failed this request before is not asked again: each call would wait for its
            // own deadline.
            Some(error) => Err(error),
            None => self.store.decide(&attempt.plan).await.map(|answer| attempt.answer = answer),
        };
        self.judge_answer(context, attempt, answered);
    }

    /// Gives the keys of a plan their names, once, for a store that has names.
    fn name_keys(&self, context: &Context<'_>, plan: &mut Plan) {
        if self.store.names_keys() && plan.names.is_empty() {
            plan.names = crate::plan::key_names(context, &self.secret.load(), &plan.levels);
        }
    }

    /// What the answer comes to. Where the store could not answer, each limit does what its
    /// `on_store_failure` says.
    #[inline]
    fn judge_answer(
        &self,
        context: &Context<'_>,
        attempt: &mut Attempt,
        answered: Result<(), StoreError>,
    ) {
        match answered {
            Ok(()) if self.store.is_never_lost() => {}
            Ok(()) => self.fallback.note(&attempt.plan, &attempt.answer, self.clock.now()),
            Err(error) => self.decide_without_store(attempt, error),
        }
        attempt.judge(context);
    }

    #[cold]
    fn decide_without_store(&self, attempt: &mut Attempt, error: StoreError) {
        let nodes = self.nodes.load(Ordering::Relaxed);
        attempt.store_error = Some(error);
        attempt.whole_levels = Some(attempt.plan.levels.clone());
        attempt.answer = self.fallback.decide(&mut attempt.plan, nodes);
    }
}

/// True if something of a plan may be given back, settled or held.
fn may_change(plan: &Plan, reserve: bool) -> bool {
    let may = |level: &Level| level.refundable || matches!(level.spec, Spec::Concurrency(_));
    reserve || plan.levels.iter().any(may)
}
