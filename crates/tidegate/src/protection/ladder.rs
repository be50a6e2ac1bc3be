//! Ladders: which steps a count reaches, and which of them must still be applied.
//!
//! A ban, a flag or a notice of a step happens once while the count stays above the step. A record in
//! the store says that the step is applied: a place of a concurrency limit, which lasts as long as the
//! count. So a step that no node applied when it was reached is applied late, and no step is applied
//! twice. A step is missed if a reply of the store is lost, if debts of a node are merged, or if another
//! policy moves the step below the count.

use crate::algorithm::{Spec, concurrency};
use crate::key::{HashKey, LimitKeys};
use crate::policy::Policy;
use crate::policy::protection::{Comparison, Penalty, Ratio, Step};
use crate::protection::counts::{
    CountReply, LevelBuilder, NamedLevel, PenaltyCount, RatioShare, RatioSums, amendment,
};
use crate::protection::effects::Cause;
use crate::protection::marks::{MarkKind, Subject};
use crate::protection::penalise::{Claim, ClaimEffect, Penaliser, StepLookup};
use crate::protection::step_cache::StepDuty;
use crate::store::{Amendment, Change};
use crate::units::{Amount, SECOND_US};

/// The holder of all records: whichever node renews one keeps it.
pub(super) const RECORD_HOLDER: u64 = 1;
/// How long the node that reached a step has to apply it, at most.
const PATIENCE_US_MAX: u64 = 5 * SECOND_US;
/// How often within the span of a penalty a node renews a record.
const RENEWALS_PER_SPAN: u64 = 8;

/// The keys of a ladder.
#[derive(Debug)]
pub(crate) struct LadderKeys {
    pub(crate) count: LimitKeys,
    /// Of the steps that do something once, rising.
    steps: Vec<StepKeys>,
}

/// The keys of a step.
#[derive(Debug)]
struct StepKeys {
    /// The index of the step in the ladder.
    step: usize,
    /// The record that says that the step is applied.
    record: LimitKeys,
    /// What lets only one node send the notice of a step that does nothing else.
    notice: Option<LimitKeys>,
}

/// A step that a count has reached or passed.
#[derive(Clone, Copy)]
struct ReachedStep<'p> {
    penalty: &'p Penalty,
    step: &'p Step,
    keys: &'p StepKeys,
    count: u64,
}

impl LadderKeys {
    pub(crate) fn new(secret: &HashKey, policy: &Policy, penalty: &Penalty) -> Self {
        let keys = |texts: &[&str]| LimitKeys::of_counts(secret, texts, &penalty.by, policy);
        let (policy, name) = (&*policy.name, &*penalty.name);
        let count = keys(&["tidegate: counts", policy, "penalty", name]);
        let family = keys(&["tidegate: counts", policy, "steps", name, ""]).family;
        let (mut steps, mut labels): (Vec<StepKeys>, Vec<String>) = (Vec::new(), Vec::new());
        for (step, written) in penalty.ladder.iter().enumerate() {
            let Some(label) = written.label() else { continue };
            // Tells steps apart that do the same.
            let number = labels.iter().filter(|other| **other == label).count();
            let texts = format!("{label} {number}");
            let keys =
                |kind| keys(&["tidegate: counts", policy, kind, name, &texts]).in_family(family);
            let notice = written.only_notifies().then(|| keys("told"));
            steps.push(StepKeys { step, record: keys("taken"), notice });
            labels.push(label);
        }
        Self { count, steps }
    }

    /// The families of the count and of the steps.
    pub(crate) fn families(&self) -> impl Iterator<Item = u64> {
        // All steps share one family.
        [self.count.family].into_iter().chain(self.steps.first().map(|keys| keys.record.family))
    }
}

impl StepKeys {
    /// The record that says that the step is applied to the subject of a request.
    fn record(&self, penalty: &Penalty, levels: LevelBuilder<'_>) -> NamedLevel {
        let lease_us = penalty.step_lease_us();
        let spec = Spec::Concurrency(concurrency::Spec { places: Amount::ONE, lease_us });
        levels.level(&self.record, &penalty.by, (&penalty.name, ":taken"), spec, Amount::ONE)
    }
}

