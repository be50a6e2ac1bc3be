//! A node's loan from one bucket, and the node's demand.

use super::bucket::Bucket;
use super::figures::{
    LEASE_FOR_US, LEASE_LASTS_US, LEASE_LEAST, LEASE_PARTS, LEASE_RETRY_US, LEASE_WORTH, NODES,
};

/// Shorter times say little about a rate.
const WINDOW_US_MIN: u64 = 20_000;
const WINDOW_US_MAX: u64 = 1_000_000;

/// A node's lease on a bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeLoan {
    left: u64,
    granted: u64,
    expires_us: u64,
    renew_at_us: u64,
    retry_at_us: u64,
    since_us: u64,
    used: u64,
    per_s: u64,
}

impl NodeLoan {
    /// Whether the loan covers a request.
    pub(super) fn has(&self, now_us: u64) -> bool {
        self.left > 0 && now_us < self.expires_us
    }

    /// Spends a token of the loan on a request.
    pub(super) fn spend(&mut self, bucket: &mut Bucket, now_us: u64) {
        self.left -= 1;
        bucket.settle(1);
        self.note(now_us);
    }

    /// Notes the demand for a token, here or from the store.
    pub(super) fn note(&mut self, now_us: u64) {
        self.used += 1;
        if now_us - self.since_us >= WINDOW_US_MAX {
            self.measure(now_us);
        }
    }

    /// Whether it is time for another loan.
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        let low = self.left * 10 <= self.granted * 3 || now_us >= self.renew_at_us;
        low && now_us >= self.retry_at_us
    }

    /// Borrows. Returns whether the store was asked.
    pub(super) fn borrow(&mut self, bucket: &mut Bucket, now_us: u64) -> bool {
        if now_us - self.since_us >= WINDOW_US_MIN {
            self.measure(now_us);
        }
        if now_us >= self.expires_us {
            bucket.settle(std::mem::take(&mut self.left));
        }
        let wish = self.per_s * LEASE_FOR_US / 1_000_000;
        if wish < LEASE_WORTH {
            return false;
        }
        let parts = LEASE_PARTS * u64::from(NODES);
        let granted = bucket.lend(wish, parts, LEASE_LEAST, now_us);
        if granted == 0 {
            self.retry_at_us = now_us + LEASE_RETRY_US;
        } else {
            self.left += granted;
            self.granted = granted;
            self.expires_us = now_us + LEASE_LASTS_US;
            self.renew_at_us = now_us + LEASE_LASTS_US / 3 * 2;
        }
        true
    }

    fn measure(&mut self, now_us: u64) {
        let rate = self.used * 1_000_000 / (now_us - self.since_us).max(WINDOW_US_MIN);
        let mean = self.per_s.midpoint(rate);
        self.per_s = if self.used > 1 { mean.max(rate) } else { mean / 2 };
        (self.since_us, self.used) = (now_us, 0);
    }
}
