//! The retry queue: corrections that were made while the store was lost. Each is sent once the store is
//! back, and only once. The queue is bounded; corrections beyond the bound are lost, and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::Settlement;
use tidegate::engine::store::{Amendment, Change};

use crate::seal::SealedReservation;

/// How many corrections may wait.
const QUEUED_MAX: usize = 10_000;

/// A change that the store has not made yet.
#[derive(Debug)]
pub(super) enum Correction {
    /// Amendments of one reservation.
    Amend(Vec<Amendment>),
    /// The settlement of a reservation that another node may have settled already.
    Settle(Box<SealedReservation>, Settlement),
}

/// The corrections that wait for the store.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    queue: Mutex<VecDeque<Correction>>,
    lost: AtomicU64,
}

impl RetryQueue {
    /// Queues a correction; false if the queue is full.
    pub(super) fn push(&self, correction: Correction) -> bool {
        let mut queue = self.lock();
        let has_room = queue.len() < QUEUED_MAX;
        if has_room {
            queue.push_back(correction);
        } else {
            self.count_lost();
        }
        has_room
    }

    /// Queues the amendments of a failed call that are safe to send again; true if that is all of them.
    /// A refund that the store may have made is not safe: made twice, it would admit too many.
    pub(super) fn push_failed(&self, amendments: &[Amendment], sent: bool) -> bool {
        let is_safe = |amendment: &&Amendment| match amendment.change {
            Change::Release => true,
            Change::Refund(_) | Change::Surcharge(_) => !sent,
            _ => false,
        };
        let is_correction = |amendment: &Amendment| {
            matches!(amendment.change, Change::Release | Change::Refund(_) | Change::Surcharge(_))
        };
        if !amendments.iter().any(is_correction) {
            return false;
        }
        let queued: Vec<Amendment> = amendments.iter().filter(is_safe).cloned().collect();
        let all = queued.len() == amendments.len();
        if !all {
            self.count_lost();
        }
        (queued.is_empty() || self.push(Correction::Amend(queued))) && all
    }

    /// Takes the oldest correction.
    pub(super) fn pop(&self) -> Option<Correction> {
        self.lock().pop_front()
    }

    /// Puts a correction back that was not sent after all.
    pub(super) fn push_front(&self, correction: Correction) {
        self.lock().push_front(correction);
    }

    /// Counts a correction that is not made, or of which nobody knows whether it was made.
    pub(super) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Correction>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Amount;
    use tidegate::engine::Key;
    use tidegate::engine::algorithm::{Spec, total};
    use tidegate::engine::plan::{Enforcement, Level};
    use tidegate::engine::policy::OnStoreFailure;

    use super::*;

    fn amendment(change: Change) -> Amendment {
        let level = Level {
            limit: 0,
            family: 1,
            key: Key(1),
            spec: Spec::Total(total::Spec { limit: Amount::ONE }),
            cost: Amount::ONE,
            refundable: false,
            reserved: false,
            leased: false,
            enforcement: Enforcement::Reject,
            on_store_failure: OnStoreFailure::Local,
        };
        Amendment { level, name: None, charged_at_us: 0, holder: 0, change }
    }

    fn changes(queue: &RetryQueue) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(correction) = queue.pop() {
            if let Correction::Amend(amendments) = correction {
                changes.extend(amendments.iter().map(|amendment| amendment.change));
            }
        }
        changes
    }

    #[test]
    fn a_correction_that_was_not_sent_is_queued() {
        let queue = RetryQueue::default();
        let refund = Change::Refund(Amount::ONE);
        assert!(queue.push_failed(&[amendment(refund), amendment(Change::Release)], false));
        assert_eq!((changes(&queue), queue.lost()), (vec![refund, Change::Release], 0));
    }

    #[test]
    fn a_refund_that_may_have_been_made_is_lost_and_a_place_is_not() {
        let queue = RetryQueue::default();
        let refund = Change::Refund(Amount::ONE);
        assert!(!queue.push_failed(&[amendment(refund), amendment(Change::Release)], true));
        assert_eq!((changes(&queue), queue.lost()), (vec![Change::Release], 1));
    }

    #[test]
    fn what_is_no_correction_is_for_its_caller_to_repeat() {
        let queue = RetryQueue::default();
        for change in [Change::Renew, Change::Reset, Change::Debit(Amount::ONE)] {
            assert!(!queue.push_failed(&[amendment(change)], false));
        }
        assert_eq!((queue.len(), queue.lost()), (0, 0));
    }

    #[test]
    fn their_number_is_bounded_and_those_beyond_are_counted() {
        let queue = RetryQueue::default();
        let queued = (0..QUEUED_MAX + 2)
            .filter(|_| queue.push_failed(&[amendment(Change::Release)], false))
            .count();
        assert_eq!((queued, queue.len(), queue.lost()), (QUEUED_MAX, QUEUED_MAX, 2));
    }
}
