//! What the answers of a request's limits come to.
//!
//! A decision is too large to be moved about: it is written once, where it is returned.

use std::cmp::Ordering;
use std::sync::Arc;

use super::decide::{Found, may_change};
use super::waiting::let_past;
use crate::algorithm::{Spec, Verdict, total};
use crate::clock::Now;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::{Enforcement, LEVELS_INLINE, Level, PerLevel, Plan};
use crate::policy::Policy;
use crate::policy::model::Exceed;
use crate::protection::events::Consequences;
use crate::protection::marks::Mark;
use crate::reservation::Reservation;
use crate::store::{Answer, Reply, StoreError};
use crate::units::Amount;

/// What becomes of a request, and which of its levels answers name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub(super) outcome: Outcome,
    pub(super) named: Option<usize>,
}

impl Found {
    /// The decision where no limit has a part in it.
    pub(super) fn decision(self) -> Decision {
        let banned = |ban: Box<Mark>| Decision::penalty_of(Consequences::default(), Some(*ban));
        Decision {
            outcome: self.outcome,
            limits: PerLevel::new(),
            reservation: None,
            degraded: false,
            store_error: None,
            now: self.now,
            policy: self.policy,
            operation: self.operation,
            tier: self.tier,
            times: self.times,
            sees_answers: self.sees_answers,
            penalty: self.ban.map(banned),
            named: None,
        }
    }

    /// The decision that an answer comes to.
    pub(super) fn conclude(
        self,
        plan: &Plan,
        answer: &mut Answer,
        store_error: Option<StoreError>,
    ) -> Decision {
        let judged = self.judge(plan, answer);
        self.concluded(judged, plan, answer, store_error)
    }

    /// The same of an answer that is judged.
    #[inline(never)]
    fn concluded(
        self,
        judged: Judged,
        plan: &Plan,
        answer: &Answer,
        store_error: Option<StoreError>,
    ) -> Decision {
        let reports = || plan.levels.iter().zip(&answer.replies).map(report).collect();
        self.decided(judged, plan, answer, store_error, reports)
    }

    /// The same, as it is returned where the store was not lost.
    #[inline(never)]
    pub(super) fn returned<E>(
        self,
        judged: Judged,
        plan: &Plan,
        answer: &Answer,
    ) -> Result<Decision, E> {
        let (levels, replies) = (&plan.levels, &answer.replies);
        if levels.len() > LEVELS_INLINE {
            return Ok(self.concluded(judged, plan, answer, None));
        }
        let count = levels.len().min(replies.len());
        let reports = || PerLevel::from_buf_and_len(few_reports(levels, replies), count);
        Ok(self.decided(judged, plan, answer, None, reports))
    }

    /// What becomes of a request by an answer, in which others are let past who wait already.
    #[inline]
    pub(super) fn judge(&self, plan: &Plan, answer: &mut Answer) -> Judged {
        if let Some(ahead) = &self.ahead {
            let_past(ahead, plan, answer);
        }
        Judged::of(&self.policy, &plan.levels, &answer.replies)
    }

    /// The decision by an answer that is judged. The reports are made last, in their place in it.
    #[inline(always)]
    fn decided(
        self,
        judged: Judged,
        plan: &Plan,
        answer: &Answer,
        store_error: Option<StoreError>,
        reports: impl FnOnce() -> PerLevel<LimitReport>,
    ) -> Decision {
        let Judged { outcome, named } = judged;
        let Self { policy, operation, tier, reserve, may_change, times, sees_answers, .. } = self;
        drop((self.ban, self.ahead));
        let degraded = store_error.is_some();
        let reservation = if may_change {
            Reservation::of(&policy, plan, answer, reserve, degraded)
        } else {
            None
        };
        // A shared store has a wall clock to go by, but its steady time means nothing here.
        let now = Now { steady_us: plan.now.steady_us, ..answer.now };
        Decision {
            outcome,
            limits: reports(),
            reservation,
            degraded,
            store_error,
            now,
            policy,
            operation,
            tier,
            times,
            sees_answers,
            penalty: None,
            named,
        }
    }
}

impl Decision {
    /// The request again, to be asked once more.
    pub(super) fn reopened(&self, plan: &Plan, reserve: bool) -> Found {
        Found {
            policy: Arc::clone(&self.policy),
            outcome: Outcome::Allowed,
            operation: self.operation,
            tier: self.tier,
            now: self.now,
            ban: None,
            ahead: None,
            reserve,
            may_change: may_change(plan, reserve),
            times: self.times,
            sees_answers: self.sees_answers,
        }
    }
}

