//! Changes that the server is still to be told of: the last of each mark, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{How, MarkChange};

/// How many may wait. Beyond that the node says everything that it knows.
const WAITING_MAX: usize = 100_000;

/// Changes that wait.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// Told when there is something to tell, or to ask for.
    pub(crate) wake: Notify,
    /// Held by whoever tells the server.
    pub(super) telling: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    changes: HashMap<u128, Queued>,
    order: VecDeque<u128>,
    too_many: bool,
}

/// A change, and when what it says ends.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) id: u128,
    pub(super) how: How,
    pub(super) value: Vec<u8>,
    ends: Option<Instant>,
}

impl Queued {
    pub(super) fn new(change: MarkChange) -> Self {
        let MarkChange { id, how, value, lasts } = change;
        let ends = lasts.and_then(|lasts| Instant::now().checked_add(lasts));
        Self { id, how, value, ends }
    }

    /// How long it still holds; `None`: for ever.
    pub(super) fn lasts(&self) -> Option<Duration> {
        self.ends.map(|ends| ends.saturating_duration_since(Instant::now()))
    }
}

impl Queue {
    /// Tells of a change, soon.
    pub(crate) fn push(&self, change: MarkChange) {
        self.locked().insert(Queued::new(change));
        self.wake.notify_one();
    }

    /// What is to be told next.
    pub(super) fn take(&self, most: usize) -> Vec<Queued> {
        let mut waiting = self.locked();
        let most = most.min(waiting.order.len());
        let ids: Vec<u128> = waiting.order.drain(..most).collect();
        ids.iter().filter_map(|id| waiting.changes.remove(id)).collect()
    }

    /// These could not be told. What was changed since goes before.
    pub(super) fn put_back(&self, changes: Vec<Queued>) {
        let mut waiting = self.locked();
        for change in changes {
            if !waiting.changes.contains_key(&change.id) {
                waiting.insert(change);
            }
        }
    }

    /// Whether a mark has changed here since the server was last told.
    pub(super) fn has(&self, id: u128) -> bool {
        self.locked().changes.contains_key(&id)
    }

    /// Whether some were dropped since this was last asked.
    pub(super) fn has_dropped(&self) -> bool {
        std::mem::take(&mut self.locked().too_many)
    }

    /// Nothing that runs under the lock panics.
    fn locked(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn insert(&mut self, change: Queued) {
        let id = change.id;
        if !self.changes.contains_key(&id) {
            if self.changes.len() >= WAITING_MAX {
                self.too_many = true;
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
        MarkChange { id, how: How::Set, value: value.into(), lasts: None }
    }

    fn taken(queue: &Queue, most: usize) -> Vec<(u128, Vec<u8>)> {
        queue.take(most).into_iter().map(|queued| (queued.id, queued.value)).collect()
    }

    #[test]
    fn only_the_last_change_of_a_mark_is_told_in_order() {
        let queue = Queue::default();
        for (id, value) in [(1, "a"), (2, "b"), (1, "c"), (3, "d")] {
            queue.push(change(id, value));
        }
        assert_eq!(taken(&queue, 2), [(1, b"c".to_vec()), (2, b"b".to_vec())]);
        assert!(queue.has(3) && !queue.has(1));
    }

    #[test]
    fn what_was_changed_since_goes_before_what_is_put_back() {
        let queue = Queue::default();
        queue.push(change(1, "old"));
        queue.push(change(2, "b"));
        let failed = queue.take(2);
        queue.push(change(1, "new"));
        queue.put_back(failed);
        assert_eq!(taken(&queue, 9), [(1, b"new".to_vec()), (2, b"b".to_vec())]);
    }

    #[test]
    fn more_than_can_wait_is_dropped_and_known_to_be() {
        let queue = Queue::default();
        for id in 0..=WAITING_MAX as u128 {
            queue.push(change(id, ""));
        }
        assert!(queue.has_dropped() && !queue.has_dropped());
        assert_eq!(queue.take(usize::MAX).len(), WAITING_MAX);
    }
}
