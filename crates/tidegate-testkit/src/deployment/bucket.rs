//! A bucket in the store.

/// Tokens in one unit.
const UNIT: u64 = 1_000_000;

/// A token bucket, in millionths of a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    level: u64,
    /// Borrowed and unspent tokens: the refill stops below them.
    out: u64,
    at_us: u64,
    per_s: u64,
    burst: u64,
}

impl Bucket {
    pub(super) fn new((per_s, burst): (u64, u64)) -> Self {
        Self { level: burst * UNIT, out: 0, at_us: 0, per_s, burst: burst * UNIT }
    }

    /// The same without a token.
    pub(super) fn empty(limit: (u64, u64)) -> Self {
        Self { level: 0, ..Self::new(limit) }
    }

    /// Microseconds until there is a token; zero if there is one.
    pub(super) fn wait_us(&mut self, now_us: u64) -> u64 {
        self.refill(now_us);
        UNIT.saturating_sub(self.level).div_ceil(self.per_s)
    }

    /// Takes a token. The caller has checked that there is one.
    pub(super) fn take(&mut self) {
        self.level -= UNIT;
    }

    /// Lends at most a number of tokens and a share of the level; none if that is too few to be of use.
    pub(super) fn lend(&mut self, wish: u64, parts: u64, least: u64, now_us: u64) -> u64 {
        self.refill(now_us);
        let tokens = (self.level / UNIT / parts).min(wish);
        if tokens < least {
            return 0;
        }
        self.level -= tokens * UNIT;
        self.out += tokens * UNIT;
        tokens
    }

    /// Borrowed tokens are spent, or returned.
    pub(super) fn settle(&mut self, tokens: u64) {
        self.out -= tokens * UNIT;
    }

    fn refill(&mut self, now_us: u64) {
        // N tokens a second are N millionths a microsecond.
        let refilled = self.level + (now_us - self.at_us) * self.per_s;
        self.level = refilled.min(self.burst - self.out);
        self.at_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_and_loans_never_exceed_the_burst() {
        let mut bucket = Bucket::new((100, 200));
        assert_eq!(bucket.lend(80, 1, 2, 0), 80);
        assert_eq!(bucket.lend(1_000, 1, 2, 10_000_000), 120, "the refill stops below what is out");
        assert_eq!(bucket.wait_us(10_000_000), 10_000, "a hundredth of a second");
        bucket.settle(200);
        assert_eq!(bucket.wait_us(10_010_000), 0);
        bucket.take();
        assert_eq!(bucket.wait_us(10_010_000), 10_000);
    }

    #[test]
    fn a_loan_that_is_of_no_use_is_none() {
        let mut bucket = Bucket::new((100, 200));
        assert_eq!(bucket.lend(50, 160, 2, 0), 0);
        assert_eq!(bucket.lend(50, 80, 2, 0), 2);
    }
}
