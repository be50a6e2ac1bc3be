//! Leases that callers of the API hold: by an id that nobody can guess, until nothing of them may
//! change any more. Their number is bounded; where it is reached, one of the older ones goes, and
//! what it held stays charged or frees itself when its lease runs out.
//!
//! With a store that nodes share, an id is the lease itself, [sealed](crate::seal), so that every node
//! can do what is asked of it. What was charged while that store was lost is this node's alone.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tidegate::Reservation;
use tidegate::clock::Now;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::protect::Watched;
use crate::seal::{Seal, Travelled};

/// At most so many leases.
const LEASES_MAX: usize = 250_000;

/// A lease's id: 128 bits from the operating system's randomness, as 32 hex digits.
pub(crate) type LeaseId = u128;

/// What a name of a lease stands for.
pub(crate) enum Named {
    /// One in the table, or none any more.
    Kept(LeaseId),
    /// One that travelled; `None` if no node of ours has sealed it.
    Sealed(Option<Box<Travelled>>),
}

/// The leases that are out.
pub(crate) struct Leases {
    table: std::sync::Mutex<Table>,
    max: usize,
    /// Where leases can be settled on any node.
    seal: ArcSwapOption<Seal>,
}

#[derive(Default)]
struct Table {
    leases: HashMap<LeaseId, Held>,
    /// All that are in the table, and some that are gone.
    order: VecDeque<LeaseId>,
}

struct Held {
    /// Calls about one lease take turns, and it stays in the table meanwhile.
    lease: Arc<Mutex<Reservation>>,
    /// What was checked, if its status may make an event.
    watched: Option<Box<Watched>>,
    void_at_us: u64,
}

impl Leases {
    pub(crate) fn new() -> Self {
        let seal = ArcSwapOption::empty();
        Self { table: std::sync::Mutex::default(), max: LEASES_MAX, seal }
    }

    /// Lets leases travel to other nodes from now on.
    pub(crate) fn travel(&self, seal: Seal) {
        self.seal.store(Some(Arc::new(seal)));
    }

    /// What its holder calls a lease by.
    pub(crate) fn give(
        &self,
        lease: Reservation,
        watched: Option<Box<Watched>>,
        now: Now,
    ) -> String {
        let seal = self.seal.load();
        let sealed = seal.as_deref().filter(|_| !lease.is_local());
        let sealed = sealed.and_then(|seal| seal.seal(&lease, watched.as_deref(), now.unix_us));
        sealed.unwrap_or_else(|| id_text(self.keep(lease, watched, now.steady_us)))
    }

    /// What a lease was given for, if its status may make an event: once.
    pub(crate) fn take_watched(&self, id: LeaseId) -> Option<Box<Watched>> {
        self.lock().leases.get_mut(&id)?.watched.take()
    }

    /// The lease that somebody calls by this; `None` if that is no name of a lease.
    pub(crate) fn named(&self, text: &str) -> Option<Named> {
        if let Some(id) = parse_id(text) {
            return Some(Named::Kept(id));
        }
        let seal = self.seal.load_full()?;
        Some(Named::Sealed(seal.open(text).map(Box::new)))
    }

    /// Keeps a lease, and says by which id.
    fn keep(&self, lease: Reservation, watched: Option<Box<Watched>>, now_us: u64) -> LeaseId {
        let id = random_id();
        let void_at_us = now_us.saturating_add(lease.void_after_us());
        let mut table = self.lock();
        table.make_room(now_us, self.max);
        table.leases.insert(id, Held { lease: Arc::new(Mutex::new(lease)), watched, void_at_us });
        table.order.push_back(id);
        id
    }

    /// A lease, to change it; one that is void is gone.
    pub(crate) async fn open(
        &self,
        id: LeaseId,
        now_us: u64,
    ) -> Option<OwnedMutexGuard<Reservation>> {
        let lease = match self.lock().leases.get(&id) {
            Some(held) if held.void_at_us > now_us => Arc::clone(&held.lease),
            _ => return None,
        };
        let lease = lease.lock_owned().await;
        // Whoever had it before may have settled all of it.
        self.lock().leases.contains_key(&id).then_some(lease)
    }

