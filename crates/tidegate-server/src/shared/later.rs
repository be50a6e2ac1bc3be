//! Corrections that wait for a store that is lost: what is given back meanwhile is given back once it
//! is there again. Each is sent once. Their number is bounded; those beyond are lost, and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::Settlement;
use tidegate::store::{Amendment, Change};

use crate::seal::Travelled;

/// How many may wait.
const WAITING_MAX: usize = 10_000;

/// Something to tell the store.
#[derive(Debug)]
pub(super) enum Correction {
    /// Corrections of one lease.
    Amend(Vec<Amendment>),
    /// A lease that other nodes may have settled before.
    Settle(Box<Travelled>, Settlement),
}

/// What waits for the store.
#[derive(Debug, Default)]
pub(super) struct Later {
    waiting: Mutex<VecDeque<Correction>>,
    lost: AtomicU64,
}

impl Later {
    /// Keeps a correction; returns whether there is room for it.
    pub(super) fn keep(&self, correction: Correction) -> bool {
        let mut waiting = self.lock();
        let room = waiting.len() < WAITING_MAX;
        if room {
            waiting.push_back(correction);
        } else {
            self.lose();
        }
        room
    }

    /// Keeps what the store did not answer, as far as it can be sent again; returns whether all of it
    /// will be. A refund that may have been made is not: made twice it would admit too many.
    pub(super) fn keep_unmade(&self, amendments: &[Amendment], sent: bool) -> bool {
        let again = |amendment: &&Amendment| match amendment.change {
            Change::Release => true,
            Change::Refund(_) | Change::Surcharge(_) => !sent,
            _ => false,
        };
        let corrects = |amendment: &Amendment| {
            matches!(amendment.change, Change::Release | Change::Refund(_) | Change::Surcharge(_))
        };
        if !amendments.iter().any(corrects) {
            return false;
        }
        let kept: Vec<Amendment> = amendments.iter().filter(again).cloned().collect();
        let all = kept.len() == amendments.len();
        if !all {
            self.lose();
        }
        (kept.is_empty() || self.keep(Correction::Amend(kept))) && all
    }

    /// The next to be sent.
    pub(super) fn take(&self) -> Option<Correction> {
        self.lock().pop_front()
    }

    /// Puts back what was not sent after all.
    pub(super) fn put_back(&self, correction: Correction) {
        self.lock().push_front(correction);
    }

    /// One was sent, and nobody knows what became of it.
    pub(super) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Correction>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Key;
    use tidegate::algorithm::{Spec, total};
    use tidegate::plan::{Enforcement, Level};
    use tidegate::policy::OnStoreFailure;
    use tidegate::units::Amount;

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

    fn changes(later: &Later) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(correction) = later.take() {
            if let Correction::Amend(amendments) = correction {
                changes.extend(amendments.iter().map(|amendment| amendment.change));
            }
        }
        changes
    }

    #[test]
    fn what_was_not_sent_is_sent_later() {
        let later = Later::default();
        let refund = Change::Refund(Amount::ONE);
        assert!(later.keep_unmade(&[amendment(refund), amendment(Change::Release)], false));
        assert_eq!((changes(&later), later.lost()), (vec![refund, Change::Release], 0));
    }

    #[test]
    fn a_refund_that_may_have_been_made_is_lost_and_a_place_is_not() {
        let later = Later::default();
        let refund = Change::Refund(Amount::ONE);
        assert!(!later.keep_unmade(&[amendment(refund), amendment(Change::Release)], true));
        assert_eq!((changes(&later), later.lost()), (vec![Change::Release], 1));
    }

    #[test]
    fn what_is_no_correction_is_for_its_caller_to_repeat() {
        let later = Later::default();
        for change in [Change::Renew, Change::Reset, Change::Debit(Amount::ONE)] {
            assert!(!later.keep_unmade(&[amendment(change)], false));
        }
        assert_eq!((later.len(), later.lost()), (0, 0));
    }

    #[test]
    fn their_number_is_bounded_and_those_beyond_are_counted() {
        let later = Later::default();
        let kept = (0..WAITING_MAX + 2)
            .filter(|_| later.keep_unmade(&[amendment(Change::Release)], false))
            .count();
        assert_eq!((kept, later.len(), later.lost()), (WAITING_MAX, WAITING_MAX, 2));
    }
}
