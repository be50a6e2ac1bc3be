//! The waiting room of a limiter: its queue, shared among threads and bounded.
//!
//! While nobody waits it costs a decision one atomic load: no lock, no allocation.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll};

use super::queue::{NEWCOMER, Place, Queue, Stood, Ticket};
use crate::algorithm::{Verdict, behind_us};
use crate::plan::{Enforcement, Level, Plan};
use crate::store::{Amendment, Answer, Change};
use crate::units::Amount;

/// How many may wait at once unless told otherwise.
pub(super) const WAITERS_MAX_DEFAULT: usize = 10_000;

/// All who wait on this node.
#[derive(Debug)]
pub(crate) struct Waiting {
    count: AtomicUsize,
    max: usize,
    queue: Mutex<Queue>,
}

/// For each level of a plan, what those before it want of its key, in millionths. Few requests have
/// somebody before them, and the others are spared the room.
pub(super) type Ahead = Vec<u128>;

impl Waiting {
    pub(super) fn new(max: usize) -> Self {
        Self { count: AtomicUsize::new(0), max, queue: Mutex::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Who must be let past before a plan may be charged; `None` if nobody.
    #[inline]
    pub(super) fn ahead(&self, levels: &[Level], ticket: Ticket) -> Option<Ahead> {
        if self.count.load(Ordering::Relaxed) == 0 { None } else { self.queued(levels, ticket) }
    }

    #[cold]
    fn queued(&self, levels: &[Level], ticket: Ticket) -> Option<Ahead> {
        let queue = self.lock();
        let waits =
            |level: &Level| level.enforcement == Enforcement::Reject && !level.cost.is_zero();
        let ahead = |level: &Level| {
            if waits(level) { queue.ahead_micros(Place::of(level), ticket) } else { 0 }
        };
        let ahead: Ahead = levels.iter().map(ahead).collect();
        ahead.iter().any(|micros| *micros > 0).then_some(ahead)
    }

    /// Takes a place in a line; `None` if too many wait already.
    pub(super) fn join(self: &Arc<Self>, place: Place, cost: Amount) -> Option<Spot> {
        let mut queue = self.lock();
        if queue.len() >= self.max {
            return None;
        }
        let ticket = queue.join(place, cost);
        self.count.store(queue.len(), Ordering::SeqCst);
        Some(Spot { waiting: Arc::clone(self), ticket })
    }

    /// Something was given back: the first in each line concerned looks again.
    pub(super) fn wake(&self, amendments: &[Amendment]) {
        if self.count() == 0 {
            return;
        }
        let gives = |amendment: &&Amendment| {
            matches!(amendment.change, Change::Refund(_) | Change::Release | Change::Reset)
        };
        for amendment in amendments.iter().filter(gives) {
            let waker = self.lock().wake_first(Place::of(&amendment.level));
            waker.into_iter().for_each(std::task::Waker::wake);
        }
    }

    /// Other numbers are in force: the first in every line looks again.
    pub(super) fn wake_all(&self) {
        let wakers = self.lock().wake_every_first();
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Denies the levels at which others wait already: the plan was only looked at, and those others
/// leave less of what it saw.
pub(super) fn let_past(ahead: &[u128], plan: &Plan, answer: &mut Answer) {
    let levels = plan.levels.iter().zip(&mut answer.replies).zip(ahead);
    for ((level, reply), ahead) in levels.filter(|(_, ahead)| **ahead > 0) {
        let wait_us = behind_us(&level.spec, reply.verdict, &reply.reading, *ahead, level.cost);
        reply.verdict = Verdict::Denied { retry_after_us: wait_us.map(|us| us.max(1)) };
        let taken = u64::try_from(*ahead).ok().and_then(Amount::from_micros);
        let available = &mut reply.reading.available;
        *available = available.saturating_sub(taken.unwrap_or(Amount::MAX));
    }
}

/// A waiter's place in the queue. Dropping it gives the place up, and the next takes its turn.
pub(super) struct Spot {
    waiting: Arc<Waiting>,
    ticket: Ticket,
}

impl Spot {
    /// The ticket of a spot, or of one who has none.
    pub(super) fn ticket(spot: Option<&Self>) -> Ticket {
        spot.map_or(NEWCOMER, |spot| spot.ticket)
    }

    /// Goes to the line of the key that holds it up now.
    pub(super) fn stand(&self, place: Place, cost: Amount) -> Stood {
        let (stood, waker) = self.waiting.lock().stand(self.ticket, place, cost);
        waker.into_iter().for_each(std::task::Waker::wake);
        stood
    }

    /// Forgets that it was woken: it is about to look.
    pub(super) fn take_woken(&self) -> bool {
        self.waiting.lock().take_woken(self.ticket, None)
    }

    /// Ready once it is woken.
    pub(super) fn poll_woken(&self, task_context: &task::Context<'_>) -> Poll<()> {
        let woken = self.waiting.lock().take_woken(self.ticket, Some(task_context.waker()));
        if woken { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Spot {
    fn drop(&mut self) {
        let waker = {
            let mut queue = self.waiting.lock();
            let waker = queue.leave(self.ticket);
            self.waiting.count.store(queue.len(), Ordering::SeqCst);
            waker
        };
        waker.into_iter().for_each(std::task::Waker::wake);
    }
}

impl fmt::Debug for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spot({})", self.ticket)
    }
}
