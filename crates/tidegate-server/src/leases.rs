//! The reservations that callers of the API hold, each under a lease: an id that nobody can guess.
//!
//! A reservation stays here until nothing of it may change any more. At the bound an older one is
//! evicted: its charge stays, and its places free themselves when their time is over.
//!
//! With a shared store the lease is the reservation itself, [sealed](crate::seal), so that every
//! node can release, renew and settle it. A charge made while the store is lost stays on this node.

mod reserved_request;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tidegate::Reservation;
use tidegate::clock::{Now, micros};
use tokio::sync::{Mutex, OwnedMutexGuard};

pub(crate) use reserved_request::{RequestTooLarge, ReservedRequest};

use crate::seal::{Seal, SealedReservation};

const LEASES_MAX: usize = 250_000;

/// 128 bits of the operating system's randomness; on the wire 32 hexadecimal digits.
pub(crate) type LeaseId = u128;

/// A lease as a caller sends it.
pub(crate) enum Lease {
    /// The id of a reservation in this node's table, if it is still there.
    Local(LeaseId),
    /// A sealed reservation; `None` if no node with our secret has sealed it.
    Sealed(Option<Box<SealedReservation>>),
}

/// The table of reservations by their leases.
pub(crate) struct Leases {
    table: std::sync::Mutex<Table>,
    max: usize,
    /// Present with a shared store.
    seal: ArcSwapOption<Seal>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<LeaseId, Entry>,
    /// The ids of all entries, and of some that are gone, by their last visit.
    order: VecDeque<LeaseId>,
}

struct Entry {
    /// Calls with the same lease take turns; the entry stays in the table meanwhile.
    reservation: Arc<Mutex<Reservation>>,
    /// The request of the check, if its status may make an event.
    request: Option<Box<ReservedRequest>>,
    void_at_us: u64,
}

impl Leases {
    pub(crate) fn new() -> Self {
        let seal = ArcSwapOption::empty();
        Self { table: std::sync::Mutex::default(), max: LEASES_MAX, seal }
    }

    /// Seals leases from now on, so that every node understands them.
    pub(crate) fn seal_with(&self, seal: Seal) {
        self.seal.store(Some(Arc::new(seal)));
    }

    /// Keeps or seals a reservation, and returns its lease.
    pub(crate) fn give(
        &self,
        reservation: Reservation,
        request: Option<Box<ReservedRequest>>,
        now: Now,
    ) -> String {
        let seal = self.seal.load();
        let seal = seal.as_deref().filter(|_| !reservation.is_local());
        seal.and_then(|seal| seal.seal(&reservation, request.as_deref(), now.unix_us))
            .unwrap_or_else(|| format!("{:032x}", self.keep(reservation, request, now.steady_us)))
    }

    /// Takes the request of the check, if its status may make an event.
    pub(crate) fn take_request(&self, id: LeaseId) -> Option<Box<ReservedRequest>> {
        self.lock().entries.get_mut(&id)?.request.take()
    }

    /// Parses a lease; `None` if the text cannot be one.
    pub(crate) fn parse(&self, text: &str) -> Option<Lease> {
        if let Some(id) = parse_id(text) {
            return Some(Lease::Local(id));
        }
        let seal = self.seal.load_full()?;
        Some(Lease::Sealed(seal.open(text).map(Box::new)))
    }

    fn keep(
        &self,
        reservation: Reservation,
        request: Option<Box<ReservedRequest>>,
        now_us: u64,
    ) -> LeaseId {
        let id = random_id();
        let void_at_us = now_us.saturating_add(micros(reservation.void_after()));
        let reservation = Arc::new(Mutex::new(reservation));
        let mut table = self.lock();
        table.make_room(now_us, self.max);
        table.entries.insert(id, Entry { reservation, request, void_at_us });
        table.order.push_back(id);
        id
    }

    /// Locks a reservation to change it; `None` if it is void or gone.
    pub(crate) async fn open(
        &self,
        id: LeaseId,
        now_us: u64,
    ) -> Option<OwnedMutexGuard<Reservation>> {
        let reservation = match self.lock().entries.get(&id) {
            Some(entry) if entry.void_at_us > now_us => Arc::clone(&entry.reservation),
            _ => return None,
        };
        let reservation = reservation.lock_owned().await;
        // The call before may have settled all of it.
        self.lock().entries.contains_key(&id).then_some(reservation)
    }