/// What each of a few limits had to say, and nothing where there are fewer. Both this and what it is made
/// of are calls, so that what they return is written where it stays: pushed one by one, all would be
/// copied there afterwards, and read back before it is written.
#[inline(never)]
fn few_reports(levels: &[Level], replies: &[Reply]) -> [LimitReport; LEVELS_INLINE] {
    let report = |place| report_or_nothing(levels, replies, place);
    [report(0), report(1), report(2), report(3), report(4), report(5)]
}

#[inline(never)]
fn report_or_nothing(levels: &[Level], replies: &[Reply], place: usize) -> LimitReport {
    match (levels.get(place), replies.get(place)) {
        (Some(level), Some(reply)) => report((level, reply)),
        _ => NOTHING,
    }
}

/// The report of no limit.
const NOTHING: LimitReport = LimitReport {
    limit: 0,
    spec: Spec::Total(total::Spec { limit: Amount::ZERO }),
    cost: Amount::ZERO,
    verdict: Verdict::Allowed,
    charged: false,
    available: Amount::ZERO,
    reset_us: None,
    enforcement: Enforcement::Shadow,
};

fn report((level, reply): (&Level, &Reply)) -> LimitReport {
    LimitReport {
        limit: level.limit,
        spec: level.spec,
        cost: level.cost,
        verdict: reply.verdict,
        charged: reply.charged,
        available: reply.reading.available,
        reset_us: reply.reading.reset_us,
        enforcement: level.enforcement,
    }
}

impl Judged {
    #[inline]
    fn of(policy: &Policy, levels: &[Level], replies: &[Reply]) -> Self {
        if replies.iter().all(Reply::is_allowed) {
            return Self { outcome: Outcome::Allowed, named: smallest_share(levels, replies) };
        }
        Self::of_exceeded(policy, levels, replies)
    }

    /// Of a request that does not fit all its limits.
    fn of_exceeded(policy: &Policy, levels: &[Level], replies: &[Reply]) -> Self {
        let over = |enforcement| longest_wait(levels, replies, enforcement);
        let (outcome, named) = match (over(Enforcement::Reject), over(Enforcement::Warn)) {
            (Some(named), _) if only_challenges(policy, levels, replies) => {
                (Outcome::Challenged, Some(named))
            }
            (Some(named), _) => (Outcome::Limited, Some(named)),
            (None, Some(named)) => (Outcome::Warned, Some(named)),
            (None, None) => (Outcome::Allowed, smallest_share(levels, replies)),
        };
        Self { outcome, named }
    }
}

/// Whether a level that is over means this.
fn is_over(level: &Level, reply: &Reply, enforcement: Enforcement) -> bool {
    level.enforcement == enforcement && !reply.is_allowed()
}

/// Whether all limits that refuse ask for a challenge.
fn only_challenges(policy: &Policy, levels: &[Level], replies: &[Reply]) -> bool {
    let mut refusing = levels
        .iter()
        .zip(replies)
        .filter(|(level, reply)| is_over(level, reply, Enforcement::Reject));
    refusing.all(|(level, _)| {
        let limit = policy.limits.get(usize::from(level.limit));
        limit.is_some_and(|limit| limit.exceed == Exceed::Challenge)
    })
}

/// Of the limits that deny with this enforcement, the one with the longest wait; no waiting at all
/// ranks as the longest, and of equals the first in the policy is named.
fn longest_wait(levels: &[Level], replies: &[Reply], enforcement: Enforcement) -> Option<usize> {
    let over = |at: &usize| is_over(&levels[*at], &replies[*at], enforcement);
    let candidates = (0..levels.len().min(replies.len())).filter(over);
    candidates.rev().max_by_key(|at| replies[*at].retry_after_us().unwrap_or(u64::MAX))
}

/// Of the limits that the client may know of, the one with the smallest share of its capacity left.
#[inline]
fn smallest_share(levels: &[Level], replies: &[Reply]) -> Option<usize> {
    let mut smallest: Option<(usize, (Amount, Amount))> = None;
    for (at, (level, reply)) in levels.iter().zip(replies).enumerate() {
        let share = (reply.reading.available, level.spec.capacity());
        if level.enforcement != Enforcement::Shadow
            && smallest.is_none_or(|(_, least)| share_order(share, least) == Ordering::Less)
        {
            smallest = Some((at, share));
        }
    }
    smallest.map(|(at, _)| at)
}

/// Compares available ÷ capacity exactly, by cross-multiplying.
fn share_order(a: (Amount, Amount), b: (Amount, Amount)) -> Ordering {
    let micros = |amount: Amount| u128::from(amount.micros());
    (micros(a.0) * micros(b.1)).cmp(&(micros(b.0) * micros(a.1)))
}
