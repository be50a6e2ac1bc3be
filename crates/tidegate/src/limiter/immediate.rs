//! The same calls on a store that answers at once, as plain functions.

use super::activate::select_for;
use super::decide::Found;
use super::error::ResetError;
use super::protect::counts;
use super::{Limiter, NEWCOMER, at_once};
use crate::clock::Moment;
use crate::decision::{Decision, Outcome};
use crate::plan::{Mode, Plan};
use crate::request::{Request, RequestError};
use crate::reservation::{Reservation, Settlement};
use crate::store::{Answer, ImmediateStore, StoreError, Tables};

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
        let (shared, mut plan) = (&*self.shared, Plan::new(mode));
        request.foresee();
        let (policies, moment) = (shared.policies.load(), Moment::of(&*shared.clock));
        let active = select_for(&policies, request)?;
        let found = shared.find(active, request, &moment, NEWCOMER, &mut plan, |_, _| {})?;
        let counts = |outcome| mode == Mode::Charge && counts(&policies, request, outcome);
        self.conclude_now(request, found, active.tables.get(), &mut plan, counts)
    }

    /// Everything from the store on; `counts` says whether an outcome makes an event that somebody
    /// counts.
    #[inline]
    pub(super) fn conclude_now(
        &self,
        request: &Request<'_>,
        found: Found,
        tables: Option<&Tables>,
        plan: &mut Plan,
        counts: impl Fn(Outcome) -> bool,
    ) -> Result<Decision, RequestError> {
        if plan.levels.is_empty() {
            if counts(found.outcome) {
                return Ok(self.penalised_now(request, found.decision(), plan));
            }
            return Ok(found.decision());
        }
        let (store, mut answer) = (&self.shared.store, Answer::empty());
        let answered = match tables {
            Some(tables) => store.decide_in(tables, plan, &mut answer),
            None => store.decide_now(plan).map(|decided| answer = decided),
        };
        match answered {
            Ok(()) => {
                self.shared.note(plan, &answer);
                let judged = found.judge(plan, &mut answer);
                if counts(judged.outcome) {
                    let decision = found.returned(judged, plan, &answer)?;
                    return Ok(self.penalised_now(request, decision, plan));
                }
                found.returned(judged, plan, &answer)
            }
            Err(error) => {
                let decision = self.shared.conclude_without(found, plan, error);
                if counts(decision.outcome) {
                    return Ok(self.penalised_now(request, decision, plan));
                }
                Ok(decision)
            }
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
    pub fn settle(
        &self,
        reservation: &mut Reservation,
        settlement: Settlement,
    ) -> Result<(), StoreError> {
        at_once(self.settle_async(reservation, settlement))
    }

    /// Gives concurrency places back; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn release(&self, reservation: &mut Reservation) -> Result<bool, StoreError> {
        at_once(self.release_async(reservation))
    }

    /// Keeps concurrency places for another reservation; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn renew(&self, reservation: &Reservation) -> Result<bool, StoreError> {
        at_once(self.renew_async(reservation))
    }

    /// Forgets what one limit knows of the subject of a request.
    ///
    /// # Errors
    /// The limit is not known or does not apply to the request, or the store cannot answer.
    pub fn reset(&self, limit: &str, request: &Request<'_>) -> Result<bool, ResetError> {
        at_once(self.reset_async(limit, request))
    }
}
