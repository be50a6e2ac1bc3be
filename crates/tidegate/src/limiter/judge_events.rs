//! Judging events: counting them in the store (or, while the store is lost, on this node), climbing the
//! ladders, and leaving marks.

use super::Limiter;
use crate::clock::Now;
use crate::context::Context;
use crate::plan::{LEVELS_MAX, Mode, Plan};
use crate::protection::counts::{Count, EventCounts, Named, shifted};
use crate::protection::penalties::{Asks, Claim, Happened, Judge, Look, shares};
use crate::protection::steps::{HOLDER, kept};
use crate::store::{Amendment, Answer, Reply, Store, StoreError};

/// The replies of the store, or of this node without it.
struct CountReplies {
    replies: Vec<Reply>,
    /// The store's time at each reply.
    times: Vec<Now>,
}

impl<S: Store> Limiter<S> {
    /// Counts events, and does what follows from the counts.
    pub(super) async fn judge_events(
        &self,
        context: &Context<'_>,
        counts: &EventCounts,
        happened: &mut Happened,
    ) {
        let mut lost = happened.lost.take();
        let counted = self.charge_counts(&counts.levels, &mut lost).await;
        let (mut amendments, mut asks) = (Vec::<Amendment>::new(), Asks::default());
        let judge = self.judge(context);
        let replies = counts.levels.iter().zip(&counted.replies).zip(&counted.times);
        for (penalty, ((named, reply), now)) in counts.penalties.iter().zip(replies) {
            let count = Count::of(&named.0, reply);
            judge.count(*penalty, count, lost.is_some(), happened, &mut asks);
            let answer = Answer { now: *now, replies: [*reply].into_iter().collect() };
            amendments.extend(shifted(named, reply, &answer).into_iter().flatten());
        }
        judge.shares(&shares(counts, &counted.replies), happened, &mut asks.claims);
        self.amend_each(&amendments, &mut lost).await;
        if !asks.is_empty() || !counts.forgiven.is_empty() {
            let Asks { mut claims, looks } = asks;
            self.refresh_steps(looks, &mut claims, &mut lost).await;
            self.forgive_counts(context, counts, &mut lost).await;
            self.claim_steps(context, claims, happened, &mut lost).await;
        }
        happened.reported.degraded = lost.is_some();
        happened.lost = lost;
    }

    /// Looks whether the steps below the counts are taken. A step that is taken lasts from now on.
    async fn refresh_steps(
        &self,
        looks: Vec<Look>,
        claims: &mut Vec<Claim>,
        lost: &mut Option<StoreError>,
    ) {
        let mut looks = looks.into_iter().peekable();
        while looks.peek().is_some() && lost.is_none() {
            let some: Vec<Look> = looks.by_ref().take(LEVELS_MAX).collect();
            let amendments: Vec<Amendment> = some.iter().map(|look| kept(&look.place)).collect();
            let found = match self.amend(false, &amendments).await {
                Ok(found) => found,
                Err(error) => return *lost = Some(error),
            };
            let now_us = self.now().steady_us;
            for (Look { place, is_known }, found) in some.into_iter().zip(found) {
                let key = place.0.key;
                match (found, is_known) {
                    (true, _) => self.inner.steps.taken(key, now_us),
                    // The store has forgotten the step, or was lost when the step was taken.
                    (false, true) => claims.push(Claim { named: place, is_place: true, act: None }),
                    (false, false) => self.inner.steps.missing(key, now_us),
                }
            }
        }
    }

    async fn forgive_counts(
        &self,
        context: &Context<'_>,
        counts: &EventCounts,
        lost: &mut Option<StoreError>,
    ) {
        if counts.forgiven.is_empty() {
            return;
        }
        let mut forgiven = counts.forgiven.clone();
        let judge = self.judge(context);
        forgiven.extend(counts.forgiving.iter().flat_map(|at| judge.forgiven(*at)));
        for forgiven in forgiven.chunks(LEVELS_MAX) {
            let forgotten = match lost {
                Some(_) => self.forget_here(forgiven).await,
                None => self.forget(forgiven).await,
            };
            *lost = lost.take().or(forgotten.err());
        }
    }

    /// Does what this node is the first to claim.
    async fn claim_steps(
        &self,
        context: &Context<'_>,
        claims: Vec<Claim>,
        happened: &mut Happened,
        lost: &mut Option<StoreError>,
    ) {
        if claims.is_empty() {
            return;
        }
        let levels: Vec<Named> = claims.iter().map(|claim| claim.named.clone()).collect();
        let claimed = self.charge_counts(&levels, lost).await;
        let (judge, now_us) = (self.judge(context), self.now().steady_us);
        let mut taken: Vec<Amendment> = Vec::new();
        for (claim, reply) in claims.iter().zip(&claimed.replies) {
            if claim.is_place {
                self.inner.steps.taken(claim.named.0.key, now_us);
                taken.extend((!reply.charged).then(|| kept(&claim.named)));
            }
            if let Some(act) = claim.act.as_ref().filter(|_| reply.charged) {
                judge.claimed(act, happened);
            }
        }
        // Another node took the step before, or at this moment: the step lasts from now on.
        self.amend_each(&taken, lost).await;
    }

    async fn amend_each(&self, amendments: &[Amendment], lost: &mut Option<StoreError>) {
        for amendments in amendments.chunks(LEVELS_MAX) {
            let amended = self.amend(lost.is_some(), amendments).await;
            *lost = lost.take().or(amended.err());
        }
    }

    fn judge<'j>(&'j self, context: &'j Context<'j>) -> Judge<'j> {
        let inner = &*self.inner;
        let (marks, steps, named) = (&inner.marks, &inner.steps, inner.store.names_keys());
        Judge { context, marks, steps, now: self.now(), named }
    }

    /// Charges counts, at most [`LEVELS_MAX`] in a plan. While the store is lost this node counts by
    /// itself, and for itself alone: counts are not divided among nodes.
    async fn charge_counts(&self, levels: &[Named], lost: &mut Option<StoreError>) -> CountReplies {
        let inner = &*self.inner;
        let mut counted = CountReplies { replies: Vec::new(), times: Vec::new() };
        for levels in levels.chunks(LEVELS_MAX) {
            let mut plan = Plan::new(Mode::Charge);
            (plan.now, plan.holder) = (inner.clock.now(), HOLDER);
            plan.levels = levels.iter().map(|(level, _)| *level).collect();
            plan.names = levels.iter().filter_map(|(_, name)| name.clone()).collect();
            let answered = match lost.take() {
                Some(error) => Err(error),
                None => inner.store.decide(&plan).await,
            };
            let answer = match answered {
                Ok(answer) => {
                    if !inner.store.is_never_lost() {
                        inner.fallback.note(&plan, &answer, inner.clock.now());
                    }
                    answer
                }
                Err(error) => {
                    *lost = Some(error);
                    inner.fallback.decide(&mut plan, 1)
                }
            };
            counted.times.extend(answer.replies.iter().map(|_| answer.now));
            counted.replies.extend(answer.replies);
        }
        counted
    }
}
