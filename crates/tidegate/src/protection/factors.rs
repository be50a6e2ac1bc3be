//! Factors make the limits of a request larger or smaller (rules 5 and 7). A factor is fixed, follows
//! the load of the host, or is personal: it follows the behaviour of a subject, as a mark.

use std::sync::atomic::Ordering;

use crate::algorithm::Spec;
use crate::context::Context;
use crate::policy::protection::{Behaviour, Comparison, Factor, FactorKind, PPM};
use crate::protection::active::ActiveFactor;
use crate::protection::counts::RatioShare;
use crate::protection::marks::{Mark, MarkKind, Marks, Subject};
use crate::protection::penalise::{Claim, ClaimEffect, Penaliser};
use crate::units::Amount;

/// A product of factors, in parts of 10¹². The product of two factors is exact, and further ones round
/// by less than a limit can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multiplier(u64);

/// The largest product: a million times.
const TIMES_MAX: u128 = 1_000_000_000_000_000_000;

impl Multiplier {
    pub(crate) const ONE: Self = Self(1_000_000_000_000);

    /// Multiplied by another factor.
    pub(crate) fn and(self, ppm: u64) -> Self {
        let times = u128::from(self.0) * u128::from(ppm) / u128::from(PPM);
        Self(u64::try_from(times.min(TIMES_MAX)).unwrap_or(u64::MAX))
    }

    /// In millionths.
    pub(crate) const fn ppm(self) -> u64 {
        self.0 / 1_000_000
    }

    /// `max(1, floor(n × f))`, in whole units.
    pub(crate) fn of(self, amount: Amount) -> Amount {
        let units = u128::from(amount.micros()) * u128::from(self.0);
        let units = units / u128::from(Self::ONE.0) / u128::from(PPM);
        let units = u64::try_from(units).ok().and_then(Amount::from_units);
        units.unwrap_or(Amount::MAX).max(Amount::ONE)
    }
}

impl Spec {
    /// The spec times a factor: count and burst, each at least 1.
    pub(crate) fn scaled(mut self, times: Multiplier) -> Self {
        match &mut self {
            Self::TokenBucket(spec) => {
                (spec.count, spec.burst) = (times.of(spec.count), times.of(spec.burst));
            }
            Self::SlidingWindow(spec) => spec.limit = times.of(spec.limit),
            Self::SlidingCounter(spec) => spec.limit = times.of(spec.limit),
            Self::FixedWindow(spec) => spec.limit = times.of(spec.limit),
            Self::Quota(spec) => spec.limit = times.of(spec.limit),
            Self::Concurrency(spec) => spec.places = times.of(spec.places),
            Self::Total(spec) => spec.limit = times.of(spec.limit),
            Self::Ceiling(spec) => spec.limit = times.of(spec.limit),
        }
        self
    }
}

/// All factors that apply to a request, multiplied.
pub(crate) fn of_request(context: &Context<'_>, marks: &Marks) -> Multiplier {
    applying(context, marks).fold(Multiplier::ONE, |times, (_, ppm)| times.and(ppm))
}

/// True if a factor that follows the load makes the limits of a request smaller now.
pub(crate) fn load_reduces(context: &Context<'_>) -> bool {
    let active = &context.active;
    let mut factors = active.policy.protection.factors.iter().zip(&active.protection.factors);
    factors.any(|(factor, active)| {
        matches!(factor.kind, FactorKind::Load { times_ppm, .. } if times_ppm < PPM)
            && active.is_tripped.load(Ordering::Relaxed)
            && factor.when.holds(context)
    })
}

/// The factors that apply to a request, in millionths.
pub(crate) fn applying<'f>(
    context: &'f Context<'_>,
    marks: &'f Marks,
) -> impl Iterator<Item = (&'f Factor, u64)> {
    let active = &context.active;
    let factors = active.policy.protection.factors.iter().zip(&active.protection.factors);
    factors.filter_map(move |(factor, active)| {
        let ppm = match &factor.kind {
            FactorKind::Fixed { times_ppm } => *times_ppm,
            FactorKind::Load { times_ppm, .. } => {
                active.is_tripped.load(Ordering::Relaxed).then_some(*times_ppm)?
            }
            FactorKind::Behaviour(behaviour) => {
                let (ppm, _) = marks.factor(&active.marks, context, context.now)?;
                ppm.clamp(behaviour.lowest_ppm, behaviour.highest_ppm)
            }
        };
        let applies = match ppm > PPM {
            true => factor.when.surely_holds(context),
            false => factor.when.holds(context),
        };
        applies.then_some((factor, ppm))
    })
}

