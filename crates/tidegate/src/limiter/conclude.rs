//! Conclude: from the store's answer to the decision.

use std::cmp::Ordering;
use std::convert::Infallible;
use std::sync::Arc;

use super::pipeline::Attempt;
use super::waiting::let_past;
use crate::clock::Now;
use crate::context::Context;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::plan::{Enforcement, Level};
use crate::policy::model::{Exceed, Limit};
use crate::precheck::Precheck;
use crate::protection::{events, factors};
use crate::reservation::Reservation;
use crate::store::Reply;
use crate::units::Amount;

/// What the replies of a request's limits come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conclusion {
    pub(super) outcome: Outcome,
    /// The level that answers name, by its place in the plan.
    named: Option<usize>,
}

impl Attempt {
    /// Judges the answer, in which requests that wait already are let past.
    #[inline]
    pub(super) fn judge(&mut self, context: &Context<'_>) {
        if let Some(ahead) = &self.ahead {
            let_past(ahead, &self.plan, &mut self.answer);
        }
        let (outcome, named) = match &self.precheck {
            Precheck::Ordinary => self.judge_replies(context),
            settled => (settled.outcome(), None),
        };
        self.conclusion = Some(Conclusion { outcome, named });
    }

    #[inline]
    fn judge_replies(&self, context: &Context<'_>) -> (Outcome, Option<usize>) {
        let (levels, replies) = (&self.plan.levels, &self.answer.replies);
        if replies.iter().all(Reply::is_allowed) {
            return (Outcome::Allowed, smallest_share(levels, replies));
        }
        let over = |enforcement| longest_wait(levels, replies, enforcement);
        let challenges = |limit: &Limit| limit.exceed == Exceed::Challenge;
        match (over(Enforcement::Reject), over(Enforcement::Warn)) {
            (Some(named), _) if self.refusing(context).all(challenges) => {
                (Outcome::Challenged, Some(named))
            }
            (Some(named), _) => (Outcome::Limited, Some(named)),
            (None, Some(named)) => (Outcome::Warned, Some(named)),
            (None, None) => (Outcome::Allowed, smallest_share(levels, replies)),
        }
    }

    /// The limits that refuse the request.
    pub(super) fn refusing<'c>(&self, context: &'c Context<'_>) -> impl Iterator<Item = &'c Limit> {
        let levels = self.plan.levels.iter().zip(&self.answer.replies);
        let refusing = levels.filter(|(level, reply)| is_over(level, reply, Enforcement::Reject));
        refusing.filter_map(|(level, _)| context.policy().limits.get(usize::from(level.limit)))
    }

    /// The decision on an attempt that has its conclusion.
    pub(super) fn conclude(&mut self, context: &Context<'_>) -> Decision {
        self.conclude_ok::<Infallible>(context).unwrap_or_else(|never| match never {})
    }

    /// The same as a result. A decision is large: the caller returns it where it is written.
    #[inline(never)]
    pub(super) fn conclude_ok<E>(&mut self, context: &Context<'_>) -> Result<Decision, E> {
        let conclusion =
            self.conclusion.unwrap_or(Conclusion { outcome: Outcome::Allowed, named: None });
        let (plan, replies) = (&self.plan, &self.answer.replies);
        let degraded = self.store_error.is_some();
        let reservation = match self.may_change {
            true => Reservation::new(context, plan, &self.answer, degraded),
            false => None,
        };
        // A shared store tells the wall clock's time; its steady time means nothing here.
        let unix_us = match replies.is_empty() {
            true => context.now.unix_us,
            false => self.answer.now.unix_us,
        };
        let is_ordinary = self.precheck == Precheck::Ordinary;
        Ok(Decision {
            outcome: conclusion.outcome,
            reservation,
            degraded,
            store_error: self.store_error.clone(),
            now: Now { unix_us, ..context.now },
            active: Arc::clone(&context.active),
            operation: context.operation,
            tier: context.tier,
            factor: self.factor,
            load_reduces: conclusion.outcome == Outcome::Limited && factors::load_reduces(context),
            sees_answers: is_ordinary && events::sees_answers(context),
            // The decision takes the ban over: a mark is too large to be copied.
            penalty: match std::mem::replace(&mut self.precheck, Precheck::Ordinary) {
                Precheck::Banned(ban) => Some(Decision::ban_alone(*ban)),
                _ => None,
            },
            named: conclusion.named,
            limits: plan.levels.iter().zip(replies).map(report).collect(),
        })
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

/// True if a level is over, and being over has this consequence.
fn is_over(level: &Level, reply: &Reply, enforcement: Enforcement) -> bool {
    level.enforcement == enforcement && !reply.is_allowed()
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
