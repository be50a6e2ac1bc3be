//! A decision: everything that a surface needs to render an answer.

use std::sync::Arc;
use std::time::Duration;

use crate::active_policy::ActivePolicy;
use crate::algorithm::{self, Verdict};
use crate::clock::{Now, micros};
use crate::plan::{Enforcement, PerLevel};
use crate::policy::Policy;
use crate::policy::model::{Exceed, Limit, OperationId, TierId};
use crate::protection::events::{Consequences, Effect};
use crate::protection::factors::Multiplier;
use crate::protection::marks::Mark;
use crate::reservation::Reservation;
use crate::store::StoreError;
use crate::units::Amount;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It passes.
    Allowed,
    /// It passes and was never counted.
    Exempt,
    /// It passes although a limit is exceeded, and is told so.
    Warned,
    /// A limit refuses it.
    Limited,
    /// Its address or country is refused.
    Blocked,
    /// Its subject is banned.
    Banned,
    /// It must solve a challenge first.
    Challenged,
}

impl Outcome {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Allowed,
        Self::Exempt,
        Self::Warned,
        Self::Limited,
        Self::Blocked,
        Self::Banned,
        Self::Challenged,
    ];

    /// The outcome's name in answers, metrics and policy tests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Exempt => "exempt",
            Self::Warned => "warned",
            Self::Limited => "limited",
            Self::Blocked => "blocked",
            Self::Banned => "banned",
            Self::Challenged => "challenged",
        }
    }

    /// Its place in [`ALL`](Self::ALL), for counters in an array.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether the request goes through.
    #[must_use]
    pub const fn passes(self) -> bool {
        matches!(self, Self::Allowed | Self::Exempt | Self::Warned)
    }
}

/// The decision on one request.
#[derive(Debug)]
#[non_exhaustive]
pub struct Decision {
    /// What becomes of the request.
    pub outcome: Outcome,
    /// Every limit that applied, in the order of the policy.
    pub limits: PerLevel<LimitReport>,
    /// To settle, release or renew later; given where a limit holds a place or counts by status, or
    /// where the request asked to reserve.
    pub reservation: Option<Reservation>,
    /// Whether the store was lost, and each limit did what its `on_store_failure` says.
    pub degraded: bool,
    /// Why the store was lost, for logs and metrics.
    pub store_error: Option<StoreError>,
    /// When it was decided, by the store's clock.
    pub now: Now,
    pub(crate) active: Arc<ActivePolicy>,
    pub(crate) operation: OperationId,
    pub(crate) tier: TierId,
    /// The factors that applied, multiplied.
    pub(crate) factor: Multiplier,
    /// Whether a factor that follows the load made the limits smaller that refuse.
    pub(crate) load_reduces: bool,
    pub(crate) sees_answers: bool,
    /// What protects had to say, which is nothing for nearly every request.
    pub(crate) penalty: Option<Box<PenaltyRecord>>,
    /// Where the limit that answers name stands among the reports.
    pub(crate) named: Option<usize>,
}

/// What events led to, or a ban.
#[derive(Debug)]
pub(crate) struct PenaltyRecord {
    reported: Consequences,
    ban: Option<Mark>,
}

/// What one limit had to say.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitReport {
    /// The limit's place in the policy.
    pub limit: u16,
    /// The numbers in force.
    pub spec: algorithm::Spec,
    /// What the request cost here.
    pub cost: Amount,
    /// Whether the cost fitted.
    pub verdict: Verdict,
    /// Whether it was charged.
    pub charged: bool,
    /// How much could be spent now, after this request.
    pub available: Amount,
    /// Microseconds until nothing is owed any more.
    pub(crate) reset_us: Option<u64>,
    /// What being over means.
    pub enforcement: Enforcement,
}

impl LimitReport {
    /// Whole units that could be spent now.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.available.whole()
    }

    /// Whether the request's cost fitted.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// How long until the same request would fit; `None` if it does now, or never will.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_us().map(Duration::from_micros)
    }

    /// How long until nothing is owed any more; `None` where that never comes by itself.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.reset_us.map(Duration::from_micros)
    }

    pub(crate) fn retry_after_us(&self) -> Option<u64> {
        self.verdict.retry_after_us()
    }
}

