//! The same calls on a store that answers at once, as plain functions.

use super::decide::{Patience, Prepared};
use super::error::ResetError;
use super::{Limiter, NEWCOMER, at_once};
use crate::decision::Decision;
use crate::lease::{Lease, Settlement};
use crate::plan::{Mode, Plan};
use crate::request::{Request, RequestError};
use crate::store::{ImmediateStore, StoreError};

/// The same on a store that answers at once, as plain calls.
impl<S: ImmediateStore> Limiter<S> {
    /// Decides a request, and charges it if it passes.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs: a 400.
    pub fn check(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.decide_now(request, Mode::Charge)
    }

    fn decide_now(&self, request: &Request<'_>, mode: Mode) -> Result<Decision, RequestError> {
        let (now, mut plan) = (self.now(), Plan::new(mode));
        let prepared = self.shared.prepare(request, now, NEWCOMER, Patience::Waits, &mut plan)?;
        let decision = self.concluded(prepared, &mut plan);
        if self.counts(request, &decision, mode) {
            return Ok(self.penalised_now(request, decision, &mut plan));
        }
        Ok(decision)
    }

    /// Everything from the store on.
    pub(super) fn concluded(&self, prepared: Prepared, plan: &mut Plan) -> Decision {
        match prepared {
            Prepared::Decided(decided) => decided.decision(),
            Prepared::Open(open) => {
                let answered = self.shared.store.decide_now(plan);
                self.shared.conclude(open, plan, answered)
            }
            Prepared::Answered(open, mut answer) => open.conclude(plan, &mut answer, None),
        }
    }

    /// By itself, since its future would be room on the stack of every decision.
    #[inline(never)]
    pub(super) fn penalised_now(
        &self,
        request: &Request<'_>,
        decision: Decision,
        plan: &mut Plan,
    ) -> Decision {
        at_once(self.penalised(request, decision, plan))
    }

    /// Decides a request without charging it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn peek(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.decide_now(request, Mode::Peek)
    }

    /// Tells what became of an admitted request.
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn settle(&self, lease: &mut Lease, settlement: Settlement) -> Result<(), StoreError> {
        at_once(self.settle_async(lease, settlement))
    }

    /// Gives concurrency places back; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn release(&self, lease: &mut Lease) -> Result<bool, StoreError> {
        at_once(self.release_async(lease))
    }

    /// Keeps concurrency places for another lease; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn renew(&self, lease: &Lease) -> Result<bool, StoreError> {
        at_once(self.renew_async(lease))
    }

    /// Forgets what one limit knows of the subject of a request.
    ///
    /// # Errors
    /// The limit is not known or does not apply to the request, or the store cannot answer.
    pub fn reset(&self, limit: &str, request: &Request<'_>) -> Result<bool, ResetError> {
        at_once(self.reset_async(limit, request))
    }
}
