//! Waiting for a turn: no thread, no runtime, and the deadline is checked before the wait.
//!
//! A request that is refused joins the line of the key that holds it up the longest, unless the wait would
//! be too long. The request tries again when it is woken, or when that key should fit. Every try is a plan
//! of its own: all limits are charged then, or none. Only the last try is a decision that penalties see.

mod queue;
mod shared_queue;

use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

pub(super) use queue::{NEWCOMER, Ticket};
pub(super) use shared_queue::{Ahead, SharedQueue, WAITERS_MAX_DEFAULT, let_past};

use queue::{QueueKey, QueueMove};
use shared_queue::QueueTicket;

use super::Limiter;
use super::pipeline::{Attempt, Progress, Wait};
use crate::algorithm;
use crate::clock::Now;
use crate::context::Context;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::{Enforcement, Level, Mode};
use crate::request::{Request, RequestError};
use crate::store::Store;
use crate::units::Amount;

/// Requests that poll a shared store by themselves do so at most this often in all.
const POLL_SPACING_US: u64 = 250;

/// Lets time pass. A caller with a runtime brings its timer.
///
/// The timer may sleep somewhat longer than asked, as timers do.
pub trait Timer: Send + Sync {
    /// Ready after this long.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
}

/// A request that has had its turn.
#[derive(Debug)]
#[non_exhaustive]
pub struct Acquisition {
    /// What was decided in the end.
    pub decision: Decision,
    /// How long the request had waited by then.
    pub waited: Duration,
}

impl<S: Store> Limiter<S> {
    /// Decides a request, waiting for its turn if need be: first come, first served on each key of
    /// this node. The request is charged when all its limits fit at once. It is answered at once, as
    /// [`check_async`](Self::check_async) would, when the wait would be longer than `max_wait`. Without
    /// `max_wait`, the policy's `exceed: wait` says how long it may be.
    ///
    /// Dropping the future gives the place in the queue up.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs: a 400.
    pub async fn acquire<T: Timer>(
        &self,
        request: &Request<'_>,
        max_wait: Option<Duration>,
        timer: &T,
    ) -> Result<Acquisition, RequestError> {
        let mut context = self.context(request)?;
        match self.start(&context, max_wait.map_or(Wait::ByPolicy, Wait::AtMost))? {
            Progress::Decided(decision) => Ok(Acquisition { decision, waited: Duration::ZERO }),
            Progress::Pending(pending) => self.finish(&mut context, pending, timer).await,
        }
    }

    /// How many requests wait for their turn.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.inner.waiting.count()
    }
}

/// What holds a refused request up, where waiting may help.
#[derive(Clone, Copy, Debug)]
struct Obstacle {
    /// The key that holds the request up the longest.
    key: QueueKey,
    /// What the request costs there.
    cost: Amount,
    /// When that key should fit.
    fits_in_us: u64,
    /// The least that all keys together will take.
    least_us: u64,
}

impl Obstacle {
    /// What holds a request with these levels up; `None` if nothing does, or no waiting helps.
    fn of(decision: &Decision, levels: &[Level]) -> Option<Self> {
        if decision.outcome != Outcome::Limited {
            return None;
        }
        let longest = levels.get(decision.named?)?;
        let fits_in_us = decision.retry_after_us()?;
        let denied = decision
            .limits
            .iter()
            .filter(|report| report.enforcement == Enforcement::Reject && !report.is_allowed());
        // A place may be given back at any time, long before its time to live ends.
        let least_us = denied
            .filter(|report| !matches!(report.spec, algorithm::Spec::Concurrency(_)))
            .filter_map(LimitReport::retry_after_us);
        let least_us = least_us.max().unwrap_or(0);
        Some(Self { key: QueueKey::of(longest), cost: longest.cost, fits_in_us, least_us })
    }
}

/// One request that may wait. Dropping it gives its place in the queue up, and the next takes its turn.
#[derive(Debug)]
pub(crate) struct Turn<S> {
    limiter: Limiter<S>,
    started_us: u64,
    wait: Wait,
    ticket: Option<QueueTicket>,
}

impl<S: Store> Turn<S> {
    pub(crate) fn new(limiter: &Limiter<S>, started: Now, wait: Wait) -> Self {
        Self { limiter: limiter.clone(), started_us: started.steady_us, wait, ticket: None }
    }

    /// Waits until the request is decided. Its first try is made already.
    pub(super) async fn take<T: Timer>(
        mut self,
        context: &mut Context<'_>,
        attempt: Attempt,
        timer: &T,
    ) -> Result<Acquisition, RequestError> {
        let mut first = Some(attempt);
        loop {
            match self.advance(context, first.take()).await? {
                ControlFlow::Break(acquisition) => return Ok(acquisition),
                ControlFlow::Continue(until_us) => {
                    let sleep_us = until_us.saturating_sub(self.limiter.now().steady_us);
                    self.woken_or(timer.sleep(Duration::from_micros(sleep_us))).await;
                }
            }
        }
    }

