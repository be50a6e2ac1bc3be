//! Penalties: what the counts of events come to, by the steps of their ladders (rule 6), and by
//! ratios and behaviour (rule 7).

mod ladder;

use crate::clock::Now;
use crate::context::Context;
use crate::policy::model::Part;
use crate::policy::protection::{Behaviour, FactorKind, PPM, Penalty, Ratio, Step};
use crate::protection::counts::{self, EventCounts, Looked, Named, Share};
use crate::protection::events::{Consequences, Effect, Notice};
use crate::protection::factors;
use crate::protection::marks::{Mark, MarkKind, Marks, SetOutcome, Subject};
use crate::protection::steps::Known;
use crate::store::StoreError;
use crate::units::written_duration;

/// What events led to.
#[derive(Debug, Default)]
pub(crate) struct Happened {
    pub(crate) reported: Consequences,
    /// A ban that this request started, and when: its times are by the clock that tells this.
    pub(crate) ban: Option<(Mark, Now)>,
    /// The penalties whose step lets violations pass, by their places.
    pub(crate) allowing: Vec<usize>,
    /// Why the store is asked no more.
    pub(crate) lost: Option<StoreError>,
}

/// What is asked of the store once the counts are known.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    pub(crate) claims: Vec<Claim>,
    pub(crate) looks: Vec<Look>,
}

/// What one node alone does: the one that can charge this level.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) named: Named,
    /// Whether it is what says that a step is taken, and is held on to.
    pub(crate) is_place: bool,
    pub(crate) act: Option<Act>,
}

/// A step that a count is above: whether it is taken, and is so still.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) place: Named,
    /// Whether this node knows that it is taken, whatever the store says.
    pub(crate) is_known: bool,
}

/// What it does.
#[derive(Debug)]
pub(crate) enum Act {
    /// What stands behind `then` of a ratio.
    Ratio { ratio: usize, number: u64 },
    /// What a step of a ladder does once.
    Rung { penalty: usize, step: usize, count: u64 },
    /// A step of a factor.
    Step { factor: usize, to_ppm: u64 },
}

/// Judges the events of a request.
pub(crate) struct Judge<'j> {
    pub(crate) context: &'j Context<'j>,
    pub(crate) marks: &'j Marks,
    /// What this node knows of the steps of ladders.
    pub(crate) steps: &'j Known,
    pub(crate) now: Now,
    /// Whether keys have names.
    pub(crate) named: bool,
}

/// What a step is reached by.
struct Cause<'c> {
    source: &'c str,
    by: &'c [Part],
    within_us: u64,
    count: u64,
}

impl Asks {
    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.looks.is_empty()
    }
}

impl Claim {
    /// What is done by the one who can charge it.
    const fn once(named: Named, act: Act) -> Self {
        Self { named, is_place: false, act: Some(act) }
    }

    /// What says that a step is taken; with what is to be done by the one who says so first.
    const fn place(named: Named, act: Option<Act>) -> Self {
        Self { named, is_place: true, act }
    }
}

impl<'c> Cause<'c> {
    fn of(penalty: &'c Penalty, count: u64) -> Self {
        let (source, by) = (&*penalty.name, &*penalty.by);
        Self { source, by, within_us: penalty.within_us, count }
    }
}

