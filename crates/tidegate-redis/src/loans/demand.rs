//! How much a bucket is used, so that the node borrows as much.

/// How long a loan should last.
const TARGET_US: u64 = 1_000_000;
/// Shorter times say little about the rate.
const WINDOW_US_MIN: u64 = 20_000;
/// After this time the old rate counts no more than the new one.
const WINDOW_US_MAX: u64 = 1_000_000;
/// A loan must save this many calls to be worth its own.
const CALLS_SAVED_MIN: u64 = 4;

/// A moving average of what is spent, quick to rise and slow to fall.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// What one request costs, in millionths.
    cost: u64,
    per_second: u64,
    since_us: u64,
    used: u64,
    requests: u32,
    seen_us: u64,
}

impl Demand {
    pub(super) fn new(now_us: u64) -> Self {
        Self { since_us: now_us, seen_us: now_us, ..Self::default() }
    }

    pub(super) fn note(&mut self, cost: u64, now_us: u64) {
        self.seen_us = now_us;
        self.used = self.used.saturating_add(cost);
        self.requests = self.requests.saturating_add(1);
        if cost > 0 {
            self.cost = cost;
        }
        if now_us.saturating_sub(self.since_us) >= WINDOW_US_MAX {
            self.measure(now_us);
        }
    }

    /// How long ago the last request was.
    pub(super) fn idle_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.seen_us)
    }

    /// How much to borrow; zero where a loan is not worth its call.
    pub(super) fn wish(&mut self, now_us: u64) -> u64 {
        let elapsed_us = now_us.saturating_sub(self.since_us);
        let rate = self.rate(elapsed_us);
        if elapsed_us >= WINDOW_US_MIN {
            self.measure(now_us);
        } else if self.requests > 1 {
            self.per_second = self.per_second.max(rate);
        }
        let wish = scaled(self.per_second, TARGET_US, 1_000_000);
        if wish < self.cost.saturating_mul(CALLS_SAVED_MIN) { 0 } else { wish }
    }

    /// A loan of less is of no use.
    pub(super) fn least(&self) -> u64 {
        self.cost.saturating_mul(2)
    }

    fn measure(&mut self, now_us: u64) {
        let rate = self.rate(now_us.saturating_sub(self.since_us));
        let mean = self.per_second.midpoint(rate);
        // One request says nothing about the rate.
        self.per_second = if self.requests > 1 { mean.max(rate) } else { mean / 2 };
        (self.since_us, self.used, self.requests) = (now_us, 0, 0);
    }

    fn rate(&self, elapsed_us: u64) -> u64 {
        scaled(self.used, 1_000_000, elapsed_us.max(WINDOW_US_MIN))
    }
}

fn scaled(amount: u64, times: u64, by: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(times) / u128::from(by.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 1_000_000;

    fn wish_after(requests: u64, every_us: u64) -> u64 {
        let mut demand = Demand::new(0);
        for request in 0..requests {
            demand.note(UNIT, request * every_us);
        }
        demand.wish(requests * every_us)
    }

    #[test]
    fn a_key_that_is_seldom_asked_for_borrows_nothing() {
        assert_eq!(wish_after(1, 0), 0, "nobody knows whether there will be another");
        assert_eq!(wish_after(5, 700_000), 0, "a loan would hardly save a call");
    }

    #[test]
    fn as_much_is_borrowed_as_is_spent_in_a_second() {
        let wish = wish_after(3_000, 1_000);
        assert!((900 * UNIT..=1_100 * UNIT).contains(&wish), "{wish}");
    }

    #[test]
    fn a_sudden_demand_is_met_at_once_and_forgotten_slowly() {
        let mut demand = Demand::new(0);
        for _ in 0..1_000 {
            demand.note(UNIT, 5);
        }
        let busy = demand.wish(10);
        assert!(busy >= 1_000 * UNIT, "{busy}");
        demand.note(UNIT, 1_000_000);
        demand.note(UNIT, 2_000_000);
        let quieter = demand.wish(2_000_010);
        assert!(quieter < busy && quieter > 0, "{quieter}");
    }
}
