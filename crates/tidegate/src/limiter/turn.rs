//! Waiting for one's turn: no thread, no runtime, and the deadline is looked at before the wait.
//!
//! A turn tries to be charged. Refused, it takes a place in the line of the key that holds it up
//! the longest, unless the wait would be too long, and tries again when it is woken or that key
//! should fit. Every try is a decision of its own: all limits are charged then, or none.

use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::Limiter;
use super::queue::{Place, Stood};
use super::waiting::Spot;
use crate::algorithm;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::{Enforcement, Level, Mode, Plan};
use crate::request::{Request, RequestError};
use crate::store::Store;
use crate::units::Amount;

/// All who look again by themselves do so about this far apart, at most.
const LOOKS_APART_US: u64 = 250;

/// Lets time pass; whoever has a runtime brings one.
///
/// It may sleep somewhat longer than asked, as timers do.
pub trait Timer: Send + Sync {
    /// Ready after this many microseconds.
    fn sleep_us(&self, us: u64) -> impl Future<Output = ()> + Send;
}

/// A request that has had its turn.
#[derive(Debug)]
#[non_exhaustive]
pub struct Acquisition {
    /// What was decided in the end.
    pub decision: Decision,
    /// How long it had waited by then.
    pub waited: Duration,
}

/// What holds a refused request up, where waiting may cure it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldUp {
    /// The key that does so the longest.
    place: Place,
    /// What the request costs there.
    cost: Amount,
    /// When that key should fit.
    fits_in_us: u64,
    /// The least that it will take in all.
    least_us: u64,
}

impl HeldUp {
    /// What holds a request up, whose levels these are; `None` if nothing does, or no waiting helps.
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
        // A place may be given back at any time, long before its lease runs out.
        let least_us = denied
            .filter(|report| !matches!(report.spec, algorithm::Spec::Concurrency(_)))
            .filter_map(LimitReport::retry_after_us);
        let least_us = least_us.max().unwrap_or(0);
        Some(Self { place: Place::of(longest), cost: longest.cost, fits_in_us, least_us })
    }
}

/// One request that may wait. Dropping it gives its place up, and the next takes its turn.
#[derive(Debug)]
pub(crate) struct Turn<S> {
    limiter: Limiter<S>,
    started_us: u64,
    /// How long it may wait; left out: as long as the policy lets it.
    max_wait_us: Option<u64>,
    spot: Option<Spot>,
}

impl<S: Store> Limiter<S> {
    /// Decides a request, waiting for its turn if need be: first come, first served on each key of
    /// this node. It is charged when all its limits fit at once, and answered at once, as
    /// [`decide`](Self::decide) would, when the wait would be longer than `max_wait`. Left out, the
    /// policy's `exceed: wait` says how long it may be.
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
        let mut turn = self.turn(max_wait);
        loop {
            match turn.attempt(request).await? {
                ControlFlow::Break(acquired) => return Ok(acquired),
                ControlFlow::Continue(until_us) => {
                    let sleep_us = until_us.saturating_sub(self.now().steady_us);
                    turn.woken_or(timer.sleep_us(sleep_us)).await;
                }
            }
        }
    }

    pub(crate) fn turn(&self, max_wait: Option<Duration>) -> Turn<S> {
        let max_wait_us = max_wait.map(|wait| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
        Turn { limiter: self.clone(), started_us: self.now().steady_us, max_wait_us, spot: None }
    }
}

impl<S: Store> Turn<S> {
    /// Tries to be charged. Breaks with the answer, or continues once it is woken, at the latest at
    /// this steady time.
    pub(crate) async fn attempt(
        &mut self,
        request: &Request<'_>,
    ) -> Result<ControlFlow<Acquisition, u64>, RequestError> {
        loop {
            let now_us = self.limiter.now().steady_us;
            let waited_us = now_us.saturating_sub(self.started_us);
            if let Some(spot) = &self.spot {
                spot.take_woken();
            }
            let ticket = Spot::ticket(self.spot.as_ref());
            let mut plan = Plan::new(Mode::Charge);
            let decision = self.limiter.decide_in_turn(request, ticket, &mut plan).await?;
            let stood = match self.worth_waiting(&decision, &plan, waited_us) {
                Some((held_up, left_us)) => {
                    self.stand(&held_up).map(|stood| (stood, held_up.fits_in_us, left_us))
                }
                None => None,
            };
            match stood {
                None => {
                    self.spot = None;
                    // Who still waits has violated nothing.
                    let decision = if self.limiter.counts(request, &decision, Mode::Charge) {
                        Box::pin(self.limiter.penalised(request, decision, &mut plan)).await
                    } else {
                        decision
                    };
                    let waited = Duration::from_micros(waited_us);
                    return Ok(ControlFlow::Break(Acquisition { decision, waited }));
                }
                // What was given back there in the meantime has woken nobody: look again.
                Some((Stood::Moved, ..)) => {}
                Some((Stood::Stays { first }, fits_in_us, left_us)) => {
                    let looks_us = self.looks_again_us().unwrap_or(u64::MAX).min(fits_in_us.max(1));
                    let sleep_us = if first { looks_us.min(left_us) } else { left_us };
                    return Ok(ControlFlow::Continue(now_us.saturating_add(sleep_us)));
                }
            }
        }
    }

    /// How soon the first in a line looks again by itself. Where many wait they do so more rarely, so
    /// that those who wait never keep a shared store busy.
    fn looks_again_us(&self) -> Option<u64> {
        let waiters = u64::try_from(self.limiter.waiters()).unwrap_or(u64::MAX);
        S::LOOK_AGAIN_US.map(|us| us.max(waiters.saturating_mul(LOOKS_APART_US)))
    }

    /// Whether it has been woken since its last try.
    pub(crate) fn is_woken(&self) -> bool {
        self.spot.as_ref().is_some_and(Spot::take_woken)
    }

    /// What holds it up and how long it may still wait; `None` where it must be answered now.
    fn worth_waiting(
        &self,
        decision: &Decision,
        plan: &Plan,
        waited_us: u64,
    ) -> Option<(HeldUp, u64)> {
        let held_up = HeldUp::of(decision, &plan.levels)?;
        let max_wait_us = self.max_wait_us.or_else(|| decision.wait_us())?;
        let left_us = max_wait_us.checked_sub(waited_us).filter(|left_us| *left_us > 0)?;
        (held_up.least_us <= left_us).then_some((held_up, left_us))
    }

    /// Takes its place in line; `None` if too many wait already.
    fn stand(&mut self, held_up: &HeldUp) -> Option<Stood> {
        let HeldUp { place, cost, .. } = *held_up;
        if let Some(spot) = &self.spot {
            return Some(spot.stand(place, cost));
        }
        self.spot = Some(self.limiter.shared.waiting.join(place, cost)?);
        Some(Stood::Moved)
    }

    /// Ready when it is woken or the timer is.
    async fn woken_or(&self, timer: impl Future<Output = ()>) {
        let mut timer = pin!(timer);
        poll_fn(|task_context| {
            let woken =
                self.spot.as_ref().is_some_and(|spot| spot.poll_woken(task_context).is_ready());
            if woken { Poll::Ready(()) } else { timer.as_mut().poll(task_context) }
        })
        .await;
    }
}
