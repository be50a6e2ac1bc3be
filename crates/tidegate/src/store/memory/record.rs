//! The full state of one key.

use super::spec_registry::fits_slot;
use crate::algorithm::{Ledger, Reading};
use crate::clock::Now;
use crate::plan::Level;
use crate::units::Amount;

/// What a key owes, and when it was charged.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) ledger: Ledger,
    /// When the key was created: an earlier charge was made to a state that is gone. Zero where that is unknown,
    /// as it is for every packed state.
    pub(super) created_us: u64,
    /// When the key was last charged.
    pub(super) charged_us: u64,
}

impl Record {
    /// The record of a new key. `created_us` is left unknown where the state can be packed and the charge will not
    /// be given back.
    pub(super) fn new(level: &Level, now_us: u64) -> Option<Self> {
        let ledger = Ledger::new(&level.spec)?;
        let is_packable = fits_slot(&level.spec) && !level.is_given_back();
        let created_us = if is_packable { 0 } else { now_us.max(1) };
        Some(Self { ledger, created_us, charged_us: now_us })
    }

    /// True if the record may be packed, which drops what only refunds need.
    pub(super) fn is_packable(&self) -> bool {
        self.created_us == 0
    }

    /// Charges the level; returns when it was charged, and what the level shows then.
    pub(super) fn charge(&mut self, level: &Level, now_us: u64, holder: u64) -> (u64, Reading) {
        if level.is_given_back() {
            // Created before everything that may be given back from now on.
            self.created_us = self.created_us.max(1);
        }
        self.ledger.charge(&level.spec, now_us, holder, level.cost);
        self.charged_us = self.charged_us.max(now_us);
        (self.charged_us, self.ledger.reading(&level.spec, now_us))
    }

    pub(super) fn debit(&mut self, level: &Level, now_us: u64, amount: Amount) {
        self.ledger.debit(&level.spec, now_us, amount);
        self.charged_us = self.charged_us.max(now_us);
    }

    /// From when on the record equals a new one; the last instant if that never comes by itself.
    pub(super) fn expires_us(&self) -> u64 {
        self.ledger.meaningless_at_us().unwrap_or(u64::MAX)
    }

    /// The time on the clock that the key runs on.
    pub(super) fn time_us(&self, now: Now) -> u64 {
        if self.ledger.uses_wall_clock() { now.unix_us } else { now.steady_us }
    }

    /// True if the record differs from a new one.
    pub(super) fn is_live(&self, now: Now) -> bool {
        self.expires_us() > self.time_us(now)
    }
}
