//! What a count comes to on its ladder: what holds, what is done once, and what was missed.

use super::{Act, Asks, Cause, Claim, Happened, Judge, Look};
use crate::policy::protection::{Penalty, Step};
use crate::protection::counts::{self, Count, Named};
use crate::protection::marks::{MarkKind, Subject};
use crate::protection::steps::{Due, Spans, StepKeys};

/// A step that a count is not below.
struct Rung<'r> {
    /// The place of the penalty.
    at: usize,
    penalty: &'r Penalty,
    step: &'r Step,
    keys: &'r StepKeys,
    count: u64,
}

impl Judge<'_> {
    /// Serves what holds at a count, does what happens once where its step is reached, and asks whether
    /// the steps below were taken; without the store nobody can say.
    pub(crate) fn count(
        &self,
        at: usize,
        count: Count,
        lost: bool,
        happened: &mut Happened,
        asks: &mut Asks,
    ) {
        let Some(penalty) = self.context.active.policy.protection.penalties.get(at) else { return };
        let Some(step) = penalty.step_at(count.events) else { return };
        self.serve(step, happened);
        if step.allow {
            happened.allowing.push(at);
        }
        let Some(ladder) = self.context.active.guard.penalties.get(at) else { return };
        // From the highest on: of two bans the longer one is told of.
        for keys in ladder.steps.iter().rev() {
            let Some(step) = penalty.ladder.get(keys.step) else { continue };
            let from = u64::from(step.from);
            let rung = Rung { at, penalty, step, keys, count: count.events };
            if count.rose && from == count.events {
                self.reached(&rung, happened, asks);
            } else if from <= count.events && !lost {
                self.above(&rung, asks);
            }
        }
    }

    /// The places that say which steps are taken, as far as this node knows: a count that is forgiven
    /// begins anew.
    pub(crate) fn forgiven(&self, at: usize) -> impl Iterator<Item = Named> {
        let penalty = self.context.active.policy.protection.penalties.get(at);
        let ladder = self.context.active.guard.penalties.get(at);
        let steps = penalty.zip(ladder).into_iter().flat_map(|(penalty, ladder)| {
            ladder.steps.iter().filter_map(|keys| keys.place(penalty, self.context, self.named))
        });
        steps.filter(|(level, _)| self.steps.forget(level.key))
    }

    fn reached(&self, rung: &Rung<'_>, happened: &mut Happened, asks: &mut Asks) {
        match self.told(rung) {
            Some(claim) => asks.claims.push(claim),
            None => self.act(rung.step, &Cause::of(rung.penalty, rung.count), happened),
        }
        if let Some(place) = rung.keys.place(rung.penalty, self.context, self.named) {
            self.steps.taken(place.0.key, self.now.steady_us);
            asks.claims.push(Claim::place(place, None));
        }
    }

    /// A step that was reached before, or was missed.
    fn above(&self, rung: &Rung<'_>, asks: &mut Asks) {
        let Some(place) = rung.keys.place(rung.penalty, self.context, self.named) else { return };
        match self.steps.due(place.0.key, Spans::of(rung.penalty), self.now.steady_us) {
            Due::Nothing => {}
            Due::Ask => asks.looks.push(Look { place, is_known: false }),
            Due::Say => asks.looks.push(Look { place, is_known: true }),
            Due::Take => {
                let told = self.told(rung);
                let acts = told.is_none() && !self.stands(rung);
                asks.claims.extend(told);
                asks.claims.push(Claim::place(place, acts.then(|| rung.act())));
            }
        }
    }

    /// What lets one node tell of a step that only tells: once in the span, however often a count comes
    /// to it.
    fn told(&self, rung: &Rung<'_>) -> Option<Claim> {
        let (keys, penalty) = (rung.keys.told.as_ref()?, rung.penalty);
        let (name, span_us) = (&penalty.name, penalty.within_us);
        let named = counts::once(keys, &penalty.by, self.context, name, span_us, self.named)?;
        Some(Claim::once(named, rung.act()))
    }

    /// Whether the marks of a step are there, so that somebody has taken it.
    fn stands(&self, rung: &Rung<'_>) -> bool {
        let policy = Some(&*self.context.active.policy.name);
        let subject = Subject::of(&rung.penalty.by, self.context);
        let has = |kind, name, subject: &Subject| {
            let id = self.marks.id_of(kind, policy, name, subject);
            self.marks.get(kind, id, self.now).is_some()
        };
        let banned = self.banned(rung.step, subject.as_ref());
        let is_banned = banned.is_none_or(|(subject, _)| has(MarkKind::Ban, None, &subject));
        let flagged = rung.step.flag.as_deref().zip(subject.as_ref());
        is_banned && flagged.is_none_or(|(flag, subject)| has(MarkKind::Flag, Some(flag), subject))
    }
}

impl Rung<'_> {
    const fn act(&self) -> Act {
        Act::Rung { penalty: self.at, step: self.keys.step, count: self.count }
    }
}