impl Judge<'_> {
    /// Serves what holds of ratios, and claims what one node alone does.
    pub(crate) fn shares(
        &self,
        shares: &[(Looked, Share)],
        happened: &mut Happened,
        claims: &mut Vec<Claim>,
    ) {
        for (Looked { ratio: index, .. }, share) in shares.iter().filter(|(at, _)| at.touched) {
            let Some(ratio) = self.context.active.policy.protection.ratios.get(*index) else {
                continue;
            };
            if let Some(step) = held(ratio, share) {
                self.serve(step, happened);
                claims.extend(self.claim_ratio(*index, ratio, step, share.number));
            }
        }
        for (index, factor) in self.context.active.policy.protection.factors.iter().enumerate() {
            if let FactorKind::Behaviour(behaviour) = &factor.kind {
                claims.extend(self.claim_step(index, behaviour, shares));
            }
        }
    }

    /// Does what this node alone was let do.
    pub(crate) fn claimed(&self, act: &Act, happened: &mut Happened) {
        let protection = &self.context.active.policy.protection;
        match *act {
            Act::Ratio { ratio, number } => {
                let Some(ratio) = protection.ratios.get(ratio) else { return };
                let (source, by, within_us) = (&*ratio.name, &*ratio.by, ratio.within_us);
                let cause = Cause { source, by, within_us, count: number };
                if let Some(step) = &ratio.then {
                    self.act(step, &cause, happened);
                }
            }
            Act::Rung { penalty, step, count } => {
                let Some(penalty) = protection.penalties.get(penalty) else { return };
                if let Some(step) = penalty.ladder.get(step) {
                    self.act(step, &Cause::of(penalty, count), happened);
                }
            }
            Act::Step { factor, to_ppm } => self.step(factor, to_ppm),
        }
    }

    /// What is served each time: delays, warnings, challenges.
    fn serve(&self, step: &Step, happened: &mut Happened) {
        let reported = &mut happened.reported;
        reported.delay_us = reported.delay_us.max(step.delay_us);
        reported.warnings.extend(step.warn.clone());
        reported.challenged |= step.challenge && !self.context.request.pass;
    }

    /// What happens once: bans, flags, notices.
    fn act(&self, step: &Step, cause: &Cause<'_>, happened: &mut Happened) {
        // Nobody is marked for a value that cannot be read: others send such, too.
        let subject = Subject::of(cause.by, self.context);
        let penalty = cause.source.to_owned();
        let (mut done, mut kept) = (None, false);
        if let Some((flag, subject)) = step.flag.as_ref().zip(subject.as_ref()) {
            let mark = self.mark(MarkKind::Flag, subject.clone(), cause, Some(flag), None);
            let set = self.marks.set(&mark, self.now);
            kept |= set == SetOutcome::Unchanged;
            if matches!(set, SetOutcome::New | SetOutcome::Changed) {
                happened.reported.flags.push(flag.clone());
                happened.reported.effects.push(Effect::Flagged { mark, source: penalty.clone() });
                done = Some(("flag", subject.clone(), None));
            }
        }
        if let Some((subject, for_us)) = self.banned(step, subject.as_ref()) {
            let until_us = self.now.unix_us.saturating_add(for_us);
            let mark = self.mark(MarkKind::Ban, subject.clone(), cause, None, Some(until_us));
            let set = self.marks.set(&mark, self.now);
            kept |= set == SetOutcome::Unchanged;
            if matches!(set, SetOutcome::New | SetOutcome::Changed) {
                done = Some(("ban", subject, Some(until_us)));
                happened.reported.effects.push(Effect::Banned { mark: mark.clone(), penalty });
            }
            if set != SetOutcome::Full {
                // One that was there may end later.
                let ban = self.marks.get(MarkKind::Ban, mark.id, self.now);
                happened.ban = longer(happened.ban.take(), ban.map(|ban| (ban, self.now)));
            }
        }
        // What could not be done is told all the same; what others have done before was told then.
        let done = done.or_else(|| {
            let subject = subject.unwrap_or_else(|| Subject::for_notice(cause.by, self.context));
            (!kept).then_some(("notice", subject, None))
        });
        if let Some((action, subject, until_unix_us)) = done {
            self.notify(step, cause, &Told { action, subject, until_unix_us }, happened);
        }
    }

    /// Whom a step bans, and for how long; the subject of the count unless it says otherwise.
    fn banned(&self, step: &Step, subject: Option<&Subject>) -> Option<(Subject, u64)> {
        let ban = step.ban.as_ref()?;
        let subject = match ban.by {
            None => subject?.clone(),
            Some(by) => Subject::of_ban(by, self.context)?,
        };
        Some((subject, ban.for_us))
    }

    fn notify(&self, step: &Step, cause: &Cause<'_>, told: &Told, happened: &mut Happened) {
        let policy = &self.context.active.policy;
        let webhooks = step.notify.iter().filter_map(|at| policy.protection.webhooks.get(*at));
        happened.reported.effects.extend(webhooks.map(|webhook| {
            Effect::Notify(Notice {
                webhook: webhook.name.clone(),
                policy: policy.name.clone(),
                source: cause.source.to_owned(),
                subject: told.subject.clone(),
                count: cause.count,
                action: told.action,
                at_unix_us: self.now.unix_us,
                until_unix_us: told.until_unix_us,
            })
        }));
    }

    fn mark(
        &self,
        kind: MarkKind,
        subject: Subject,
        cause: &Cause<'_>,
        flag: Option<&str>,
        until_unix_us: Option<u64>,
    ) -> Mark {
        let policy = &*self.context.active.policy.name;
        let span = written_duration(cause.within_us);
        Mark {
            id: self.marks.id_of(kind, Some(policy), flag, &subject),
            kind,
            policy: Some(policy.to_owned()),
            subject,
            source: cause.source.to_owned(),
            reason: format!("{} events within {span}", cause.count),
            flag: flag.map(str::to_owned),
            since_unix_us: self.now.unix_us,
            until_unix_us,
            factor_ppm: None,
        }
    }

    /// What lets one node act on a ratio, once in its span; `None` where it has been done, or where
    /// there is nothing to do.
    fn claim_ratio(&self, index: usize, ratio: &Ratio, step: &Step, number: u64) -> Option<Claim> {
        let subject = Subject::of(&ratio.by, self.context)?;
        let flagged = step.flag.as_ref().is_some_and(|flag| {
            let policy = Some(&*self.context.active.policy.name);
            let id = self.marks.id_of(MarkKind::Flag, policy, Some(flag), &subject);
            self.marks.get(MarkKind::Flag, id, self.now).is_some()
        });
        // A flag stands until somebody takes it away, and bans nobody.
        let due = match (&step.ban, &step.flag) {
            (Some(_), _) => true,
            (None, Some(_)) => !flagged,
            (None, None) => !step.notify.is_empty(),
        };
        if !due {
            return None;
        }
        let keys = &self.context.active.guard.ratios.get(index)?.once;
        let span_us = ratio.within_us;
        let named = counts::once(keys, &ratio.by, self.context, &ratio.name, span_us, self.named)?;
        Some(Claim::once(named, Act::Ratio { ratio: index, number }))
    }

    /// What lets one node take a step; `None` where none is due.
    fn claim_step(
        &self,
        index: usize,
        behaviour: &Behaviour,
        shares: &[(Looked, Share)],
    ) -> Option<Claim> {
        let protection = &self.context.active.policy.protection;
        let mut is_good = true;
        for good in &behaviour.good {
            let (_, share) = shares.iter().find(|(at, _)| at.ratio == good.ratio)?;
            if !share.counts(protection.ratios.get(good.ratio)?) {
                return None;
            }
            is_good &= good.comparison.holds(share.of, share.to, good.share_ppm);
        }
        let keys = self.context.active.guard.factors.get(index)?;
        if !behaviour.by.iter().all(|part| self.context.has(part)) {
            return None;
        }
        let earned = self.marks.factor(&keys.marks, self.context, self.now);
        let last_us = earned.map_or(0, |(_, since_us)| since_us);
        if earned.is_some() && self.now.steady_us.saturating_sub(last_us) < behaviour.every_us {
            return None;
        }
        let from_ppm = earned.map_or(PPM, |(ppm, _)| ppm);
        let to_ppm = factors::stepped(behaviour, from_ppm, is_good);
        if to_ppm == from_ppm {
            return None;
        }
        let name = &protection.factors.get(index)?.name;
        let (by, span_us) = (&behaviour.by, behaviour.every_us);
        let named = counts::once(&keys.step, by, self.context, name, span_us, self.named)?;
        Some(Claim::once(named, Act::Step { factor: index, to_ppm }))
    }

    fn step(&self, factor: usize, to_ppm: u64) {
        let policy = &self.context.active.policy;
        let Some(factor) = policy.protection.factors.get(factor) else { return };
        let by = factor.by();
        let Some(subject) = Subject::of(by, self.context) else { return };
        let (kind, scope) = (MarkKind::Factor, Some(&*policy.name));
        let mark = Mark {
            id: self.marks.id_of(kind, scope, Some(&factor.name), &subject),
            kind,
            policy: scope.map(str::to_owned),
            subject,
            source: factor.name.clone(),
            reason: String::new(),
            flag: None,
            since_unix_us: self.now.unix_us,
            until_unix_us: None,
            factor_ppm: Some(to_ppm),
        };
        self.marks.set(&mark, self.now);
    }
}