    /// Lets a lease go on from now, or forgets it if nothing of it may change any more.
    pub(crate) fn close(&self, id: LeaseId, lease: &Reservation, now_us: u64) {
        let mut table = self.lock();
        if !lease.may_change() {
            table.leases.remove(&id);
        } else if let Some(held) = table.leases.get_mut(&id) {
            held.void_at_us = now_us.saturating_add(lease.void_after_us());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().leases.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Looks at the two that were looked at longest ago, so that the order never grows to more than
    /// about twice the leases; drops what is void, and whatever comes first while there are too many.
    fn make_room(&mut self, now_us: u64, max: usize) {
        for _ in 0..2 {
            let Some(first) = self.order.pop_front() else { break };
            let live = self.leases.get(&first).is_some_and(|held| held.void_at_us > now_us);
            if live && self.leases.len() < max {
                self.order.push_back(first);
            } else {
                self.leases.remove(&first);
            }
        }
    }
}

/// Each half is a keyed hash under keys that come from the operating system.
pub(crate) fn random_id() -> LeaseId {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

/// The id as it travels.
fn id_text(id: LeaseId) -> String {
    let mut text = String::with_capacity(32);
    // Writing to a String cannot fail.
    let _ = write!(text, "{id:032x}");
    text
}

/// The id that a text stands for.
fn parse_id(text: &str) -> Option<LeaseId> {
    let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if hex { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use tidegate::{LimitBuilder, Limiter, Policy, Request};

    use super::*;

    fn limited() -> (Limiter, Reservation) {
        let limit = LimitBuilder::concurrency("streams", 9).by("user");
        let limiter = Limiter::new(Policy::builder("p").limit(limit).build().unwrap());
        let request = Request::operation("default").user("u");
        let lease = limiter.check(&request).unwrap().reservation.unwrap();
        (limiter, lease)
    }

    fn lease() -> Reservation {
        limited().1
    }

    fn forget(leases: &Leases, id: LeaseId) {
        leases.lock().leases.remove(&id);
    }

    #[tokio::test]
    async fn a_lease_is_found_by_its_id_until_nothing_of_it_may_change() {
        let (limiter, lease) = limited();
        let leases = Leases::new();
        let id = leases.keep(lease, None, 0);
        assert_eq!(parse_id(&id_text(id)), Some(id));
        assert!(leases.open(id ^ 1, 0).await.is_none());
        let mut lease = leases.open(id, 0).await.unwrap();
        leases.close(id, &lease, 0);
        limiter.release(&mut lease).unwrap();
        leases.close(id, &lease, 0);
        drop(lease);
        assert!(leases.open(id, 0).await.is_none());
        assert_eq!(leases.len(), 0);
    }

    #[tokio::test]
    async fn calls_about_one_lease_take_turns() {
        let (limiter, lease) = limited();
        let leases = Leases::new();
        let id = leases.keep(lease, None, 0);
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
        let id = leases.keep(lease(), None, 0);
        let void_after_us = lease().void_after_us();
        assert!(leases.open(id, void_after_us - 1).await.is_some());
        assert!(leases.open(id, void_after_us).await.is_none());
    }

    #[test]
    fn their_number_is_bounded_and_what_is_void_goes() {
        let leases = Leases { max: 10, ..Leases::new() };
        for _ in 0..100 {
            leases.keep(lease(), None, 0);
            assert!(leases.len() <= 10);
            assert!(leases.lock().order.len() <= 20);
        }
        for _ in 0..20 {
            let id = leases.keep(lease(), None, u64::MAX / 2);
            forget(&leases, id);
        }
        assert!(leases.len() <= 1, "what is void is gone");
    }

    #[test]
    fn a_lease_that_lives_on_does_not_keep_the_others() {
        let leases = Leases::new();
        leases.keep(lease(), None, 0);
        for _ in 0..1_000 {
            let id = leases.keep(lease(), None, 0);
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
