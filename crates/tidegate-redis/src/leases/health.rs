//! What is counted of leases.

use super::loan::Loan;

/// How leases are, for status and metrics. Amounts are in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseHealth {
    /// From how many buckets this node holds tokens.
    pub held: usize,
    /// How much it holds, to be spent.
    pub outstanding: u64,
    /// How many requests were charged to leases, without asking the store.
    pub spent: u64,
    /// How many requests had to ask the store for want of a lease.
    pub exact: u64,
    /// How many loans were granted.
    pub granted: u64,
    /// How many were asked for and not granted, or not answered.
    pub refused: u64,
    /// How much was given back.
    pub returned: u64,
    /// How much was not spent before it ran out.
    pub expired: u64,
}

impl LeaseHealth {
    /// Counts what a loan gives back.
    pub(super) fn note(&mut self, loan: &Loan) {
        self.returned += loan.reports.iter().map(|report| report.returned).sum::<u64>();
    }

    /// Adds what another part of the table counted.
    pub(super) fn add(&mut self, other: &Self) {
        self.spent += other.spent;
        self.exact += other.exact;
        self.granted += other.granted;
        self.refused += other.refused;
        self.returned += other.returned;
        self.expired += other.expired;
    }
}