/// Of two bans the one that ends later; of equals, the first.
pub(crate) fn longer(one: Option<(Mark, Now)>, other: Option<(Mark, Now)>) -> Option<(Mark, Now)> {
    let left_us = |(mark, now): &(Mark, Now)| mark.left_us(*now).unwrap_or(u64::MAX);
    match (one, other) {
        (Some(one), Some(other)) if left_us(&other) > left_us(&one) => Some(other),
        (one, other) => one.or(other),
    }
}

/// What was done, to whom, until when.
struct Told {
    action: &'static str,
    subject: Subject,
    until_unix_us: Option<u64>,
}

/// What holds of a ratio: `then`, where there are enough events and the share is above.
fn held<'r>(ratio: &'r Ratio, share: &Share) -> Option<&'r Step> {
    let above_ppm = ratio.above_ppm?;
    ratio.then.as_ref().filter(|_| share.counts(ratio) && share.is_above(above_ppm))
}

/// The shares of all ratios of a tally.
pub(crate) fn shares(tally: &EventCounts, replies: &[crate::store::Reply]) -> Vec<(Looked, Share)> {
    let first = tally.penalties.len();
    let share = |(at, looked): (usize, &Looked)| {
        let from = first + 3 * at;
        let share = Share::of(tally.levels.get(from..)?, replies.get(from..)?)?;
        Some((*looked, share))
    };
    tally.ratios.iter().enumerate().filter_map(share).collect()
}

#[cfg(test)]
mod tests;
