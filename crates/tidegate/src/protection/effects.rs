//! Effects: what a step does. On every event it delays, warns, challenges or lets pass; once it bans,
//! flags and notifies.

use std::time::Duration;

use crate::clock::Now;
use crate::policy::model::Part;
use crate::policy::protection::{EventId, Penalty, Ratio, Step};
use crate::protection::events::{Consequences, Effect, Notice};
use crate::protection::marks::{Mark, MarkKind, SetOutcome, Subject, SubjectKind};
use crate::protection::penalise::Penaliser;
use crate::store::StoreError;
use crate::units::written_duration;

/// What the events of a request led to.
#[derive(Debug, Default)]
pub(crate) struct EventEffects {
    pub(crate) consequences: Consequences,
    /// The ban that this request started or met, and the time of this node's clock, which times it.
    pub(crate) ban: Option<(Mark, Now)>,
    /// The events of this request whose step lets violations pass.
    pub(crate) grace: Vec<EventId>,
    /// The error of the store that was lost on the way.
    pub(crate) store_error: Option<StoreError>,
}

/// Why a step is applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause<'p> {
    source: &'p str,
    /// `None` for a ratio.
    penalty: Option<&'p Penalty>,
    by: &'p [Part],
    within_us: u64,
    count: u64,
}

impl Penaliser<'_> {
    /// Applies what a step does on every event: the delay, the warning, the challenge.
    pub(super) fn apply_each_time(&mut self, step: &Step) {
        let consequences = &mut self.effects.consequences;
        consequences.delay = consequences.delay.max(Duration::from_micros(step.delay_us));
        consequences.warnings.extend(step.warn.clone());
        consequences.challenged |= step.challenge && !self.context.has_pass;
    }

    /// Applies what a step does once: the flag, the ban, and the notice of them.
    pub(super) fn apply_once(&mut self, step: &Step, cause: Cause<'_>) {
        // Nobody is flagged for a value that cannot be read: other clients send such values too.
        let subject = Subject::of(cause.by, self.context);
        let (mut action, mut was_marked) = (None, false);
        if let Some((flag, subject)) = step.flag.as_ref().zip(subject.as_ref()) {
            let mark = self.mark(MarkKind::Flag, Some(flag), subject.clone(), cause);
            let outcome = self.marks.set(&mark, self.now);
            was_marked |= outcome == SetOutcome::Unchanged;
            if outcome.is_set() {
                action = Some(("flag", subject.clone(), None));
                self.effects.consequences.flags.push(flag.clone());
                let source = cause.source.to_owned();
                self.effects.consequences.effects.push(Effect::Flagged { mark, source });
            }
        }
        let banned = self.banned_subject(step, cause, subject.as_ref());
        let subject = subject.unwrap_or_else(|| Subject::for_notice(cause.by, self.context));
        if let Some((ban, banned)) = step.ban.as_ref().zip(banned) {
            let until_us = self.now.unix_us.saturating_add(ban.for_us);
            let is_unreadable = banned.kind() == SubjectKind::Unreadable;
            let outcome = self.ban(banned.clone(), cause, until_us);
            was_marked |= outcome == SetOutcome::Unchanged;
            if outcome.is_set() {
                let banned = if is_unreadable { subject.clone() } else { banned };
                action = Some(("ban", banned, Some(until_us)));
            }
        }
        // A mark that found no room is worth a notice too. A mark that was there had its notice before.
        let action = action.or_else(|| (!was_marked).then_some(("notice", subject, None)));
        if let Some((action, subject, until_unix_us)) = action {
            self.notify(step, cause, action, &subject, until_unix_us);
        }
    }

    fn ban(&mut self, subject: Subject, cause: Cause<'_>, until_unix_us: u64) -> SetOutcome {
        let mark = self.mark(MarkKind::Ban, None, subject, cause);
        let mark = Mark { until_unix_us: Some(until_unix_us), ..mark };
        let outcome = self.marks.set(&mark, self.now);
        let refuses_this = |penalty: &Penalty| penalty.bans_unreadable(self.context);
        let is_met = mark.subject.kind() != SubjectKind::Unreadable
            || cause.penalty.is_some_and(refuses_this);
        if outcome != SetOutcome::Full && is_met {
            // The ban that was there may end later.
            let ban = self.marks.get(MarkKind::Ban, mark.id, self.now);
            let ban = ban.map(|ban| (ban, self.now));
            self.effects.ban = longer_ban(self.effects.ban.take(), ban);
        }
        if outcome.is_set() {
            let penalty = cause.source.to_owned();
            self.effects.consequences.effects.push(Effect::Banned { mark, penalty });
        }
        outcome
    }

    /// The subject that a step bans: the subject of the count, unless the step names another. The count
    /// of requests without a part is that of many clients, and bans none of them: it bans such requests.
    pub(super) fn banned_subject(
        &self,
        step: &Step,
        cause: Cause<'_>,
        subject: Option<&Subject>,
    ) -> Option<Subject> {
        match (subject, step.ban.as_ref()?.by) {
            (None, _) => cause.penalty?.unreadable_subject(self.context),
            (Some(subject), None) => Some(subject.clone()),
            (Some(_), Some(by)) => Subject::of_ban(by, self.context),
        }
    }

    fn notify(
        &mut self,
        step: &Step,
        cause: Cause<'_>,
        action: &'static str,
        subject: &Subject,
        until_unix_us: Option<u64>,
    ) {
        let policy = self.context.policy();
        let webhooks = step.notify.iter().filter_map(|at| policy.protection.webhooks.get(*at));
        self.effects.consequences.effects.extend(webhooks.map(|webhook| {
            Effect::Notify(Notice {
                webhook: webhook.name.clone(),
                policy: policy.name.clone(),
                source: cause.source.to_owned(),
                subject: subject.clone(),
                count: cause.count,
                action,
                at_unix_us: self.now.unix_us,
                until_unix_us,
            })
        }));
    }

    /// A ban or a flag of this policy.
    fn mark(&self, kind: MarkKind, flag: Option<&str>, subject: Subject, cause: Cause<'_>) -> Mark {
        let policy = Some(&*self.context.policy().name);
        let reason = format!("{} events within {}", cause.count, written_duration(cause.within_us));
        Mark { reason, ..self.marks.new_mark(kind, policy, flag, subject, cause.source, self.now) }
    }
}

impl<'p> Cause<'p> {
    pub(super) fn of_penalty(penalty: &'p Penalty, count: u64) -> Self {
        let Penalty { name, by, within_us, .. } = penalty;
        Self { source: name, penalty: Some(penalty), by, within_us: *within_us, count }
    }

    pub(super) fn of_ratio(ratio: &'p Ratio, count: u64) -> Self {
        let Ratio { name, by, within_us, .. } = ratio;
        Self { source: name, penalty: None, by, within_us: *within_us, count }
    }
}

/// Of two bans the one that ends later; of equals, the first.
pub(crate) fn longer_ban(
    one: Option<(Mark, Now)>,
    other: Option<(Mark, Now)>,
) -> Option<(Mark, Now)> {
    let left = |(mark, now): &(Mark, Now)| mark.time_left(*now).unwrap_or(Duration::MAX);
    match (one, other) {
        (Some(one), Some(other)) if left(&other) > left(&one) => Some(other),
        (one, other) => one.or(other),
    }
}
