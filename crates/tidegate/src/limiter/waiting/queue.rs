//! The queue of a node: one line of waiters for each key, each in the order of arrival.
//!
//! A waiter stands in one line only: the line of the key with the longest wait. So it never holds up
//! others at a key that it does not wait for. If another key refuses the waiter when its turn comes, the
//! waiter moves to the line of that key and keeps its ticket. A waiter waits for a state, or for an older
//! ticket. So no two waiters wait for each other.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use crate::key::Key;
use crate::plan::Level;
use crate::units::Amount;

/// A waiter's number, by arrival. The lowest number goes first.
pub(in crate::limiter) type Ticket = u64;

/// The ticket of a request that does not wait yet: every waiter goes before it.
pub(in crate::limiter) const NEWCOMER: Ticket = Ticket::MAX;

/// A key that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    family: u64,
    key: Key,
}

impl QueueKey {
    pub(crate) fn of(level: &Level) -> Self {
        Self { family: level.family, key: level.key }
    }
}

/// The place of a waiter after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueMove {
    /// The waiter is in another line than before.
    Moved,
    /// The waiter is in the same line; `first` if no waiter is before it.
    Stays { first: bool },
}

/// All waiters of a node.
#[derive(Debug, Default)]
pub(super) struct Queue {
    next: Ticket,
    waiters: HashMap<Ticket, Waiter>,
    lines: HashMap<QueueKey, Line>,
}

#[derive(Debug)]
struct Waiter {
    key: QueueKey,
    woken: bool,
    waker: Option<Waker>,
}

/// The waiters of one key, and what they will charge.
#[derive(Debug, Default)]
struct Line {
    costs: BTreeMap<Ticket, Amount>,
    sum_micros: u128,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Takes a ticket for the end of a line.
    pub(super) fn join(&mut self, key: QueueKey, cost: Amount) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.waiters.insert(ticket, Waiter { key, woken: false, waker: None });
        self.lines.entry(key).or_default().insert(ticket, cost);
        ticket
    }

    /// Puts a waiter into the line of the key that refuses it now. Also returns the waker of the waiter
    /// that is first in the line it left.
    pub(super) fn stand(
        &mut self,
        ticket: Ticket,
        key: QueueKey,
        cost: Amount,
    ) -> (QueueMove, Option<Waker>) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else {
            return (QueueMove::Stays { first: true }, None);
        };
        let before = std::mem::replace(&mut waiter.key, key);
        let woken = if before == key { None } else { self.step_out(before, ticket) };
        let line = self.lines.entry(key).or_default();
        line.insert(ticket, cost);
        let first = line.first() == Some(ticket);
        (if before == key { QueueMove::Stays { first } } else { QueueMove::Moved }, woken)
    }

    /// Removes a waiter that is served or gives up; returns the waker of the next one.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waker> {
        let waiter = self.waiters.remove(&ticket)?;
        self.step_out(waiter.key, ticket)
    }

    /// Wakes the first in a line; returns its waker if it sleeps.
    pub(super) fn wake_first(&mut self, key: QueueKey) -> Option<Waker> {
        let first = self.lines.get(&key)?.first()?;
        self.wake(first)
    }

    /// Wakes the first in every line.
    pub(super) fn wake_every_first(&mut self) -> Vec<Waker> {
        let firsts: Vec<Ticket> = self.lines.values().filter_map(Line::first).collect();
        firsts.into_iter().filter_map(|ticket| self.wake(ticket)).collect()
    }

    /// True if a waiter was woken since its last call. If not, keeps its waker until then.
    pub(super) fn take_woken(&mut self, ticket: Ticket, waker: Option<&Waker>) -> bool {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return true };
        if std::mem::take(&mut waiter.woken) {
            return true;
        }
        match (&mut waiter.waker, waker) {
            (Some(kept), Some(waker)) => kept.clone_from(waker),
            (kept, waker) => *kept = waker.cloned(),
        }
        false
    }

    /// What the waiters before a ticket will charge to a key, in millionths.
    pub(super) fn ahead_micros(&self, key: QueueKey, ticket: Ticket) -> u128 {
        let Some(line) = self.lines.get(&key) else { return 0 };
        if line.costs.last_key_value().is_some_and(|(last, _)| *last < ticket) {
            return line.sum_micros;
        }
        line.costs.range(..ticket).map(|(_, cost)| u128::from(cost.micros())).sum()
    }

    fn wake(&mut self, ticket: Ticket) -> Option<Waker> {
        let waiter = self.waiters.get_mut(&ticket)?;
        waiter.woken = true;
        waiter.waker.take()
    }

    /// Leaves a line, and wakes the waiter that becomes the first there.
    fn step_out(&mut self, key: QueueKey, ticket: Ticket) -> Option<Waker> {
        let line = self.lines.get_mut(&key)?;
        let was_first = line.first() == Some(ticket);
        line.remove(ticket);
        match line.first() {
            None => {
                self.lines.remove(&key);
                None
            }
            Some(first) => was_first.then(|| self.wake(first)).flatten(),
        }
    }
}

