//! The stage "penalise": counts the events of a request in the store, and applies what the counts come
//! to.
//!
//! [`Penaliser`] knows the ladders and the marks, and no store: it collects what the store must be
//! asked. [`CountStore`] makes all calls of the store. [`penalise`] leads from one to the other.

use crate::clock::{Clock, Now};
use crate::context::Context;
use crate::fallback::Fallback;
use crate::plan::{LEVELS_MAX, Mode, Plan};
use crate::policy::protection::{Factor, Step};
use crate::protection::counts::{CountReply, EventCounts, LevelBuilder, NamedLevel, amendment};
use crate::protection::effects::{Cause, EventEffects};
use crate::protection::events::{EventSource, Events};
use crate::protection::ladder::{RECORD_HOLDER, renewal};
use crate::protection::marks::Marks;
use crate::protection::step_cache::StepCache;
use crate::request::RequestError;
use crate::store::{Amendment, AmendmentResults, Change, Store, StoreError};

/// The store while events are counted. Once the store has failed this request, this node counts by
/// itself: each call would wait for its own deadline.
pub(crate) struct CountStore<'p, S> {
    pub(crate) store: &'p S,
    pub(crate) fallback: &'p Fallback,
    pub(crate) clock: &'p dyn Clock,
    pub(crate) error: Option<StoreError>,
}

/// Turns counts into effects.
pub(super) struct Penaliser<'p> {
    pub(super) context: &'p Context<'p>,
    pub(super) marks: &'p Marks,
    pub(super) steps: &'p StepCache,
    pub(super) levels: LevelBuilder<'p>,
    pub(super) now: Now,
    pub(super) effects: EventEffects,
    pub(super) lookups: Vec<StepLookup>,
    pub(super) claims: Vec<Claim<'p>>,
}

/// A step whose record the store should have.
#[derive(Debug)]
pub(super) struct StepLookup {
    pub(super) record: NamedLevel,
    /// True if this node knows that the step is applied, whatever the store says.
    pub(super) is_applied: bool,
}

/// What only one node does: the one that can charge the level.
#[derive(Debug)]
pub(super) struct Claim<'p> {
    level: NamedLevel,
    /// True for the record of a step.
    is_record: bool,
    effect: Option<ClaimEffect<'p>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ClaimEffect<'p> {
    /// The step's ban, flag and notice.
    Step(&'p Step, Cause<'p>),
    /// A personal factor moves.
    Factor(&'p Factor, u64),
}

/// Counts the events of a request, and applies what the counts come to.
///
/// # Errors
/// The value of a reported event cannot be read, or the report lacks what a penalty needs.
pub(crate) async fn penalise<'p, S: Store>(
    mut store: CountStore<'p, S>,
    context: &'p Context<'p>,
    marks: &'p Marks,
    steps: &'p StepCache,
    events: &Events,
    source: EventSource,
) -> Result<EventEffects, RequestError> {
    let levels = LevelBuilder { context, has_names: store.store.names_keys() };
    let (is_report, value) = match source {
        EventSource::Traffic => (false, None),
        EventSource::Report(value) => (true, value),
    };
    let mut counts = EventCounts::new(levels, events, value);
    if is_report {
        counts.value_error.take().map_or(Ok(()), Err)?;
        check_report(context, events)?;
    }
    let mut penaliser = Penaliser {
        context,
        marks,
        steps,
        levels,
        now: store.clock.now(),
        effects: EventEffects::default(),
        lookups: Vec::new(),
        claims: Vec::new(),
    };
    if context.policy().enabled && !counts.is_empty() {
        penaliser.count_events(&mut store, &counts).await;
        penaliser.look_up_steps(&mut store).await;
        penaliser.forgive(&mut store, &counts).await;
        penaliser.claim(&mut store).await;
        penaliser.effects.consequences.degraded = store.error.is_some();
    }
    Ok(penaliser.finish(store, events))
}

/// Refuses a report without a part that a penalty of its event needs. Nothing is counted.
fn check_report(context: &Context<'_>, events: &Events) -> Result<(), RequestError> {
    let penalties = context.policy().protection.penalties.iter();
    let mut counting = penalties.filter(|one| one.events.iter().any(|id| events.contains(id)));
    counting.try_for_each(|penalty| penalty.check_report(context))
}

impl<'p> Penaliser<'p> {
    async fn count_events<S: Store>(
        &mut self,
        store: &mut CountStore<'_, S>,
        counts: &EventCounts<'p>,
    ) {
        let replies = store.charge(&counts.levels()).await;
        self.now = store.clock.now();
        let (of_penalties, of_ratios) = replies.split_at(counts.penalties.len().min(replies.len()));
        let mut amendments = Vec::new();
        for (count, reply) in counts.penalties.iter().zip(of_penalties) {
            self.climb(count, reply, store.error.is_some());
            amendments.extend(count.make_room(reply).into_iter().flatten());
        }
        let mut shares = Vec::new();
        for (sums, replies) in counts.ratios.iter().zip(of_ratios.chunks(3)) {
            if let Some(share) = sums.share(replies) {
                self.check_ratio(sums, &share);
                shares.push((sums.index, share));
            }
        }
        self.move_factors(&shares);
        store.amend(&amendments).await;
    }

