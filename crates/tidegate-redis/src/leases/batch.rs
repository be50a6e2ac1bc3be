//! Tokens of one grant.

use std::collections::HashSet;

use super::loan::{Lent, Report};

/// How many spenders of a batch are known by name, of those who may give back. Others give back to
/// the store.
const HOLDERS_MAX: usize = 1024;

/// Tokens of one grant.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Which it is, on this node: another one after each report. Zero is none.
    pub(super) id: u64,
    pub(super) epoch: u64,
    pub(super) left: u64,
    /// What was spent since it was last reported.
    pub(super) spent: u64,
    pub(super) expires_us: u64,
    /// Who spent since then, where it may be given back.
    holders: HashSet<u64>,
}

impl Batch {
    pub(super) fn new(id: u64, sent_us: u64, lent: &Lent) -> Self {
        Self {
            id,
            epoch: lent.epoch,
            left: lent.granted,
            expires_us: sent_us.saturating_add(lent.lasts_us),
            ..Self::default()
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.id == 0
    }

    pub(super) fn is_over(&self, now_us: u64) -> bool {
        !self.is_none() && self.expires_us <= now_us
    }

    pub(super) fn take(&mut self, cost: u64, holder: Option<u64>) {
        self.left -= cost;
        self.spent += cost;
        if let Some(holder) = holder.filter(|_| self.holders.len() < HOLDERS_MAX) {
            self.holders.insert(holder);
        }
    }

    /// Takes back what was spent and not yet reported: the store still counts it as lent.
    pub(super) fn put_back(&mut self, cost: u64) {
        let cost = cost.min(self.spent);
        self.spent -= cost;
        self.left += cost;
    }

    /// Whether this holder spent from here what is not yet reported.
    pub(super) fn knows(&self, holder: u64) -> bool {
        self.holders.contains(&holder)
    }

    /// Takes back what this holder spent, if it was from here and is not yet reported.
    pub(super) fn refund(&mut self, holder: u64, amount: u64) -> bool {
        let known = self.holders.remove(&holder);
        if known {
            self.put_back(amount);
        }
        known
    }

    /// What was spent since the last report, which is told once.
    pub(super) fn report(&mut self, next_id: u64) -> Report {
        self.id = next_id;
        self.holders.clear();
        Report { epoch: self.epoch, spent: std::mem::take(&mut self.spent), returned: 0 }
    }

    /// The last report: what is left is given back. Nothing of it can be spent any more.
    pub(super) fn retire(&mut self) -> Report {
        let Self { epoch, left, spent, .. } = std::mem::take(self);
        Report { epoch, spent, returned: left }
    }
}
