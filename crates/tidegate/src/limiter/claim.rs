//! What may happen once over all nodes of a store: the first who claims it may do it. Leases that
//! travel are settled so, and challenges are answered so.

use std::sync::atomic::Ordering;

use super::Limiter;
use crate::algorithm::{Spec, concurrency};
use crate::key::Key;
use crate::plan::{Enforcement, Level, Mode, Plan};
use crate::policy::model::OnStoreFailure;
use crate::reservation::Reservation;
use crate::store::{Answer, Store, StoreError};
use crate::units::Amount;

/// Whether a claim was the first, and whether all nodes were asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Nobody has claimed it before.
    pub is_first: bool,
    /// Why only this node's own memory was asked, if so.
    pub store_error: Option<StoreError>,
}

impl<S: Store> Limiter<S> {
    /// Claims a reservation that was written down, to settle it; returns whether nobody on any node of
    /// the store has done so before. The claim outlives whatever the reservation could change.
    ///
    /// # Errors
    /// The store cannot answer, and the reservation must not be settled.
    pub async fn claim(&self, reservation: &Reservation) -> Result<bool, StoreError> {
        let (family, key) = self.secret().claim(reservation.holder);
        let lasts_us = reservation.void_after_us();
        let plan = self.claiming(family, key, lasts_us, OnStoreFailure::Deny, "settled");
        let answer = self.shared.store.decide(&plan).await?;
        Ok(was_first(&answer))
    }

    /// Claims something that may be used once within a time, by its number; the purpose tells it
    /// from others. While the store is lost, each node claims for itself.
    pub async fn claim_once(&self, purpose: &str, number: u128, lasts_us: u64) -> Claim {
        let (family, key) = self.secret().once(purpose, number);
        let mut plan = self.claiming(family, key, lasts_us, OnStoreFailure::Local, "used");
        match self.shared.store.decide(&plan).await {
            Ok(answer) => Claim { is_first: was_first(&answer), store_error: None },
            Err(error) => {
                let nodes = self.shared.nodes.load(Ordering::Relaxed);
                let answer = self.shared.fallback.decide(&mut plan, nodes);
                Claim { is_first: was_first(&answer), store_error: Some(error) }
            }
        }
    }

    /// One place, held for as long as it matters, which only one can have.
    fn claiming(
        &self,
        family: u64,
        key: Key,
        lasts_us: u64,
        on_store_failure: OnStoreFailure,
        name: &str,
    ) -> Plan {
        let shared = &*self.shared;
        let mut plan = Plan::new(Mode::Charge);
        (plan.now, plan.holder) = (shared.clock.now(), shared.holders.next());
        let lease_us = lasts_us.max(1);
        plan.levels.push(Level {
            limit: 0,
            family,
            key,
            spec: Spec::Concurrency(concurrency::Spec { places: Amount::ONE, lease_us }),
            cost: Amount::ONE,
            refundable: false,
            reserved: false,
            leased: false,
            enforcement: Enforcement::Reject,
            on_store_failure,
        });
        if S::NAMES_KEYS {
            plan.names = vec![format!("tidegate:{name}:{key}").into()];
        }
        plan
    }
}

fn was_first(answer: &Answer) -> bool {
    answer.replies.iter().all(|reply| reply.charged)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{self, Poll, Waker};

    use super::*;
    use crate::clock::FakeClock;
    use crate::policy::Policy;

    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut task_context = task::Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut task_context) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("memory answers at once"),
        }
    }

    #[test]
    fn a_number_is_claimed_once_until_it_means_nothing_whatever_the_wall_clock_does() {
        let clock = FakeClock::at_unix_seconds(1_000_000);
        let policy = Policy::parse("p.yaml", "{tidegate: 1, name: p}").unwrap();
        let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
        let claims = |purpose, number| {
            let claim = now(limiter.claim_once(purpose, number, 1_000));
            assert_eq!(claim.store_error, None);
            claim.is_first
        };
        assert!(claims("a", 7));
        assert!(!claims("a", 7));
        assert!(claims("a", 8), "another number");
        assert!(claims("b", 7), "another purpose");
        clock.step_wall_clock_to_us(5);
        assert!(!claims("a", 7));
        clock.step_wall_clock_to_us(u64::MAX / 4);
        clock.advance_us(999);
        assert!(!claims("a", 7));
        clock.advance_us(1);
        assert!(claims("a", 7));
    }
}