impl Line {
    fn first(&self) -> Option<Ticket> {
        self.costs.first_key_value().map(|(ticket, _)| *ticket)
    }

    fn insert(&mut self, ticket: Ticket, cost: Amount) {
        self.remove(ticket);
        self.sum_micros += u128::from(cost.micros());
        self.costs.insert(ticket, cost);
    }

    fn remove(&mut self, ticket: Ticket) {
        if let Some(cost) = self.costs.remove(&ticket) {
            self.sum_micros -= u128::from(cost.micros());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHARED: QueueKey = QueueKey { family: 1, key: Key(1) };
    const OWN: QueueKey = QueueKey { family: 2, key: Key(2) };

    fn cost(units: u64) -> Amount {
        Amount::from_units(units).unwrap()
    }

    fn is_woken(queue: &mut Queue, ticket: Ticket) -> bool {
        queue.take_woken(ticket, None)
    }

    #[test]
    fn whoever_becomes_the_first_is_woken_and_nobody_else() {
        let mut queue = Queue::default();
        let [a, b, c] = [1, 1, 1].map(|units| queue.join(SHARED, cost(units)));
        queue.leave(b);
        assert!(![a, c].into_iter().any(|ticket| is_woken(&mut queue, ticket)));
        queue.leave(a);
        assert!(is_woken(&mut queue, c) && !is_woken(&mut queue, c));
        queue.leave(c);
        assert_eq!((queue.len(), queue.lines.len()), (0, 0));
    }

    #[test]
    fn who_moves_keeps_the_ticket_and_no_longer_holds_up_the_line_it_left() {
        let mut queue = Queue::default();
        let [a, b] = [3, 2].map(|units| queue.join(SHARED, cost(units)));
        let own = queue.join(OWN, cost(1));
        assert_eq!(queue.ahead_micros(SHARED, NEWCOMER), 5_000_000);
        assert_eq!(queue.stand(a, OWN, cost(1)).0, QueueMove::Moved);
        assert!(is_woken(&mut queue, b));
        assert_eq!(queue.ahead_micros(SHARED, NEWCOMER), 2_000_000);
        assert_eq!(queue.stand(own, OWN, cost(1)).0, QueueMove::Stays { first: false });
        assert_eq!(queue.stand(a, OWN, cost(1)).0, QueueMove::Stays { first: true });
        assert_eq!(queue.stand(a, SHARED, cost(4)).0, QueueMove::Moved);
        assert_eq!(queue.ahead_micros(SHARED, b), 4_000_000);
        assert_eq!(queue.ahead_micros(SHARED, a), 0);
    }

    #[test]
    fn a_wake_that_comes_before_the_sleep_is_not_lost() {
        let mut queue = Queue::default();
        let a = queue.join(SHARED, cost(1));
        assert!(queue.wake_first(SHARED).is_none());
        assert!(queue.take_woken(a, Some(Waker::noop())));
        assert!(!queue.take_woken(a, Some(Waker::noop())));
        assert!(queue.wake_first(SHARED).is_some());
        assert!(queue.wake_first(OWN).is_none());
    }

    proptest! {
        #[test]
        fn sums_and_lines_agree_with_who_stands_there(
            steps in prop::collection::vec((0..3_u8, 0..3_u64, 1..9_u64, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut queue = Queue::default();
            let mut tickets = Vec::new();
            for (kind, which, units, pick) in steps {
                let key = QueueKey { family: which, key: Key(0) };
                let picked = (!tickets.is_empty()).then(|| *pick.get(&tickets));
                match (kind, picked) {
                    (1, Some(ticket)) => drop(queue.stand(ticket, key, cost(units))),
                    (2, Some(ticket)) => {
                        queue.leave(ticket);
                        tickets.retain(|other| *other != ticket);
                    }
                    _ => tickets.push(queue.join(key, cost(units))),
                }
                for (key, line) in &queue.lines {
                    let sum: u128 = line.costs.values().map(|cost| u128::from(cost.micros())).sum();
                    prop_assert_eq!(sum, line.sum_micros);
                    prop_assert!(!line.costs.is_empty());
                    prop_assert!(line.costs.keys().all(|one| queue.waiters[one].key == *key));
                }
                let standing: usize = queue.lines.values().map(|line| line.costs.len()).sum();
                prop_assert_eq!((standing, tickets.len()), (queue.len(), queue.len()));
            }
        }
    }
}
