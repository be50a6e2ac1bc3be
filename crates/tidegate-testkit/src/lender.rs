//! A naive bucket that lends: the reference for the script's token loans, and the shared store of a
//! simulation.
//!
//! Debts are exact fractions, time goes from edge to edge of an epoch, and each epoch has its own
//! count of lent tokens.

use std::collections::BTreeMap;

use tidegate::engine::algorithm::token_bucket::Spec;
use tidegate_redis::loans::{LoanReply, LoanReport, LoanRequest};

/// How long an epoch is, and how long a loan lasts, as the script has it.
pub const EPOCH_US: u64 = 4_000_000;
/// See [`EPOCH_US`].
pub const LASTS_US: u64 = 3_000_000;

/// One bucket.
#[derive(Clone, Debug)]
pub struct Lender {
    spec: Spec,
    at_us: u64,
    /// In millionths times the period.
    owed: u128,
    /// LoanReply and unspent tokens, by epoch.
    out: BTreeMap<u64, u64>,
}

impl Lender {
    /// A full one.
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        Self { spec, at_us: 0, owed: 0, out: BTreeMap::new() }
    }

    /// Charges a cost if the level covers it.
    pub fn charge(&mut self, now_us: u64, cost: u64) -> bool {
        self.advance(now_us);
        let fits = cost <= self.available();
        if fits {
            self.owed += self.scaled(cost);
        }
        fits
    }

    /// The spendable level in millionths, at the time of the last call.
    #[must_use]
    pub fn available(&self) -> u64 {
        let owed = self.owed.div_ceil(self.period());
        self.spec.burst.micros().saturating_sub(u64::try_from(owed).unwrap_or(u64::MAX))
    }

    /// Borrowed tokens that are not reported as spent.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.out.values().sum()
    }

    /// The same at a later time.
    #[must_use]
    pub fn outstanding_at(&self, now_us: u64) -> u64 {
        let mut later = self.clone();
        later.advance(now_us);
        later.outstanding()
    }

    /// Takes the report about earlier loans, and grants another.
    pub fn lend(&mut self, now_us: u64, loan: &LoanRequest) -> LoanReply {
        self.advance(now_us);
        for report in &loan.reports {
            self.report(report);
        }
        let mut granted = loan.wish.min(self.available() / loan.parts);
        if granted < loan.least {
            granted = 0;
        }
        let epoch = self.epoch();
        self.owed += self.scaled(granted);
        if granted > 0 {
            *self.out.entry(epoch).or_default() += granted;
        }
        let (available, outstanding) = (self.available(), self.outstanding());
        let now_us = self.at_us;
        LoanReply { now_us, granted, epoch, lasts_us: LASTS_US, available, outstanding }
    }

    /// The time until the level covers a cost, if no other request comes; found step by step.
    #[must_use]
    pub fn fits_after_us(&self, cost: u64, within_us: u64) -> Option<u64> {
        let fits = |wait_us: u64| self.clone().charge(self.at_us + wait_us, cost);
        if !fits(within_us) {
            return None;
        }
        let (mut early, mut late) = (0, within_us);
        while early < late {
            let middle = early.midpoint(late);
            if fits(middle) { late = middle } else { early = middle + 1 }
        }
        Some(late)
    }

    /// Asserts that level and loans never exceed the burst.
    ///
    /// # Errors
    /// They are.
    pub fn check(&self) -> Result<(), String> {
        let out = self.scaled(self.outstanding());
        let kept = out <= self.owed;
        kept.then_some(()).ok_or_else(|| format!("{} is owed, but {out} is out", self.owed))
    }

    fn report(&mut self, report: &LoanReport) {
        let Some(out) = self.out.get_mut(&report.epoch) else { return };
        let spent = report.spent.min(*out);
        let returned = report.returned.min(*out - spent);
        *out -= spent + returned;
        self.owed -= self.scaled(returned);
    }

    /// Lets time pass. It never goes back.
    fn advance(&mut self, now_us: u64) {
        while self.at_us < now_us {
            let edge_us = (self.epoch() + 1) * EPOCH_US;
            // Without lent tokens nothing happens at an edge.
            let to_us = if self.out.is_empty() { now_us } else { edge_us.min(now_us) };
            let refilled = u128::from(to_us - self.at_us) * u128::from(self.spec.count.micros());
            let floor = self.scaled(self.outstanding());
            self.owed = self.owed.saturating_sub(refilled).max(floor);
            self.at_us = to_us;
            let epoch = self.epoch();
            self.out.retain(|lent, _| *lent + 2 > epoch);
        }
    }

    fn epoch(&self) -> u64 {
        self.at_us / EPOCH_US
    }

    fn scaled(&self, micros: u64) -> u128 {
        u128::from(micros) * self.period()
    }

    fn period(&self) -> u128 {
        u128::from(self.spec.period_us.max(1))
    }
}