impl Decision {
    /// Whether the request goes through.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.outcome.passes()
    }

    /// The limit that answers name: of those that deny, the one with the longest wait (where no
    /// waiting helps, that is the longest); if all allow, the one with the smallest share of its
    /// capacity left; of equals, the first in the policy.
    #[must_use]
    pub fn limit(&self) -> Option<&LimitReport> {
        self.named.and_then(|index| self.limits.get(index))
    }

    /// The policy's limit behind a report.
    #[must_use]
    pub fn limit_of(&self, report: &LimitReport) -> Option<&Limit> {
        self.active.policy.limits.get(usize::from(report.limit))
    }

    /// The name of the limit that answers name.
    #[must_use]
    pub fn limit_name(&self) -> Option<&str> {
        self.limit().and_then(|report| self.limit_of(report)).map(Limit::name)
    }

    /// The HTTP status: 200, or that of the refusal.
    #[must_use]
    pub fn status(&self) -> u16 {
        if let Some(refusal) = self.active.policy.response.refusal(self.outcome) {
            return refusal.status;
        }
        match self.outcome {
            outcome if outcome.passes() => 200,
            _ => self
                .limit()
                .and_then(|report| self.limit_of(report))
                .and_then(|limit| limit.refusal.status)
                .unwrap_or(429),
        }
    }

    /// How long to wait until the same request would be admitted if nobody else came; `None` where
    /// it was admitted or no waiting helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_us().map(Duration::from_micros)
    }

    pub(crate) fn retry_after_us(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Limited => self.limit()?.retry_after_us(),
            Outcome::Banned => self.ban()?.time_left(self.now).map(micros),
            _ => None,
        }
    }

    /// How long the policy lets this request wait for its turn before it is refused: the shortest
    /// `exceed: wait` of the limits that deny it. `None` if it was not limited, or if one of them
    /// rejects at once, or if no waiting helps.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.wait_us().map(Duration::from_micros)
    }

    pub(crate) fn wait_us(&self) -> Option<u64> {
        self.retry_after_us().filter(|_| self.outcome == Outcome::Limited)?;
        let denies = |report: &&LimitReport| {
            report.enforcement == Enforcement::Reject && !report.is_allowed()
        };
        let wait_us = |report: &LimitReport| match self.limit_of(report)?.exceed {
            Exceed::Wait { max_us } => Some(max_us),
            Exceed::Reject | Exceed::Warn | Exceed::Challenge => None,
        };
        let mut waits = self.limits.iter().filter(denies).map(wait_us);
        let first_us = waits.next()??;
        waits.try_fold(first_us, |shortest_us, us| Some(shortest_us.min(us?)))
    }

    /// The policy that decided.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.active.policy
    }

    /// The policy that decided, to keep: it stays what it is over reloads.
    #[must_use]
    pub fn shared_policy(&self) -> &Arc<Policy> {
        &self.active.policy
    }

    /// The place of the operation in [`Policy::operations`].
    #[must_use]
    pub fn operation_index(&self) -> usize {
        usize::try_from(self.operation).unwrap_or(usize::MAX)
    }

    /// The place of the tier in [`Policy::tiers`].
    #[must_use]
    pub fn tier_index(&self) -> usize {
        usize::try_from(self.tier).unwrap_or(usize::MAX)
    }

    /// The operation that was found.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.active.policy.operations.name(self.operation)
    }

    /// The tier that was found.
    #[must_use]
    pub fn tier(&self) -> &str {
        self.active.policy.tiers.name(self.tier)
    }

    /// How long the answer is to be held, by penalties.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.reported().map_or(Duration::ZERO, |reported| reported.delay)
    }

    /// Whether the answer to the request may make an event, so that somebody must look at its status.
    #[must_use]
    pub fn sees_answers(&self) -> bool {
        self.sees_answers
    }

    /// What penalties warn the client of.
    #[must_use]
    pub fn penalty_warnings(&self) -> &[String] {
        self.reported().map_or(&[], |reported| &reported.warnings)
    }

    /// The flags that the request's events have set.
    #[must_use]
    pub fn flags(&self) -> &[String] {
        self.reported().map_or(&[], |reported| &reported.flags)
    }

    /// What somebody else is to hear of.
    #[must_use]
    pub fn effects(&self) -> &[Effect] {
        self.reported().map_or(&[], |reported| &reported.effects)
    }

    /// The ban that refuses the request.
    #[must_use]
    pub fn ban(&self) -> Option<&Mark> {
        self.penalty.as_ref().and_then(|penalty| penalty.ban.as_ref())
    }

    /// The names of the events that the decision has made, for metrics.
    pub fn events(&self) -> impl Iterator<Item = &str> {
        let made = self.reported().map(|reported| &*reported.events).unwrap_or_default();
        let built_in = match self.outcome {
            Outcome::Limited | Outcome::Blocked | Outcome::Banned if made.is_empty() => {
                Some(self.outcome.name())
            }
            _ => None,
        };
        built_in.into_iter().chain(made.iter().map(String::as_str))
    }

    /// The factors that applied, multiplied, in millionths: 1,000,000 where none did.
    #[must_use]
    pub fn factor_ppm(&self) -> u64 {
        self.factor.ppm()
    }

    /// Whether a limit refuses while there is less to give than usual: the store is lost, or a factor
    /// follows a high load.
    pub(crate) fn has_reduced_capacity(&self) -> bool {
        let Some(report) = self.limit().filter(|_| self.outcome == Outcome::Limited) else {
            return false;
        };
        let is_scaled = self.limit_of(report).is_some_and(|limit| limit.scaled);
        self.degraded && !report.spec.is_stateless() || self.load_reduces && is_scaled
    }

    pub(crate) fn penalise(&mut self, reported: Consequences, ban: Option<Mark>) {
        self.penalty = Some(Box::new(PenaltyRecord { reported, ban }));
    }

    /// What penalties had to say of a request that only met a ban.
    pub(crate) fn ban_alone(ban: Mark) -> Box<PenaltyRecord> {
        Box::new(PenaltyRecord { reported: Consequences::default(), ban: Some(ban) })
    }

    fn reported(&self) -> Option<&Consequences> {
        self.penalty.as_ref().map(|penalty| &penalty.reported)
    }

    /// What the client is warned of: the limits that are exceeded but only warn, and what penalties
    /// say.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let warns =
            |report: &&LimitReport| report.enforcement == Enforcement::Warn && !report.is_allowed();
        let passed = self.outcome == Outcome::Warned;
        let reports = self.limits.iter().filter(warns).filter(move |_| passed);
        let limits = reports.filter_map(|report| self.limit_of(report)).map(Limit::name);
        limits.chain(self.penalty_warnings().iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_knows_its_place_among_all() {
        for (place, outcome) in Outcome::ALL.iter().enumerate() {
            assert_eq!(outcome.index(), place, "{}", outcome.name());
        }
    }
}
