//! The changes that wait to be pushed to the server: the last of each mark, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{MarkChange, MarkOperation};
use crate::lock;

/// How many changes may wait. If there are more, the node pushes all its marks.
const QUEUED_MAX: usize = 100_000;

/// The changes that wait.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// Notified when there is something to push or to pull.
    pub(crate) wake: Notify,
    /// Held while changes are pushed.
    pub(super) pushing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Queue {
    changes: HashMap<u128, QueuedChange>,
    order: VecDeque<u128>,
    has_overflowed: bool,
}

/// A change, and when its mark ends.
#[derive(Clone, Debug)]
pub(super) struct QueuedChange {
    pub(super) id: u128,
    pub(super) operation: MarkOperation,
    pub(super) value: Vec<u8>,
    ends: Option<Instant>,
}

impl QueuedChange {
    pub(super) fn new(change: MarkChange) -> Self {
        let MarkChange { id, operation, value, lasts } = change;
        let ends = lasts.and_then(|lasts| Instant::now().checked_add(lasts));
        Self { id, operation, value, ends }
    }

    /// How long it still lasts; `None` for ever.
    pub(super) fn lasts(&self) -> Option<Duration> {
        self.ends.map(|ends| ends.saturating_duration_since(Instant::now()))
    }
}

impl Outbox {
    pub(crate) fn push(&self, change: MarkChange) {
        lock(&self.queue).insert(QueuedChange::new(change));
        self.wake.notify_one();
    }

    /// Takes the oldest changes, at most `count`.
    pub(super) fn take(&self, count: usize) -> Vec<QueuedChange> {
        let mut queue = lock(&self.queue);
        let count = count.min(queue.order.len());
        let ids: Vec<u128> = queue.order.drain(..count).collect();
        ids.iter().filter_map(|id| queue.changes.remove(id)).collect()
    }

    /// Puts changes back that could not be pushed. Newer changes of the same marks stay.
    pub(super) fn put_back(&self, changes: Vec<QueuedChange>) {
        let mut queue = lock(&self.queue);
        for change in changes {
            if !queue.changes.contains_key(&change.id) {
                queue.insert(change);
            }
        }
    }

    /// True if a change of this mark waits.
    pub(super) fn contains(&self, id: u128) -> bool {
        lock(&self.queue).changes.contains_key(&id)
    }

    /// True if changes were dropped since the last call.
    pub(super) fn take_overflow(&self) -> bool {
        std::mem::take(&mut lock(&self.queue).has_overflowed)
    }
}

impl Queue {
    fn insert(&mut self, change: QueuedChange) {
        let id = change.id;
        if !self.changes.contains_key(&id) {
            if self.changes.len() >= QUEUED_MAX {
                self.has_overflowed = true;
                return;
            }
            self.order.push_back(id);
        }
        self.changes.insert(id, change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(id: u128, value: &str) -> MarkChange {
        MarkChange { id, operation: MarkOperation::Set, value: value.into(), lasts: None }
    }

    fn taken(outbox: &Outbox, most: usize) -> Vec<(u128, Vec<u8>)> {
        outbox.take(most).into_iter().map(|queued| (queued.id, queued.value)).collect()
    }

    #[test]
    fn only_the_last_change_of_a_mark_is_told_in_order() {
        let outbox = Outbox::default();
        for (id, value) in [(1, "a"), (2, "b"), (1, "c"), (3, "d")] {
            outbox.push(change(id, value));
        }
        assert_eq!(taken(&outbox, 2), [(1, b"c".to_vec()), (2, b"b".to_vec())]);
        assert!(outbox.contains(3) && !outbox.contains(1));
    }

    #[test]
    fn what_was_changed_since_goes_before_what_is_put_back() {
        let outbox = Outbox::default();
        outbox.push(change(1, "old"));
        outbox.push(change(2, "b"));
        let failed = outbox.take(2);
        outbox.push(change(1, "new"));
        outbox.put_back(failed);
        assert_eq!(taken(&outbox, 9), [(1, b"new".to_vec()), (2, b"b".to_vec())]);
    }

    #[test]
    fn more_than_can_wait_is_dropped_and_known_to_be() {
        let outbox = Outbox::default();
        for id in 0..=QUEUED_MAX as u128 {
            outbox.push(change(id, ""));
        }
        assert!(outbox.take_overflow() && !outbox.take_overflow());
        assert_eq!(outbox.take(usize::MAX).len(), QUEUED_MAX);
    }
}
