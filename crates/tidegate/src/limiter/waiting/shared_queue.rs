//! The queue of a limiter, shared among threads and bounded.
//!
//! While nobody waits, the queue costs a decision one atomic load: no lock, no allocation.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll};
use std::time::Duration;

use super::queue::{Queue, QueueKey, QueueMove, Ticket};
use crate::algorithm::{Verdict, behind_us};
use crate::fair_share::{Client, FairShare};
use crate::plan::{Enforcement, Level, Plan};
use crate::store::{Amendment, Answer, Change};
use crate::units::Amount;

/// How many requests may wait at once by default.
pub(in crate::limiter) const WAITERS_MAX_DEFAULT: usize = 10_000;

/// All requests that wait on this node.
#[derive(Debug)]
pub(in crate::limiter) struct SharedQueue {
    count: AtomicUsize,
    queue: Mutex<BoundedQueue>,
}

#[derive(Debug)]
struct BoundedQueue {
    queue: Queue,
    places: FairShare<Client>,
}

/// For each level of a plan, what the requests ahead want of its key, in millionths. On the heap: few
/// requests have others ahead.
pub(in crate::limiter) type Ahead = Vec<u128>;

impl SharedQueue {
    pub(in crate::limiter) fn new(max: usize) -> Self {
        let queue = BoundedQueue { queue: Queue::default(), places: FairShare::new(max) };
        Self { count: AtomicUsize::new(0), queue: Mutex::new(queue) }
    }

    pub(in crate::limiter) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// What the requests ahead want of the keys of a plan; `None` if nobody is ahead.
    #[inline]
    pub(in crate::limiter) fn ahead(&self, levels: &[Level], ticket: Ticket) -> Option<Ahead> {
        if self.count.load(Ordering::Relaxed) == 0 { None } else { self.queued(levels, ticket) }
    }

    #[cold]
    fn queued(&self, levels: &[Level], ticket: Ticket) -> Option<Ahead> {
        let queue = &self.lock().queue;
        let waits =
            |level: &Level| level.enforcement == Enforcement::Reject && !level.cost.is_zero();
        let ahead = |level: &Level| {
            if waits(level) { queue.ahead_micros(QueueKey::of(level), ticket) } else { 0 }
        };
        let ahead: Ahead = levels.iter().map(ahead).collect();
        ahead.iter().any(|micros| *micros > 0).then_some(ahead)
    }

    /// Joins a line; `None` if too many wait already, or too many of this client.
    pub(super) fn join(
        self: &Arc<Self>,
        client: Option<Client>,
        key: QueueKey,
        cost: Amount,
    ) -> Option<QueueTicket> {
        let BoundedQueue { queue, places } = &mut *self.lock();
        if !places.admits(client.as_ref()) {
            return None;
        }
        places.take(client.clone());
        let ticket = queue.join(key, cost);
        self.count.store(queue.len(), Ordering::SeqCst);
        Some(QueueTicket { waiting: Arc::clone(self), client, ticket })
    }

    /// Something was given back: the first in each line concerned looks again.
    pub(in crate::limiter) fn wake(&self, amendments: &[Amendment]) {
        if self.count() == 0 {
            return;
        }
        let gives = |amendment: &&Amendment| {
            matches!(amendment.change, Change::Refund(_) | Change::Release | Change::Reset)
        };
        for amendment in amendments.iter().filter(gives) {
            let waker = self.lock().queue.wake_first(QueueKey::of(&amendment.level));
            waker.into_iter().for_each(std::task::Waker::wake);
        }
    }

    /// Other numbers are in force: the first in every line looks again.
    pub(in crate::limiter) fn wake_all(&self) {
        let wakers = self.lock().queue.wake_every_first();
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, BoundedQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Denies the levels at which others wait already. The plan only peeked, and the others leave less than
/// it saw.
pub(in crate::limiter) fn let_past(ahead: &[u128], plan: &Plan, answer: &mut Answer) {
    let levels = plan.levels.iter().zip(&mut answer.replies).zip(ahead);
    for ((level, reply), ahead) in levels.filter(|(_, ahead)| **ahead > 0) {
        let wait_us = behind_us(&level.spec, reply.verdict, &reply.reading, *ahead, level.cost);
        reply.verdict =
            Verdict::Denied { retry_after: wait_us.map(|us| Duration::from_micros(us.max(1))) };
        let taken = u64::try_from(*ahead).ok().and_then(Amount::from_micros);
        let available = &mut reply.reading.available;
        *available = available.saturating_sub(taken.unwrap_or(Amount::MAX));
    }
}

/// A waiter's place in the queue. Dropping it gives the place up, and the next takes its turn.
pub(super) struct QueueTicket {
    waiting: Arc<SharedQueue>,
    client: Option<Client>,
    ticket: Ticket,
}

impl QueueTicket {
    pub(super) const fn number(&self) -> Ticket {
        self.ticket
    }

    /// Goes to the line of the key that holds it up now.
    pub(super) fn stand(&self, key: QueueKey, cost: Amount) -> QueueMove {
        let (stood, waker) = self.waiting.lock().queue.stand(self.ticket, key, cost);
        waker.into_iter().for_each(std::task::Waker::wake);
        stood
    }

    /// Forgets that it was woken: it is about to look.
    pub(super) fn take_woken(&self) -> bool {
        self.waiting.lock().queue.take_woken(self.ticket, None)
    }

    /// Ready once it is woken.
    pub(super) fn poll_woken(&self, context: &task::Context<'_>) -> Poll<()> {
        let woken = self.waiting.lock().queue.take_woken(self.ticket, Some(context.waker()));
        if woken { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let waker = {
            let BoundedQueue { queue, places } = &mut *self.waiting.lock();
            places.give_back(self.client.as_ref());
            let waker = queue.leave(self.ticket);
            self.waiting.count.store(queue.len(), Ordering::SeqCst);
            waker
        };
        waker.into_iter().for_each(std::task::Waker::wake);
    }
}

impl fmt::Debug for QueueTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueTicket({})", self.ticket)
    }
}
