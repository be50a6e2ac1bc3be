//! Packs one ask.

use std::sync::Arc;

use tidegate::algorithm::{Spec, calendar, token_bucket};
use tidegate::plan::{Enforcement, LEVELS_MAX, Level, Mode, Plan};
use tidegate::store::{Amendment, Change};
use tidegate::units::Amount;

use crate::keys;
use crate::leases::Loan;

/// No length or instant is larger (71 years; policies know 1000 days, and clocks the time since
/// 1970): so all sums that the script makes are exact.
const LENGTH_US_MAX: u64 = 1 << 51;
const INSTANT_US_MAX: u64 = 1 << 52;

const AMOUNT_MAX: u64 = Amount::MAX.micros();
/// More epochs than this are over by now.
const REPORTS_MAX: usize = 8;

/// An argument in the making.
pub(super) struct Writer<'w> {
    prefix: &'w str,
    keys: &'w mut Vec<Vec<u8>>,
    argument: Vec<u8>,
    own_keys: u8,
}

impl<'w> Writer<'w> {
    pub(super) fn new(prefix: &'w str, keys: &'w mut Vec<Vec<u8>>) -> Self {
        Self { prefix, keys, argument: Vec::with_capacity(128), own_keys: 0 }
    }

    pub(super) fn plan(&mut self, plan: &Plan) {
        let (plain, charge) = (is_plain(plan), u8::from(plan.mode == Mode::Charge));
        self.argument.extend([u8::from(!plain), 0, charge, count(&plan.levels)]);
        // Nobody holds a place in them, so that asks of the same numbers are the same bytes.
        self.number(if plain { 0 } else { plan.holder });
        for (index, level) in plan.levels.iter().take(LEVELS_MAX).enumerate() {
            self.key(plan.names.get(index), level);
            let enforced = level.enforcement == Enforcement::Reject;
            self.argument.extend([kind(&level.spec), u8::from(enforced)]);
            self.number(level.cost.micros());
            self.spec(&level.spec);
        }
    }

    pub(super) fn amendments(&mut self, amendments: &[Amendment]) {
        self.argument.extend([2, 0, count(amendments)]);
        for amendment in amendments.iter().take(LEVELS_MAX) {
            let level = &amendment.level;
            self.key(amendment.name.as_ref(), level);
            let (change, micros) = match amendment.change {
                Change::Refund(amount) => (1, amount.micros()),
                Change::Surcharge(amount) => (2, amount.micros()),
                Change::Release => (3, 0),
                Change::Renew => (4, 0),
                Change::Reset => (5, 0),
                Change::Debit(amount) => (6, amount.micros()),
                // One that the script does not know changes nothing.
                _ => (0, 0),
            };
            self.argument.extend([kind(&level.spec), change]);
            self.number(micros);
            self.instant(amendment.charged_at_us);
            self.number(amendment.holder);
            self.spec(&level.spec);
        }
    }

    pub(super) fn loan(&mut self, loan: &Loan) {
        self.argument.extend([3, 0]);
        self.key(loan.name.as_ref(), &loan.level);
        self.spec(&loan.level.spec);
        for number in [loan.wish.min(AMOUNT_MAX), loan.parts.max(1), loan.least.min(AMOUNT_MAX)] {
            self.number(number);
        }
        let reports = &loan.reports[..loan.reports.len().min(REPORTS_MAX)];
        self.argument.push(u8::try_from(reports.len()).unwrap_or(0));
        for report in reports {
            for number in [report.epoch, report.spent, report.returned] {
                self.number(number.min(INSTANT_US_MAX));
            }
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        if let Some(keys) = self.argument.get_mut(1) {
            *keys = self.own_keys;
        }
        self.argument
    }

    /// A ceiling keeps nothing and has no key.
    fn key(&mut self, name: Option<&Arc<str>>, level: &Level) {
        if !matches!(level.spec, Spec::Ceiling(_)) {
            self.keys.push(keys::state(self.prefix, name, level));
            self.own_keys += 1;
        }
    }

    fn spec(&mut self, spec: &Spec) {
        self.number_of_limit(spec);
        match spec {
            Spec::TokenBucket(_) | Spec::Total(_) | Spec::Ceiling(_) => {}
            Spec::SlidingWindow(spec) => self.length(spec.window_us),
            Spec::SlidingCounter(spec) => self.length(spec.window_us.max(1)),
            Spec::FixedWindow(spec) => self.length(spec.window_us.max(1)),
            Spec::Concurrency(spec) => self.length(spec.lease_us),
            Spec::Quota(spec) => {
                self.number(match spec.unit {
                    calendar::Unit::Day => 0,
                    calendar::Unit::Week => 1,
                    calendar::Unit::Month => 2,
                });
                self.instant(spec.previous_us);
                self.instant(spec.start_us);
                self.instant(spec.end_us);
                self.instant(spec.next_end_us);
            }
        }
    }

    /// The rate of a bucket in lowest terms, so that hardly any product is too large for a double.
    fn number_of_limit(&mut self, spec: &Spec) {
        if let Spec::TokenBucket(token_bucket::Spec { count, period_us, .. }) = spec {
            let (count, period_us) = (count.micros(), (*period_us).clamp(1, LENGTH_US_MAX));
            let common = greatest_common_divisor(count, period_us);
            self.number(count / common);
            self.number(period_us / common);
            self.number(common);
        }
        self.number(spec.capacity().micros());
    }

    fn length(&mut self, us: u64) {
        self.number(us.min(LENGTH_US_MAX));
    }

    fn instant(&mut self, us: u64) {
        self.number(us.min(INSTANT_US_MAX));
    }

    fn number(&mut self, number: u64) {
        self.argument.extend(number.to_le_bytes());
    }
}

/// Whether the script can decide it straight on.
fn is_plain(plan: &Plan) -> bool {
    let Plan { levels, names, .. } = plan;
    let simple = |level: &Level| matches!(level.spec, Spec::TokenBucket(_) | Spec::FixedWindow(_));
    let own = |(index, name): (usize, &Arc<str>)| !names.iter().take(index).any(|one| one == name);
    levels.iter().all(simple) && names.len() == levels.len() && names.iter().enumerate().all(own)
}

const fn kind(spec: &Spec) -> u8 {
    match spec {
        Spec::TokenBucket(_) => 1,
        Spec::SlidingWindow(_) => 2,
        Spec::SlidingCounter(_) => 3,
        Spec::FixedWindow(_) => 4,
        Spec::Quota(_) => 5,
        Spec::Concurrency(_) => 6,
        Spec::Total(_) => 7,
        Spec::Ceiling(_) => 8,
    }
}

/// How many of them travel.
fn count<T>(items: &[T]) -> u8 {
    u8::try_from(items.len().min(LEVELS_MAX)).unwrap_or(u8::MAX)
}

/// Never zero, because the second number is not.
const fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while one != 0 {
        (one, other) = (other % one, one);
    }
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_reduced_to_lowest_terms() {
        assert_eq!(greatest_common_divisor(100_000_000, 1_000_000), 1_000_000);
        assert_eq!(greatest_common_divisor(7_000_000, 259_200_000_000), 1_000_000);
        assert_eq!(greatest_common_divisor(0, 5), 5);
        assert_eq!(greatest_common_divisor(u64::MAX, 1), 1);
    }
}