/// Lets a record last longer, if it is there.
pub(super) fn renewal(record: &NamedLevel) -> Amendment {
    Amendment { holder: RECORD_HOLDER, ..amendment(record, Change::Renew) }
}

impl Penalty {
    /// How long after its last renewal a node renews a record.
    pub(super) const fn step_renewal_us(&self) -> u64 {
        self.within_us / RENEWALS_PER_SPAN
    }

    /// How long a record lasts. While a count stays, no event is further from the next one than the
    /// span, and the node that saw it has renewed the record at most an eighth of the span before.
    pub(super) const fn step_lease_us(&self) -> u64 {
        let lease_us = self.within_us.saturating_add(2 * self.step_renewal_us());
        if lease_us == 0 { 1 } else { lease_us }
    }

    /// How long the node that reached a step has to apply it. Then any node does.
    pub(super) const fn step_patience_us(&self) -> u64 {
        let quarter_us = self.within_us / 4;
        if quarter_us < PATIENCE_US_MAX { quarter_us } else { PATIENCE_US_MAX }
    }
}

impl Step {
    /// True if the only thing that the step does once is to send a notice.
    fn only_notifies(&self) -> bool {
        self.ban.is_none() && self.flag.is_none() && !self.notify.is_empty()
    }

    /// What the step does once; `None` if it does nothing once. The label is hashed into the step's
    /// keys, so its bytes must not change. A step that moves to another count keeps its label.
    fn label(&self) -> Option<String> {
        match (&self.ban, &self.flag) {
            (Some(ban), _) => Some(format!("ban {} {:?}", ban.for_us, ban.by)),
            (None, Some(flag)) => Some(format!("flag {flag}")),
            (None, None) => self.only_notifies().then(|| "notice".to_owned()),
        }
    }
}

impl<'p> ReachedStep<'p> {
    fn cause(self) -> Cause<'p> {
        Cause::of_penalty(self.penalty, self.count)
    }

    fn effect(self) -> ClaimEffect<'p> {
        ClaimEffect::Step(self.step, self.cause())
    }
}

impl<'p> Penaliser<'p> {
    /// Applies the step of a count, and finds the steps below that must still be applied. Without the
    /// store no node can know those.
    pub(super) fn climb(
        &mut self,
        count: &PenaltyCount<'p>,
        reply: &CountReply,
        is_store_lost: bool,
    ) {
        let (penalty, events) = (count.penalty, count.events(reply));
        let Some(step) = penalty.step_at(events) else { return };
        self.apply_each_time(step);
        if step.allow {
            self.effects.grace.extend(&penalty.events);
        }
        // From the highest on: of two bans, the notice tells of the longer one.
        for keys in count.keys.steps.iter().rev() {
            let Some(step) = penalty.ladder.get(keys.step) else { continue };
            let reached = ReachedStep { penalty, step, keys, count: events };
            let from = u64::from(step.from);
            // True for exactly one caller: the one whose charge raised the count to the step.
            if reply.reply.charged && from == events {
                self.reach(reached);
            } else if from <= events && !is_store_lost {
                self.pass(reached);
            }
        }
    }

    /// Applies the `then` of a ratio, if there are enough events and the share is above.
    pub(super) fn check_ratio(&mut self, sums: &RatioSums<'p>, share: &RatioShare) {
        let ratio = sums.ratio;
        let (Some(step), Some(above_ppm)) = (&ratio.then, ratio.above_ppm) else { return };
        if sums.has_event && share.has_enough(ratio) && share.is_above(above_ppm) {
            self.apply_each_time(step);
            let claim = self.claim_ratio(sums, step, share.events);
            self.claims.extend(claim);
        }
    }

    /// The records of a count that is forgiven, as far as this node knows them: the count begins anew.
    pub(super) fn forget_steps(&self, count: &PenaltyCount<'p>) -> Vec<NamedLevel> {
        let steps = count.keys.steps.iter();
        let records = steps.map(|keys| keys.record(count.penalty, self.levels));
        records.filter(|(level, _)| self.steps.remove(level.key)).collect()
    }

