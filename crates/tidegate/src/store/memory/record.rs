//! All that a store knows of one key.

use super::specs;
use crate::algorithm::{Ledger, Reading};
use crate::clock::Now;
use crate::plan::Level;
use crate::units::Amount;

/// What a key owes, and when it was charged.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) ledger: Ledger,
    /// When it was put in: a charge from before that was made to a state that is gone. Zero where
    /// nobody has written it down.
    pub(super) born_us: u64,
    /// When it was last charged.
    pub(super) charged_us: u64,
}

impl Record {
    /// Of a key that is new. When it was born is left open where it would fit a slot without that, and
    /// is not meant to be given back.
    pub(super) fn new(level: &Level, now_us: u64) -> Option<Self> {
        let ledger = Ledger::new(&level.spec)?;
        let is_loose = specs::fit_slots(&level.spec) && !level.is_given_back();
        let born_us = if is_loose { 0 } else { now_us.max(1) };
        Some(Self { ledger, born_us, charged_us: now_us })
    }

    /// Of a key of which only so much is known.
    pub(super) fn loose(ledger: Ledger, charged_us: u64) -> Self {
        Self { ledger, born_us: 0, charged_us }
    }

    /// Whether it may be packed, and forget what only refunds ask for.
    pub(super) fn is_loose(&self) -> bool {
        self.born_us == 0
    }

    pub(super) fn charge(&mut self, level: &Level, now_us: u64, holder: u64) -> (u64, Reading) {
        if level.is_given_back() {
            // Born before anything that is given back from now on.
            self.born_us = self.born_us.max(1);
        }
        self.ledger.charge(&level.spec, now_us, holder, level.cost);
        self.charged_us = self.charged_us.max(now_us);
        (self.charged_us, self.ledger.reading(&level.spec, now_us))
    }

    pub(super) fn debit(&mut self, level: &Level, now_us: u64, amount: Amount) {
        self.ledger.debit(&level.spec, now_us, amount);
        self.charged_us = self.charged_us.max(now_us);
    }

    /// From when on it means nothing; the last instant where that never comes by itself.
    pub(super) fn end_us(&self) -> u64 {
        self.ledger.meaningless_at_us().unwrap_or(u64::MAX)
    }

    /// The clock that the key runs on.
    pub(super) fn time_us(&self, now: Now) -> u64 {
        if self.ledger.uses_wall_clock() { now.unix_us } else { now.steady_us }
    }
}
