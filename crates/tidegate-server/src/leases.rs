//! Leases that callers of the API hold: by an id that nobody can guess, until nothing of them may
//! change any more. Their number is bounded; where it is reached, the one that was given out first
//! goes, and what it held stays charged or frees itself when its lease runs out.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::Lease;

/// At most so many leases.
const LEASES_MAX: usize = 250_000;

/// A lease's id: 128 bits from the operating system's randomness, as 32 hex digits.
pub(crate) type LeaseId = u128;

/// The leases that are out.
pub(crate) struct Leases {
    table: Mutex<Table>,
    max: usize,
}

#[derive(Default)]
struct Table {
    leases: HashMap<LeaseId, Held>,
    /// All that are in the table, and some that are gone.
    order: VecDeque<LeaseId>,
}

struct Held {
    lease: Lease,
    void_at_us: u64,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { table: Mutex::default(), max: LEASES_MAX }
    }

    /// Keeps a lease, and says by which id.
    pub(crate) fn keep(&self, lease: Lease, now_us: u64) -> LeaseId {
        let id = random_id();
        let void_at_us = now_us.saturating_add(lease.void_after_us());
        let mut table = self.lock();
        table.make_room(now_us, self.max);
        table.leases.insert(id, Held { lease, void_at_us });
        table.order.push_back(id);
        id
    }

    /// Takes a lease out, to change it; one that is void is gone.
    pub(crate) fn take(&self, id: LeaseId, now_us: u64) -> Option<Lease> {
        let held = self.lock().leases.remove(&id)?;
        (held.void_at_us > now_us).then_some(held.lease)
    }

    /// Puts a lease back under its id, unless nothing of it may change any more.
    pub(crate) fn put_back(&self, id: LeaseId, lease: Lease, now_us: u64) {
        let void_at_us = now_us.saturating_add(lease.void_after_us());
        if void_at_us > now_us {
            self.lock().leases.insert(id, Held { lease, void_at_us });
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
fn random_id() -> LeaseId {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

/// The id as it travels.
pub(crate) fn id_text(id: LeaseId) -> String {
    let mut text = String::with_capacity(32);
    // Writing to a String cannot fail.
    let _ = write!(text, "{id:032x}");
    text
}

/// The id that a text stands for.
pub(crate) fn parse_id(text: &str) -> Option<LeaseId> {
    let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if hex { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use tidegate::{LimitBuilder, Limiter, Policy, Request};

    use super::*;

    fn lease() -> Lease {
        let limit = LimitBuilder::concurrency("streams", 9).by("user");
        let limiter = Limiter::new(Policy::builder("p").limit(limit).build().unwrap());
        limiter.check(&Request::operation("default").user("u")).unwrap().lease.unwrap()
    }

    #[test]
    fn a_lease_is_found_by_its_id_until_it_is_taken() {
        let leases = Leases::new();
        let id = leases.keep(lease(), 0);
        assert_eq!(parse_id(&id_text(id)), Some(id));
        let held = leases.take(id, 0).unwrap();
        assert!(leases.take(id, 0).is_none());
        leases.put_back(id, held, 0);
        assert!(leases.take(id, 0).is_some());
    }

    #[test]
    fn a_lease_is_gone_once_nothing_of_it_may_change_any_more() {
        let leases = Leases::new();
        let (early, late) = (leases.keep(lease(), 0), leases.keep(lease(), 0));
        let void_after_us = lease().void_after_us();
        assert!(leases.take(early, void_after_us - 1).is_some());
        assert!(leases.take(late, void_after_us).is_none());
    }

    #[test]
    fn their_number_is_bounded_and_what_is_void_goes() {
        let leases = Leases { max: 10, ..Leases::new() };
        for _ in 0..100 {
            leases.keep(lease(), 0);
            assert!(leases.len() <= 10);
            assert!(leases.lock().order.len() <= 20);
        }
        for _ in 0..20 {
            let id = leases.keep(lease(), u64::MAX / 2);
            leases.take(id, 0);
        }
        assert!(leases.len() <= 1, "what is void is gone");
    }

    #[test]
    fn a_lease_that_lives_on_does_not_keep_the_others() {
        let leases = Leases::new();
        leases.keep(lease(), 0);
        for _ in 0..1_000 {
            let id = leases.keep(lease(), 0);
            leases.take(id, 0);
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
