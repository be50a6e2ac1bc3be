//! Conclude: from the store's answer to the decision.

use std::cmp::Ordering;
use std::sync::Arc;

use super::pipeline::Attempt;
use super::waiting::let_past;
use crate::clock::Now;
use crate::context::Context;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::{Enforcement, Level};
use crate::policy::Policy;
use crate::policy::model::Exceed;
use crate::precheck::Precheck;
use crate::protection::events;
use crate::reservation::Reservation;
use crate::store::{Answer, Reply, StoreError};
use crate::units::Amount;

/// The decision on a request. Without an answer, no limit has a part in it; with an error, the store was
/// lost and the answer is this node's own.
#[inline]
pub(super) fn conclude(
    context: &Context<'_>,
    attempt: &mut Attempt,
    mut answer: Option<&mut Answer>,
    store_error: Option<StoreError>,
) -> Decision {
    // The decision takes the ban over: a mark is too large to be copied.
    let precheck = std::mem::replace(&mut attempt.precheck, Precheck::Ordinary);
    let plan = &attempt.plan;
    if let (Some(ahead), Some(answer)) = (&attempt.ahead, &mut answer) {
        let_past(ahead, plan, answer);
    }
    let replies = answer.as_ref().map_or(&[][..], |answer| &answer.replies);
    let (outcome, named) = match &precheck {
        Precheck::Ordinary => judge(context.policy(), &plan.levels, replies),
        settled => (settled.outcome(), None),
    };
    let degraded = store_error.is_some();
    let reservation = answer
        .as_ref()
        .filter(|_| attempt.may_change)
        .and_then(|answer| Reservation::new(context, plan, answer, degraded));
    // A shared store tells the wall clock's time; its steady time means nothing here.
    let unix_us = answer.as_ref().map_or(context.now.unix_us, |answer| answer.now.unix_us);
    Decision {
        outcome,
        reservation,
        degraded,
        store_error,
        now: Now { unix_us, ..context.now },
        active: Arc::clone(&context.active),
        operation: context.operation,
        tier: context.tier,
        factor: attempt.factor,
        sees_answers: precheck == Precheck::Ordinary && events::sees_answers(context),
        penalty: match precheck {
            Precheck::Banned(ban) => Some(Decision::ban_alone(*ban)),
            _ => None,
        },
        named,
        limits: plan.levels.iter().zip(replies).map(report).collect(),
    }
}

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

/// What the replies of a request's limits come to, and which of its levels answers name.
#[inline]
fn judge(policy: &Policy, levels: &[Level], replies: &[Reply]) -> (Outcome, Option<usize>) {
    if replies.iter().all(Reply::is_allowed) {
        return (Outcome::Allowed, smallest_share(levels, replies));
    }
    let over = |enforcement| longest_wait(levels, replies, enforcement);
    match (over(Enforcement::Reject), over(Enforcement::Warn)) {
        (Some(named), _) if only_challenges(policy, levels, replies) => {
            (Outcome::Challenged, Some(named))
        }
        (Some(named), _) => (Outcome::Limited, Some(named)),
        (None, Some(named)) => (Outcome::Warned, Some(named)),
        (None, None) => (Outcome::Allowed, smallest_share(levels, replies)),
    }
}

/// True if a level is over, and being over has this consequence.
fn is_over(level: &Level, reply: &Reply, enforcement: Enforcement) -> bool {
    level.enforcement == enforcement && !reply.is_allowed()
}

/// True if every limit that refuses asks for a challenge.
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
