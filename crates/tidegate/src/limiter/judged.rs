//! Events counted in the store (or, while it is lost, here), judged by the ladders, and remembered as
//! marks.

use super::Limiter;
use crate::active_policy::ActivePolicy;
use crate::clock::Now;
use crate::context::Context;
use crate::plan::{LEVELS_MAX, Mode, Plan};
use crate::protection::counts::{Count, EventCounts, Named, shifted};
use crate::protection::penalties::{Asks, Claim, Happened, Judge, Look, shares};
use crate::protection::steps::{HOLDER, kept};
use crate::request::{Request, RequestError};
use crate::store::{Amendment, Answer, Reply, Store, StoreError};

/// What the store said, or this node without it.
struct Asked {
    replies: Vec<Reply>,
    /// The store's time at each.
    times: Vec<Now>,
}

impl<S: Store> Limiter<S> {
    /// Counts, and does what follows.
    pub(super) async fn judged(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        tally: &EventCounts,
        happened: &mut Happened,
    ) -> Result<(), RequestError> {
        let mut lost = happened.lost.take();
        let asked = self.ask(&tally.levels, &mut lost).await;
        let (mut amendments, mut asks) = (Vec::<Amendment>::new(), Asks::default());
        self.with_judge(active, request, |judge| {
            let counts = tally.levels.iter().zip(&asked.replies).zip(&asked.times);
            for (penalty, ((named, reply), now)) in tally.penalties.iter().zip(counts) {
                let count = Count::of(&named.0, reply);
                judge.count(*penalty, count, lost.is_some(), happened, &mut asks);
                let answer = Answer { now: *now, replies: [*reply].into_iter().collect() };
                amendments.extend(shifted(named, reply, &answer).into_iter().flatten());
            }
            let shares = shares(tally, &asked.replies);
            judge.shares(&shares, happened, &mut asks.claims);
        })?;
        for amendments in amendments.chunks(LEVELS_MAX) {
            let amended = self.amend(lost.is_some(), amendments).await;
            lost = lost.or(amended.err());
        }
        if !asks.is_empty() || !tally.forgiven.is_empty() {
            // Few events come to this, and every request has a future: its room is for those that do.
            Box::pin(self.follow(active, request, tally, asks, happened, &mut lost)).await?;
        }
        happened.reported.degraded = lost.is_some();
        happened.lost = lost;
        Ok(())
    }

    /// What is asked of the store once the counts are known.
    async fn follow(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        tally: &EventCounts,
        asks: Asks,
        happened: &mut Happened,
        lost: &mut Option<StoreError>,
    ) -> Result<(), RequestError> {
        let Asks { mut claims, looks } = asks;
        self.look(looks, &mut claims, lost).await;
        self.forgiven(active, request, tally, lost).await?;
        self.claimed(active, request, claims, happened, lost).await
    }

    /// Whether steps that counts are above were taken: what is, is so for longer.
    async fn look(&self, looks: Vec<Look>, claims: &mut Vec<Claim>, lost: &mut Option<StoreError>) {
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
                    (true, _) => self.shared.steps.taken(key, now_us),
                    // The store has forgotten, or was lost when it should have heard of it.
                    (false, true) => claims.push(Claim { named: place, is_place: true, act: None }),
                    (false, false) => self.shared.steps.missing(key, now_us),
                }
            }
        }
    }

    async fn forgiven(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        tally: &EventCounts,
        lost: &mut Option<StoreError>,
    ) -> Result<(), RequestError> {
        if tally.forgiven.is_empty() {
            return Ok(());
        }
        let mut forgiven = tally.forgiven.clone();
        self.with_judge(active, request, |judge| {
            forgiven.extend(tally.forgiving.iter().flat_map(|at| judge.forgiven(*at)));
        })?;
        for forgiven in forgiven.chunks(LEVELS_MAX) {
            let forgotten = match lost {
                Some(_) => self.forget_here(forgiven).await,
                None => self.forget(forgiven).await,
            };
            *lost = lost.take().or(forgotten.err());
        }
        Ok(())
    }

    /// Does what this node is the first to claim.
    async fn claimed(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        claims: Vec<Claim>,
        happened: &mut Happened,
        lost: &mut Option<StoreError>,
    ) -> Result<(), RequestError> {
        if claims.is_empty() {
            return Ok(());
        }
        let levels: Vec<Named> = claims.iter().map(|claim| claim.named.clone()).collect();
        let claimed = self.ask(&levels, lost).await;
        let now_us = self.now().steady_us;
        let mut held: Vec<Amendment> = Vec::new();
        self.with_judge(active, request, |judge| {
            for (claim, reply) in claims.iter().zip(&claimed.replies) {
                if claim.is_place {
                    self.shared.steps.taken(claim.named.0.key, now_us);
                    held.extend((!reply.charged).then(|| kept(&claim.named)));
                }
                if let Some(act) = claim.act.as_ref().filter(|_| reply.charged) {
                    judge.claimed(act, happened);
                }
            }
        })?;
        // Of an earlier run, or said by another node just now: it lasts from now on.
        for held in held.chunks(LEVELS_MAX) {
            let amended = self.amend(lost.is_some(), held).await;
            *lost = lost.take().or(amended.err());
        }
        Ok(())
    }

    fn with_judge(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        act: impl FnOnce(&Judge<'_>),
    ) -> Result<(), RequestError> {
        let context = Context::gather(&active.policy, request)?;
        let (marks, steps, now) = (&self.shared.marks, &self.shared.steps, self.now());
        act(&Judge { active, context: &context, marks, steps, now, named: S::NAMES_KEYS });
        Ok(())
    }

    /// Charges counts, at most as many at once as a plan has. While the store is lost this node counts
    /// by itself, and for itself alone: nobody's count is shared out.
    async fn ask(&self, levels: &[Named], lost: &mut Option<StoreError>) -> Asked {
        let shared = &*self.shared;
        let mut asked = Asked { replies: Vec::new(), times: Vec::new() };
        for levels in levels.chunks(LEVELS_MAX) {
            let mut plan = Plan::new(Mode::Charge);
            (plan.now, plan.holder) = (shared.clock.now(), HOLDER);
            plan.levels = levels.iter().map(|(level, _)| *level).collect();
            plan.names = levels.iter().filter_map(|(_, name)| name.clone()).collect();
            let answered = match lost.take() {
                Some(error) => Err(error),
                None => shared.store.decide(&plan).await,
            };
            let answer = match answered {
                Ok(answer) => {
                    if !S::NEVER_LOST {
                        shared.fallback.note(&plan, &answer, shared.clock.now());
                    }
                    answer
                }
                Err(error) => {
                    *lost = Some(error);
                    shared.fallback.decide(&mut plan, 1)
                }
            };
            asked.times.extend(answer.replies.iter().map(|_| answer.now));
            asked.replies.extend(answer.replies);
        }
        asked
    }
}