    /// Asks whether the steps below the counts are applied. The store renews the records that it has.
    async fn look_up_steps<S: Store>(&mut self, store: &mut CountStore<'_, S>) {
        let lookups = std::mem::take(&mut self.lookups);
        for lookups in lookups.chunks(LEVELS_MAX) {
            let renewals: Vec<_> = lookups.iter().map(|lookup| renewal(&lookup.record)).collect();
            let Some(found) = store.amend_shared(&renewals).await else { return };
            let now_us = store.clock.now().steady_us;
            for (StepLookup { record, is_applied }, found) in lookups.iter().zip(found) {
                match (found, is_applied) {
                    (true, _) => self.steps.set_applied(record.0.key, now_us),
                    // The store evicted the record, or was lost when the step was applied.
                    (false, true) => self.claims.push(Claim::record(record.clone(), None)),
                    (false, false) => self.steps.set_unapplied(record.0.key, now_us),
                }
            }
        }
    }

    async fn forgive<S: Store>(&mut self, store: &mut CountStore<'_, S>, counts: &EventCounts<'p>) {
        let records = counts.forgiven.iter().flat_map(|count| self.forget_steps(count));
        let levels = counts.forgiven.iter().map(|count| count.level.clone()).chain(records);
        let resets: Vec<_> = levels.map(|level| amendment(&level, Change::Reset)).collect();
        for resets in resets.chunks(LEVELS_MAX) {
            // This node's own count too: it decides while the store is lost.
            store.fallback.amend(store.clock.now(), resets);
            store.amend_shared(resets).await;
        }
    }

    /// Applies what this node is the first to claim.
    async fn claim<S: Store>(&mut self, store: &mut CountStore<'_, S>) {
        let claims = std::mem::take(&mut self.claims);
        let levels: Vec<_> = claims.iter().map(|claim| claim.level.clone()).collect();
        let replies = store.charge(&levels).await;
        self.now = store.clock.now();
        let mut renewals = Vec::new();
        for (claim, CountReply { reply, .. }) in claims.iter().zip(&replies) {
            if claim.is_record {
                self.steps.set_applied(claim.level.0.key, self.now.steady_us);
                // Another node applied the step before, or right now.
                renewals.extend((!reply.charged).then(|| renewal(&claim.level)));
            }
            match claim.effect.filter(|_| reply.charged) {
                Some(ClaimEffect::Step(step, cause)) => self.apply_once(step, cause),
                Some(ClaimEffect::Factor(factor, to_ppm)) => self.set_factor(factor, to_ppm),
                None => {}
            }
        }
        store.amend(&renewals).await;
    }

    fn finish<S>(mut self, store: CountStore<'_, S>, events: &Events) -> EventEffects {
        let consequences = &mut self.effects.consequences;
        let names = &self.context.policy().protection.event_names;
        consequences.events =
            events.iter().map(|id| names.name(u32::from(*id)).to_owned()).collect();
        let bans = &self.context.active.protection.bans;
        let ban = || bans.find(self.marks, self.context, store.clock.now());
        consequences.banned = self.effects.ban.is_some() || ban().is_some();
        self.effects.grace.retain(|id| events.contains(id));
        self.effects.store_error = store.error;
        self.effects
    }
}

impl<S: Store> CountStore<'_, S> {
    /// Charges levels, at most [`LEVELS_MAX`] in a plan. A node without the store counts for itself
    /// alone: counts are not divided among nodes.
    async fn charge(&mut self, levels: &[NamedLevel]) -> Vec<CountReply> {
        let mut replies = Vec::new();
        for levels in levels.chunks(LEVELS_MAX) {
            let mut plan = Plan::new(Mode::Charge);
            (plan.now, plan.holder) = (self.clock.now(), RECORD_HOLDER);
            plan.levels = levels.iter().map(|(level, _)| *level).collect();
            plan.names = levels.iter().filter_map(|(_, name)| name.clone()).collect();
            let answered = match self.error.take() {
                Some(error) => Err(error),
                None => self.store.decide(&plan).await,
            };
            let answer = match answered {
                Ok(answer) => {
                    if !self.store.is_never_lost() {
                        self.fallback.note(&plan, &answer, self.clock.now());
                    }
                    answer
                }
                Err(error) => {
                    self.error = Some(error);
                    self.fallback.decide(&mut plan, 1)
                }
            };
            let now = answer.now;
            replies.extend(answer.replies.into_iter().map(|reply| CountReply { reply, now }));
        }
        replies
    }

    /// Amends levels in the store, or on this node without the store.
    async fn amend(&mut self, amendments: &[Amendment]) {
        for amendments in amendments.chunks(LEVELS_MAX) {
            if self.error.is_some() {
                self.fallback.amend(self.clock.now(), amendments);
            } else {
                self.amend_shared(amendments).await;
            }
        }
    }

    /// Amends levels in the store alone; `None` without the store.
    async fn amend_shared(&mut self, amendments: &[Amendment]) -> Option<AmendmentResults> {
        if self.error.is_some() {
            return None;
        }
        let amended = self.store.amend(self.clock.now(), amendments).await;
        amended.map_err(|error| self.error = Some(error)).ok()
    }
}

impl<'p> Claim<'p> {
    /// An effect that only one node may have.
    pub(super) const fn once(level: NamedLevel, effect: ClaimEffect<'p>) -> Self {
        Self { level, is_record: false, effect: Some(effect) }
    }

    /// The record of a step, with the effect of the node that writes it first.
    pub(super) const fn record(level: NamedLevel, effect: Option<ClaimEffect<'p>>) -> Self {
        Self { level, is_record: true, effect }
    }
}

#[cfg(test)]
mod tests;
