//! Factors: what makes the limits of a request larger or smaller (rules 5 and 7).

use std::sync::atomic::Ordering;

use crate::algorithm::Spec;
use crate::context::Context;
use crate::policy::protection::{Behaviour, Comparison, Factor, FactorKind, PPM};
use crate::protection::marks::Marks;
use crate::units::Amount;

/// A product of factors, in parts of 10¹²: products of two factors are exact, and further ones are off
/// by less than anybody can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times(u64);

/// A million times is more than anybody means.
const TIMES_MAX: u128 = 1_000_000_000_000_000_000;

impl Times {
    pub(crate) const ONE: Self = Self(1_000_000_000_000);

    /// Times another factor.
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
    pub(crate) fn scaled(mut self, times: Times) -> Self {
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
pub(crate) fn of_request(context: &Context<'_>, marks: &Marks) -> Times {
    applying(context, marks).fold(Times::ONE, |times, (_, ppm)| times.and(ppm))
}

/// The factors that apply to a request, in millionths.
pub(crate) fn applying<'f>(
    context: &'f Context<'_>,
    marks: &'f Marks,
) -> impl Iterator<Item = (&'f Factor, u64)> {
    let factors = context.policy().protection.factors.iter().enumerate();
    factors.filter_map(move |(index, factor)| {
        let keys = &context.active.guard.factors[index];
        let ppm = match &factor.kind {
            FactorKind::Fixed { times_ppm } => Some(*times_ppm),
            FactorKind::Load { times_ppm, .. } => {
                keys.tripped.load(Ordering::Relaxed).then_some(*times_ppm)
            }
            FactorKind::Behaviour(behaviour) => {
                let earned = marks.factor(&keys.marks, context, context.now);
                earned.map(|(ppm, _)| ppm.clamp(behaviour.lowest_ppm, behaviour.highest_ppm))
            }
        }?;
        factor.when.holds(context).then_some((factor, ppm))
    })
}

/// Where one step takes a factor; the same where it is at its end.
pub(crate) fn stepped(behaviour: &Behaviour, ppm: u64, is_good: bool) -> u64 {
    let moved = if is_good {
        ppm.saturating_add(behaviour.step_ppm)
    } else {
        ppm.saturating_sub(behaviour.step_ppm)
    };
    moved.clamp(behaviour.lowest_ppm, behaviour.highest_ppm)
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

#[cfg(test)]
mod tests;
