//! Reservations: settling, releasing and renewing what a request was charged, and claiming what may happen
//! once over all nodes of a store.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Limiter, block_on_ready};
use crate::algorithm::{Spec, concurrency};
use crate::clock::micros;
use crate::key::Key;
use crate::plan::{Enforcement, Level, Mode, Plan};
use crate::policy::model::OnStoreFailure;
use crate::reservation::{Reservation, Settlement};
use crate::store::{Amendment, AmendmentResults, Answer, ImmediateStore, Store, StoreError};
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
    /// Tells what became of an admitted request. What is settled once is not settled again.
    ///
    /// # Errors
    /// The store cannot answer; what should have been given back stays charged.
    pub async fn settle_async(
        &self,
        reservation: &mut Reservation,
        settlement: Settlement,
    ) -> Result<(), StoreError> {
        let amendments = reservation.settle(settlement);
        self.amend(reservation.local, &amendments).await.map(|_| ())
    }

    /// Gives the concurrency places of a reservation back; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer; the places free themselves when their time to live ends.
    pub async fn release_async(&self, reservation: &mut Reservation) -> Result<bool, StoreError> {
        let amendments = reservation.release();
        let held = self.amend(reservation.local, &amendments).await?;
        Ok(!held.is_empty() && held.iter().all(|held| *held))
    }

    /// Keeps the concurrency places of a reservation for another time to live (`lease:` in the policy);
    /// returns whether all were still held. A place that was lost stays lost.
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn renew_async(&self, reservation: &Reservation) -> Result<bool, StoreError> {
        let held = self.amend(reservation.local, &reservation.renew()).await?;
        Ok(!held.is_empty() && held.iter().all(|held| *held))
    }

    /// Claims a reservation that was written down, to settle it; returns whether nobody on any node of
    /// the store has done so before. The claim outlives whatever the reservation could change.
    ///
    /// # Errors
    /// The store cannot answer, and the reservation must not be settled.
    pub async fn claim(&self, reservation: &Reservation) -> Result<bool, StoreError> {
        let (family, key) = self.secret().claim(reservation.holder);
        let lasts_us = micros(reservation.void_after());
        let plan = self.claim_plan(family, key, lasts_us, OnStoreFailure::Deny, "settled");
        let answer = self.inner.store.decide(&plan).await?;
        Ok(was_first(&answer))
    }

    /// Claims a number that may be used once within a time. The purpose tells it from other numbers.
    /// While the store is lost, each node claims for itself.
    pub async fn claim_once(&self, purpose: &str, number: u128, lasts: Duration) -> Claim {
        let (family, key) = self.secret().once(purpose, number);
        let mut plan = self.claim_plan(family, key, micros(lasts), OnStoreFailure::Local, "used");
        match self.inner.store.decide(&plan).await {
            Ok(answer) => Claim { is_first: was_first(&answer), store_error: None },
            Err(error) => {
                let nodes = self.inner.nodes.load(Ordering::Relaxed);
                let answer = self.inner.fallback.decide(&mut plan, nodes);
                Claim { is_first: was_first(&answer), store_error: Some(error) }
            }
        }
    }

    /// One place, held for as long as the claim matters, which one holder alone can have.
    fn claim_plan(
        &self,
        family: u64,
        key: Key,
        lasts_us: u64,
        on_store_failure: OnStoreFailure,
        name: &str,
    ) -> Plan {
        let mut plan = Plan::new(Mode::Charge);
        (plan.now, plan.holder) = (self.now(), self.inner.holders.next());
        let lease_us = lasts_us.max(1);
        let spec = Spec::Concurrency(concurrency::Spec { places: Amount::ONE, lease_us });
        plan.levels.push(Level {
            cost: Amount::ONE,
            enforcement: Enforcement::Reject,
            on_store_failure,
            ..Level::of_key(family, key, spec)
        });
        if self.inner.store.names_keys() {
            plan.names = vec![format!("tidegate:{name}:{key}").into()];
        }
        plan
    }

    /// Makes corrections in the store, or in this node's own counts.
    pub(super) async fn amend(
        &self,
        local: bool,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        if amendments.is_empty() {
            return Ok(AmendmentResults::new());
        }
        let (inner, now) = (&*self.inner, self.now());
        let amended = if local {
            Ok(inner.fallback.amend(now, amendments))
        } else {
            inner.store.amend(now, amendments).await
        };
        inner.waiting.wake(amendments);
        amended
    }
}

/// The same on a store that answers at once, in plain calls.
impl<S: ImmediateStore> Limiter<S> {
    /// As [`settle_async`](Self::settle_async).
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn settle(
        &self,
        reservation: &mut Reservation,
        settlement: Settlement,
    ) -> Result<(), StoreError> {
        block_on_ready(self.settle_async(reservation, settlement))
    }

    /// As [`release_async`](Self::release_async).
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn release(&self, reservation: &mut Reservation) -> Result<bool, StoreError> {
        block_on_ready(self.release_async(reservation))
    }

    /// As [`renew_async`](Self::renew_async).
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn renew(&self, reservation: &Reservation) -> Result<bool, StoreError> {
        block_on_ready(self.renew_async(reservation))
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
            let claim = now(limiter.claim_once(purpose, number, Duration::from_millis(1)));
            assert_eq!(claim.store_error, None);
            claim.is_first
        };
        assert!(claims("a", 7));
        assert!(!claims("a", 7));
        assert!(claims("a", 8), "another number");
        assert!(claims("b", 7), "another purpose");
        clock.step_wall_clock(Duration::from_micros(5));
        assert!(!claims("a", 7));
        clock.step_wall_clock(Duration::from_micros(u64::MAX / 4));
        clock.advance(Duration::from_micros(999));
        assert!(!claims("a", 7));
        clock.advance(Duration::from_micros(1));
        assert!(claims("a", 7));
    }
}
