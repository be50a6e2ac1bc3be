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

use super::conclude::conclude;
use super::waiting::{Acquisition, Ahead, NEWCOMER, Ticket, Timer, Turn};
use super::{Inner, Limiter, block_on_ready};
use crate::active_policy::ActivePolicy;
use crate::algorithm::Spec;
use crate::context::Context;
use crate::decision::{Decision, Outcome};
use crate::plan::{Level, Mode, Plan, Planner};
use crate::precheck::{Precheck, precheck};
use crate::protection::factors::{self, Times};
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
    /// The decision of the limits, where only a turn or penalties are open.
    decision: Option<Decision>,
    wait: Wait,
}

impl Pending {
    /// True if the request may wait for its turn, and not only for the store.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.wait != Wait::Never
    }
}

/// One plan of a request, and what the stages before the store found.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) plan: Plan,
    pub(super) precheck: Precheck,
    /// The factors that apply, multiplied.
    pub(super) factor: Times,
    /// What the requests that wait for the same keys want, where there are any.
    pub(super) ahead: Option<Ahead>,
    /// True if something of the plan may be settled, released or refunded.
    pub(super) may_change: bool,
    /// True if the request is to be charged. The plan of a request behind others that wait only peeks.
    pub(super) charges: bool,
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
        let mut attempt = self.inner.plan(context, mode, NEWCOMER)?;
        match self.inner.try_ask(context, &mut attempt) {
            Some(decision) if !may_wait(&decision, wait) && !attempt.counts(context, &decision) => {
                Ok(Progress::Decided(decision))
            }
            decision => {
                let (active, attempt) = (Arc::clone(&context.active), Box::new(attempt));
                Ok(Progress::Pending(Pending { active, attempt, decision, wait }))
            }
        }
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
        let Pending { active, mut attempt, decision, wait } = pending;
        context.follow(active, attempt.plan.now)?;
        let decision = match decision {
            Some(decision) => decision,
            None => self.inner.ask(context, &mut attempt, None).await,
        };
        if may_wait(&decision, wait) {
            let turn = Turn::new(self, context.now, wait);
            return turn.take(context, *attempt, decision, timer).await;
        }
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
            let Pending { mut attempt, decision, .. } = pending;
            let decision = match decision {
                Some(decision) => decision,
                None => self.inner.ask(context, &mut attempt, None).await,
            };
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
        match self.start_in(context, mode, Wait::Never)? {
            Progress::Decided(decision) => Ok(decision),
            Progress::Pending(pending) => Ok(block_on_ready(self.finish_now(context, pending))),
        }
    }
}

impl<S: Store> Inner<S> {
    /// Precheck and plan. A request that is settled by the precheck has no levels.
    #[inline]
    pub(super) fn plan(
        &self,
        context: &Context<'_>,
        mode: Mode,
        ticket: Ticket,
    ) -> Result<Attempt, RequestError> {
        let mut attempt = Attempt {
            plan: Plan { now: context.now, ..Plan::new(mode) },
            precheck: precheck(context, &self.marks),
            factor: Times::ONE,
            ahead: None,
            may_change: false,
            charges: mode == Mode::Charge,
        };
        let policy = context.policy();
        if attempt.precheck != Precheck::Ordinary || !policy.enabled {
            return Ok(attempt);
        }
        let mut planner = Planner::new(context);
        if !policy.protection.factors.is_empty() {
            planner.factor = factors::of_request(context, &self.marks);
        }
        let plan = &mut attempt.plan;
        planner.levels(&mut plan.levels)?;
        if plan.levels.is_empty() {
            return Ok(attempt);
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
        Ok(attempt)
    }

    /// Asks the store where it need not be waited for, and concludes; `None` where it must be.
    #[inline]
    pub(super) fn try_ask(&self, context: &Context<'_>, attempt: &mut Attempt) -> Option<Decision> {
        if attempt.plan.levels.is_empty() {
            return Some(conclude(context, attempt, None, None));
        }
        if !self.store.is_immediate() && !context.active.leased {
            return None;
        }
        let mut answer = Answer::empty();
        let tables = context.active.tables.get();
        let answered = self.store.try_decide(&attempt.plan, tables, &mut answer)?;
        if attempt.may_change {
            self.name_keys(context, &mut attempt.plan);
        }
        match answered {
            Ok(()) => Some(self.conclude_answer(context, attempt, answer)),
            Err(error) => Some(self.conclude_without_store(context, attempt, error)),
        }
    }

    /// Asks the store, and concludes. A store that failed this request before is not asked again: each
    /// call would wait for its own deadline.
    pub(super) async fn ask(
        &self,
        context: &Context<'_>,
        attempt: &mut Attempt,
        store_error: Option<StoreError>,
    ) -> Decision {
        self.name_keys(context, &mut attempt.plan);
        let answered = match store_error {
            Some(error) => Err(error),
            None => self.store.decide(&attempt.plan).await,
        };
        match answered {
            Ok(answer) => self.conclude_answer(context, attempt, answer),
            Err(error) => self.conclude_without_store(context, attempt, error),
        }
    }

    /// Gives the keys of a plan their names, once, for a store that has names.
    fn name_keys(&self, context: &Context<'_>, plan: &mut Plan) {
        if self.store.names_keys() && plan.names.is_empty() {
            plan.names = crate::plan::key_names(context, &self.secret.load(), &plan.levels);
        }
    }

    #[inline]
    fn conclude_answer(
        &self,
        context: &Context<'_>,
        attempt: &mut Attempt,
        mut answer: Answer,
    ) -> Decision {
        if !self.store.is_never_lost() {
            self.fallback.note(&attempt.plan, &answer, self.clock.now());
        }
        conclude(context, attempt, Some(&mut answer), None)
    }

    /// The store could not answer: each limit does what its `on_store_failure` says.
    #[cold]
    fn conclude_without_store(
        &self,
        context: &Context<'_>,
        attempt: &mut Attempt,
        error: StoreError,
    ) -> Decision {
        let nodes = self.nodes.load(Ordering::Relaxed);
        let levels = attempt.plan.levels.clone();
        let mut answer = self.fallback.decide(&mut attempt.plan, nodes);
        let decision = conclude(context, attempt, Some(&mut answer), Some(error));
        // The fallback made this node's shares of the limits. A later try divides the whole again.
        attempt.plan.levels = levels;
        decision
    }
}

impl Attempt {
    /// True if the decision makes an event that a penalty counts.
    #[inline]
    pub(super) fn counts(&self, context: &Context<'_>, decision: &Decision) -> bool {
        self.charges && !decision.is_allowed() && context.active.protection.counts(decision.outcome)
    }
}

/// True if a refused request may be worth its wait.
fn may_wait(decision: &Decision, wait: Wait) -> bool {
    decision.outcome == Outcome::Limited
        && match wait {
            Wait::Never => false,
            Wait::ByPolicy => decision.wait().is_some(),
            Wait::AtMost(_) => true,
        }
}

/// True if something of a plan may be given back, settled or held.
fn may_change(plan: &Plan, reserve: bool) -> bool {
    let may = |level: &Level| level.refundable || matches!(level.spec, Spec::Concurrency(_));
    reserve || plan.levels.iter().any(may)
}
