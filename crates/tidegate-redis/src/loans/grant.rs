//! The tokens of one grant.

use std::collections::HashSet;

use super::{LoanReply, LoanReport};

/// How many spenders a grant remembers, of those that may give back. Others give back to the store.
const HOLDERS_MAX: usize = 1024;

/// The tokens of one grant. The default is no grant.
#[derive(Debug, Default)]
pub(super) struct Grant {
    /// The grant's id on this node, which changes with each report. Zero is no grant.
    pub(super) id: u64,
    pub(super) epoch: u64,
    pub(super) left: u64,
    /// What was spent since the last report.
    pub(super) spent: u64,
    pub(super) expires_us: u64,
    /// Who spent it, as far as it may be given back.
    holders: HashSet<u64>,
}

impl Grant {
    pub(super) fn new(id: u64, sent_us: u64, reply: &LoanReply) -> Self {
        Self {
            id,
            epoch: reply.epoch,
            left: reply.granted,
            expires_us: sent_us.saturating_add(reply.lasts_us),
            ..Self::default()
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.id == 0
    }

    pub(super) fn is_over(&self, now_us: u64) -> bool {
        !self.is_none() && self.expires_us <= now_us
    }

    pub(super) fn spend(&mut self, cost: u64, holder: Option<u64>) {
        self.left -= cost;
        self.spent += cost;
        if let Some(holder) = holder.filter(|_| self.holders.len() < HOLDERS_MAX) {
            self.holders.insert(holder);
        }
    }

    /// Takes back what was spent and is not reported yet: the store still counts it as lent.
    pub(super) fn put_back(&mut self, cost: u64) {
        let cost = cost.min(self.spent);
        self.spent -= cost;
        self.left += cost;
    }

    /// True if this holder spent something that is not reported yet.
    pub(super) fn has_holder(&self, holder: u64) -> bool {
        self.holders.contains(&holder)
    }

    /// Takes back what this holder spent, if it is not reported yet.
    pub(super) fn refund(&mut self, holder: u64, amount: u64) -> bool {
        let is_holder = self.holders.remove(&holder);
        if is_holder {
            self.put_back(amount);
        }
        is_holder
    }

    /// Reports what was spent since the last report.
    pub(super) fn report(&mut self, next_id: u64) -> LoanReport {
        self.id = next_id;
        self.holders.clear();
        LoanReport { epoch: self.epoch, spent: std::mem::take(&mut self.spent), returned: 0 }
    }

    /// The last report, which gives back what is left. Nothing of the grant can be spent any more.
    pub(super) fn retire(&mut self) -> LoanReport {
        let Self { epoch, left, spent, .. } = std::mem::take(self);
        LoanReport { epoch, spent, returned: left }
    }
}
