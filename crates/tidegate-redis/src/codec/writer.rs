//! Writes one command.

use tidegate::Amount;
use tidegate::engine::algorithm::{Spec, calendar, token_bucket};
use tidegate::engine::plan::{Enforcement, LEVELS_MAX, Mode, Plan};
use tidegate::engine::store::{Amendment, Change};

use super::Command;
use crate::loans::LoanRequest;

/// No length or instant is larger (71 years; policies allow 1000 days, and clocks count from 1970). So
/// all sums of the script are exact.
const LENGTH_US_MAX: u64 = 1 << 51;
const INSTANT_US_MAX: u64 = 1 << 52;

const AMOUNT_MAX: u64 = Amount::MAX.micros();
/// The kind of plans that the script's fast path decides.
const PLAIN: u8 = 0;
/// Reports of more epochs than this are useless: the older epochs are over.
const REPORTS_MAX: usize = 8;

/// An argument that is being written.
pub(super) struct Writer {
    argument: Vec<u8>,
}

impl Writer {
    /// A pattern: what a plain plan says apart from its own keys and its holder, so that many plans share
    /// it. For each level the index of its key if that is common to all, or 0.
    pub(super) fn pattern(plan: &Plan, common_keys: &[u8]) -> Vec<u8> {
        let mut writer = Self::new(PLAIN, plan.levels.len(), &[]);
        writer.plan(plan, 0);
        writer.argument.extend(common_keys);
        writer.argument
    }

    /// A command by itself, with the indices of its keys.
    pub(super) fn command(command: &Command, keys: &[u16]) -> Vec<u8> {
        let kind = match command {
            Command::Decide(_) => 1,
            Command::Amend(_) => 2,
            Command::Lend(_) => 3,
        };
        let mut writer = Self::new(kind, keys.len(), keys);
        match command {
            Command::Decide(plan) => writer.plan(plan, plan.holder),
            Command::Amend(amendments) => writer.amendments(amendments),
            Command::Lend(request) => writer.loan(request),
        }
        writer.argument
    }

    fn new(kind: u8, count: usize, keys: &[u16]) -> Self {
        let mut argument = Vec::with_capacity(128);
        argument.extend([kind, u8::try_from(count).unwrap_or(u8::MAX)]);
        argument.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
        Self { argument }
    }

    fn plan(&mut self, plan: &Plan, holder: u64) {
        self.argument.extend([u8::from(plan.mode == Mode::Charge), count(&plan.levels)]);
        self.number(holder);
        for level in plan.levels.iter().take(LEVELS_MAX) {
            let enforced = level.enforcement == Enforcement::Reject;
            self.argument.extend([kind(&level.spec), u8::from(enforced)]);
            self.number(level.cost.micros());
            self.spec(&level.spec);
        }
    }

    fn amendments(&mut self, amendments: &[Amendment]) {
        self.argument.push(count(amendments));
        for amendment in amendments.iter().take(LEVELS_MAX) {
            let (change, micros) = match amendment.change {
                Change::Refund(amount) => (1, amount.micros()),
                Change::Surcharge(amount) => (2, amount.micros()),
                Change::Release => (3, 0),
                Change::Renew => (4, 0),
                Change::Reset => (5, 0),
                Change::Debit(amount) => (6, amount.micros()),
                // The script ignores a change that it does not know.
                _ => (0, 0),
            };
            self.argument.extend([kind(&amendment.level.spec), change]);
            self.number(micros);
            self.instant(amendment.charged_at_us);
            self.number(amendment.holder);
            self.spec(&amendment.level.spec);
        }
    }

    fn loan(&mut self, request: &LoanRequest) {
        self.spec(&request.level.spec);
        for number in
            [request.wish.min(AMOUNT_MAX), request.parts.max(1), request.least.min(AMOUNT_MAX)]
        {
            self.number(number);
        }
        let reports = &request.reports[..request.reports.len().min(REPORTS_MAX)];
        self.argument.push(u8::try_from(reports.len()).unwrap_or(0));
        for report in reports {
            for number in [report.epoch, report.spent, report.returned] {
                self.number(number.min(INSTANT_US_MAX));
            }
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

/// How many of them are sent.
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