    /// This request's event raised the count to the step.
    fn reach(&mut self, reached: ReachedStep<'p>) {
        match self.notice_claim(reached) {
            Some(claim) => self.claims.push(claim),
            None => self.apply_once(reached.step, reached.cause()),
        }
        let record = reached.keys.record(reached.penalty, self.levels);
        self.steps.set_applied(record.0.key, self.now.steady_us);
        self.claims.push(Claim::record(record, None));
    }

    /// The count was raised to the step before, or jumped over it.
    fn pass(&mut self, reached: ReachedStep<'p>) {
        let record = reached.keys.record(reached.penalty, self.levels);
        match self.steps.duty(record.0.key, reached.penalty, self.now.steady_us) {
            StepDuty::Nothing => {}
            StepDuty::LookUp => self.lookups.push(StepLookup { record, is_applied: false }),
            StepDuty::Renew => self.lookups.push(StepLookup { record, is_applied: true }),
            StepDuty::Apply => {
                let notice = self.notice_claim(reached);
                let applies = notice.is_none() && !self.has_marks(reached);
                self.claims.extend(notice);
                self.claims.push(Claim::record(record, applies.then(|| reached.effect())));
            }
        }
    }

    /// Lets one node send the notice of a step that only notifies: once in the span, however often a
    /// count reaches the step.
    fn notice_claim(&self, reached: ReachedStep<'p>) -> Option<Claim<'p>> {
        let (keys, penalty) = (reached.keys.notice.as_ref()?, reached.penalty);
        let level = self.levels.once(keys, &penalty.by, &penalty.name, penalty.within_us);
        Some(Claim::once(level, reached.effect()))
    }

    /// Lets one node apply the `then` of a ratio, once in its span; `None` if there is nothing to do.
    fn claim_ratio(&self, sums: &RatioSums<'p>, step: &'p Step, count: u64) -> Option<Claim<'p>> {
        let ratio = sums.ratio;
        let subject = Subject::of(&ratio.by, self.context)?;
        let is_due = match (&step.ban, &step.flag) {
            (Some(_), _) => true,
            // A flag stays until somebody removes it.
            (None, Some(flag)) => !self.has_mark(MarkKind::Flag, Some(flag), &subject),
            (None, None) => !step.notify.is_empty(),
        };
        if !is_due {
            return None;
        }
        let level = self.levels.once(&sums.keys.once, &ratio.by, &ratio.name, ratio.within_us);
        Some(Claim::once(level, ClaimEffect::Step(step, Cause::of_ratio(ratio, count))))
    }

    /// True if the marks of a step are in force, so that a node has applied it.
    fn has_marks(&self, reached: ReachedStep<'_>) -> bool {
        let subject = Subject::of(&reached.penalty.by, self.context);
        let banned = self.banned_subject(reached.step, reached.cause(), subject.as_ref());
        let flagged = reached.step.flag.as_deref().zip(subject.as_ref());
        banned.is_none_or(|subject| self.has_mark(MarkKind::Ban, None, &subject))
            && flagged
                .is_none_or(|(flag, subject)| self.has_mark(MarkKind::Flag, Some(flag), subject))
    }

    fn has_mark(&self, kind: MarkKind, name: Option<&str>, subject: &Subject) -> bool {
        let policy = Some(&*self.context.policy().name);
        let id = self.marks.id_of(kind, policy, name, subject);
        self.marks.get(kind, id, self.now).is_some()
    }
}

impl RatioShare {
    /// True if there are enough events for the share to mean something.
    pub(super) fn has_enough(&self, ratio: &Ratio) -> bool {
        self.events >= u64::from(ratio.at_least)
    }

    /// Strictly above a share.
    fn is_above(&self, ppm: u64) -> bool {
        Comparison::Above.holds(self.of, self.to, ppm)
    }
}

#[cfg(test)]
mod tests;
