//! Leases that travel between nodes are settled once: the first who claims a lease settles it.

use super::Limiter;
use crate::algorithm::{Spec, concurrency};
use crate::lease::Lease;
use crate::plan::{Enforcement, Level, Mode, Plan};
use crate::policy::model::OnStoreFailure;
use crate::store::{Store, StoreError};
use crate::units::Amount;

impl<S: Store> Limiter<S> {
    /// Claims a lease that was written down, to settle it; returns whether nobody on any node of
    /// the store has done so before. The claim outlives whatever the lease could change.
    ///
    /// # Errors
    /// The store cannot answer, and the lease must not be settled.
    pub async fn claim(&self, lease: &Lease) -> Result<bool, StoreError> {
        let shared = &*self.shared;
        let (family, key) = self.secret().claim(lease.holder);
        let mut plan = Plan::new(Mode::Charge);
        (plan.now, plan.holder) = (shared.clock.now(), shared.holders.next());
        // One place, held for as long as it matters, which only one can have.
        let lease_us = lease.void_after_us().max(1);
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
            on_store_failure: OnStoreFailure::Deny,
        });
        if S::NAMES_KEYS {
            plan.names = vec![format!("tidegate:settled:{key}").into()];
        }
        let answer = shared.store.decide(&plan).await?;
        Ok(answer.replies.iter().all(|reply| reply.charged))
    }
}