    /// Tries to be charged. Breaks with the decision, or continues once the request is woken, at the
    /// latest at this steady time.
    pub(crate) async fn try_request(
        &mut self,
        request: &Request<'_>,
    ) -> Result<ControlFlow<Acquisition, u64>, RequestError> {
        self.advance(&mut self.limiter.context(request)?, None).await
    }

    async fn advance(
        &mut self,
        context: &mut Context<'_>,
        mut tried: Option<Attempt>,
    ) -> Result<ControlFlow<Acquisition, u64>, RequestError> {
        loop {
            let mut attempt = match tried.take() {
                Some(tried) => tried,
                None => self.attempt(context).await?,
            };
            let decision = attempt.conclude(context);
            let now_us = context.now.steady_us;
            let waited_us = now_us.saturating_sub(self.started_us);
            match self.join_line(context, &decision, &attempt, waited_us) {
                None => {
                    self.ticket = None;
                    let decision = self.limiter.penalise(context, &mut attempt, decision).await;
                    let waited = Duration::from_micros(waited_us);
                    return Ok(ControlFlow::Break(Acquisition { decision, waited }));
                }
                // What was given back in that line before has woken nobody: look again.
                Some((QueueMove::Moved, ..)) => {}
                Some((QueueMove::Stays { first }, fits_in_us, left_us)) => {
                    let poll_us = self.poll_us().unwrap_or(u64::MAX).min(fits_in_us.max(1));
                    let sleep_us = if first { poll_us.min(left_us) } else { left_us };
                    return Ok(ControlFlow::Continue(now_us.saturating_add(sleep_us)));
                }
            }
        }
    }

    /// One try under the policy that is in force now.
    async fn attempt(&self, context: &mut Context<'_>) -> Result<Attempt, RequestError> {
        if let Some(ticket) = &self.ticket {
            ticket.take_woken();
        }
        let inner = &self.limiter.inner;
        let active = inner.select(context.request)?;
        context.follow(active, self.limiter.now())?;
        let number = self.ticket.as_ref().map_or(NEWCOMER, QueueTicket::number);
        let mut attempt = Attempt::new(context, Mode::Charge);
        inner.try_decide(context, &mut attempt, number)?;
        inner.ask(context, &mut attempt).await;
        Ok(attempt)
    }

    /// How soon the first in a line polls the store by itself. Where many wait they do so more rarely, so
    /// that waiting requests never keep a shared store busy.
    fn poll_us(&self) -> Option<u64> {
        let waiters = u64::try_from(self.limiter.waiters()).unwrap_or(u64::MAX);
        let interval = self.limiter.inner.store.poll_interval()?;
        let us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
        Some(us.max(waiters.saturating_mul(POLL_SPACING_US)))
    }

    /// True if the request has been woken since its last try.
    pub(crate) fn is_woken(&self) -> bool {
        self.ticket.as_ref().is_some_and(QueueTicket::take_woken)
    }

    /// Joins the line of the key that holds the request up: how the request moved, when that key should
    /// fit, and how long the request may still wait. `None` where the request must be answered now.
    fn join_line(
        &mut self,
        context: &Context<'_>,
        decision: &Decision,
        attempt: &Attempt,
        waited_us: u64,
    ) -> Option<(QueueMove, u64, u64)> {
        let Obstacle { key, cost, fits_in_us, least_us } =
            Obstacle::of(decision, &attempt.plan.levels)?;
        let max_wait_us = match self.wait {
            Wait::Never => 0,
            Wait::ByPolicy => decision.wait_us()?,
            Wait::AtMost(wait) => u64::try_from(wait.as_micros()).unwrap_or(u64::MAX),
        };
        let left_us = max_wait_us.checked_sub(waited_us).filter(|left_us| *left_us > 0)?;
        if least_us > left_us {
            return None;
        }
        let moved = match &self.ticket {
            Some(ticket) => ticket.stand(key, cost),
            None => {
                let client = context.fair_client();
                self.ticket = Some(self.limiter.inner.waiting.join(client, key, cost)?);
                QueueMove::Moved
            }
        };
        Some((moved, fits_in_us, left_us))
    }

    /// Ready when the request is woken or the timer is.
    async fn woken_or(&self, timer: impl Future<Output = ()>) {
        let mut timer = pin!(timer);
        poll_fn(|task| {
            let ticket = self.ticket.as_ref();
            let woken = ticket.is_some_and(|ticket| ticket.poll_woken(task).is_ready());
            if woken { Poll::Ready(()) } else { timer.as_mut().poll(task) }
        })
        .await;
    }
}