    /// Restarts the time of a reservation, or removes it if nothing of it may change any more.
    pub(crate) fn close(&self, id: LeaseId, reservation: &Reservation, now_us: u64) {
        let mut table = self.lock();
        if !reservation.may_change() {
            table.entries.remove(&id);
        } else if let Some(entry) = table.entries.get_mut(&id) {
            entry.void_at_us = now_us.saturating_add(micros(reservation.void_after()));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Visits the two entries whose visit is longest ago: removes those that are void, and the first
    /// ones at the bound. Two visits for each insertion keep `order` below twice the entries.
    fn make_room(&mut self, now_us: u64, max: usize) {
        for _ in 0..2 {
            let Some(first) = self.order.pop_front() else { break };
            let live = self.entries.get(&first).is_some_and(|entry| entry.void_at_us > now_us);
            if live && self.entries.len() < max {
                self.order.push_back(first);
            } else {
                self.entries.remove(&first);
            }
        }
    }
}

/// Each half is a hash under random keys of the operating system.
pub(crate) fn random_id() -> LeaseId {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

fn parse_id(text: &str) -> Option<LeaseId> {
    let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if hex { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use tidegate::{LimitBuilder, Limiter, Policy, Request};

    use super::*;

    fn reserve() -> (Limiter, Reservation) {
        let limit = LimitBuilder::concurrency("streams", 9).by("user");
        let limiter = Limiter::new(Policy::builder("p").limit(limit).build().unwrap());
        let request = Request::operation("default").user("u");
        let reservation = limiter.check(&request).unwrap().reservation.unwrap();
        (limiter, reservation)
    }

    fn reservation() -> Reservation {
        reserve().1
    }

    fn forget(leases: &Leases, id: LeaseId) {
        leases.lock().entries.remove(&id);
    }

    #[tokio::test]
    async fn a_lease_is_found_by_its_id_until_nothing_of_it_may_change() {
        let (limiter, reservation) = reserve();
        let leases = Leases::new();
        let id = leases.keep(reservation, None, 0);
        assert_eq!(parse_id(&format!("{id:032x}")), Some(id));
        assert!(leases.open(id ^ 1, 0).await.is_none());
        let mut reservation = leases.open(id, 0).await.unwrap();
        leases.close(id, &reservation, 0);
        limiter.release(&mut reservation).unwrap();
        leases.close(id, &reservation, 0);
        drop(reservation);
        assert!(leases.open(id, 0).await.is_none());
        assert_eq!(leases.len(), 0);
    }

    #[tokio::test]
    async fn calls_about_one_lease_take_turns() {
        let (limiter, reservation) = reserve();
        let leases = Leases::new();
        let id = leases.keep(reservation, None, 0);
        let mut first = leases.open(id, 0).await.unwrap();
        let mut second = std::pin::pin!(leases.open(id, 0));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending());
        limiter.release(&mut first).unwrap();
        leases.close(id, &first, 0);
        drop(first);
        assert!(second.await.is_none(), "it was released in the meantime");
    }

    #[tokio::test]
    async fn a_lease_is_void_after_its_window() {
        let leases = Leases::new();
        let id = leases.keep(reservation(), None, 0);
        let void_after_us = micros(reservation().void_after());
        assert!(leases.open(id, void_after_us - 1).await.is_some());
        assert!(leases.open(id, void_after_us).await.is_none());
    }

    #[test]
    fn their_number_is_bounded_and_what_is_void_goes() {
        let leases = Leases { max: 10, ..Leases::new() };
        for _ in 0..100 {
            leases.keep(reservation(), None, 0);
            assert!(leases.len() <= 10);
            assert!(leases.lock().order.len() <= 20);
        }
        for _ in 0..20 {
            let id = leases.keep(reservation(), None, u64::MAX / 2);
            forget(&leases, id);
        }
        assert!(leases.len() <= 1, "what is void is gone");
    }

    #[test]
    fn a_lease_that_lives_on_does_not_keep_the_others() {
        let leases = Leases::new();
        leases.keep(reservation(), None, 0);
        for _ in 0..1_000 {
            let id = leases.keep(reservation(), None, 0);
            forget(&leases, id);
        }
        assert!(leases.lock().order.len() < 10);
    }

    #[test]
    fn what_is_no_id_is_none() {
        for text in ["", "x", "+0000000000000000000000000000000", &"0".repeat(33)] {
            assert_eq!(parse_id(text), None);
        }
    }
}