impl Behaviour {
    /// The factor after one step; the same at the end of the range.
    fn moved(&self, ppm: u64, is_good: bool) -> u64 {
        let moved = match is_good {
            true => ppm.saturating_add(self.step_ppm),
            false => ppm.saturating_sub(self.step_ppm),
        };
        moved.clamp(self.lowest_ppm, self.highest_ppm)
    }
}

impl Comparison {
    /// Compares the share that one sum has of another. The share of nothing in nothing is zero.
    pub(super) fn holds(self, of: Amount, to: Amount, share_ppm: u64) -> bool {
        let to = if of.is_zero() && to.is_zero() { Amount::ONE } else { to };
        let share = u128::from(of.micros()) * u128::from(PPM);
        let bound = u128::from(to.micros()) * u128::from(share_ppm);
        match self {
            Self::Below => share < bound,
            Self::AtMost => share <= bound,
            Self::Above => share > bound,
            Self::AtLeast => share >= bound,
        }
    }
}

impl<'p> Penaliser<'p> {
    /// Moves the personal factors that follow these ratios, each given with its index.
    pub(super) fn move_factors(&mut self, shares: &[(usize, RatioShare)]) {
        let active = &self.context.active;
        for (factor, keys) in
            active.policy.protection.factors.iter().zip(&active.protection.factors)
        {
            if let FactorKind::Behaviour(behaviour) = &factor.kind {
                let claim = self.claim_move(factor, behaviour, keys, shares);
                self.claims.extend(claim);
            }
        }
    }

    /// Lets one node move a factor by one step; `None` if no step is due.
    fn claim_move(
        &self,
        factor: &'p Factor,
        behaviour: &'p Behaviour,
        keys: &ActiveFactor,
        shares: &[(usize, RatioShare)],
    ) -> Option<Claim<'p>> {
        let mut is_good = true;
        for good in &behaviour.good {
            let (_, share) = shares.iter().find(|(ratio, _)| *ratio == good.ratio)?;
            if !share.has_enough(self.context.policy().protection.ratios.get(good.ratio)?) {
                return None;
            }
            is_good &= good.comparison.holds(share.of, share.to, good.share_ppm);
        }
        if !behaviour.by.iter().all(|part| self.context.has(part)) {
            return None;
        }
        let earned = self.marks.factor(&keys.marks, self.context, self.now);
        let age_us = earned.map(|(_, since_us)| self.now.steady_us.saturating_sub(since_us));
        if age_us.is_some_and(|age_us| age_us < behaviour.every_us) {
            return None;
        }
        let from_ppm = earned.map_or(PPM, |(ppm, _)| ppm);
        let to_ppm = behaviour.moved(from_ppm, is_good);
        if to_ppm == from_ppm {
            return None;
        }
        let (by, every_us) = (&behaviour.by, behaviour.every_us);
        let level = self.levels.once(&keys.step, by, &factor.name, every_us);
        Some(Claim::once(level, ClaimEffect::Factor(factor, to_ppm)))
    }

    pub(super) fn set_factor(&self, factor: &Factor, to_ppm: u64) {
        let (policy, name) = (&*self.context.policy().name, &*factor.name);
        let Some(subject) = Subject::of(factor.by(), self.context) else { return };
        let (kind, marks) = (MarkKind::Factor, self.marks);
        let mark = marks.new_mark(kind, Some(policy), Some(name), subject, name, self.now);
        let mark = Mark { factor_ppm: Some(to_ppm), ..mark };
        self.marks.set(&mark, self.now);
    }
}

#[cfg(test)]
mod tests;
