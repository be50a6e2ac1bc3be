//! How long a client may take to read an answer.
//!
//! A reader has a credit of time, which shrinks while an answer waits to be taken and grows back while
//! none does. Every KiB that is taken adds a second. So a client that takes nothing is late after the
//! whole credit, one that takes less than 1 KiB a second is late later, and any other never is.

use std::time::Duration;

use tokio::time::Instant;

/// A client that takes fewer bytes in a second is too slow.
const BYTES_PER_SECOND: u32 = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The largest credit.
    bound: Duration,
    /// What was left of the credit at `since`.
    credit: Duration,
    since: Instant,
    /// Something waits to be taken.
    is_waiting: bool,
}

impl Patience {
    /// The whole credit, with nothing to take.
    pub(super) fn new(bound: Duration, now: Instant) -> Self {
        Self { bound, credit: bound, since: now, is_waiting: false }
    }

    /// Something waits to be taken, or nothing does.
    pub(super) fn set_waiting(&mut self, is_waiting: bool, now: Instant) {
        if self.is_waiting != is_waiting {
            self.settle(now);
            self.is_waiting = is_waiting;
        }
    }

    /// The client took this many bytes. `readers` share the pace: the answers of one connection that
    /// wait together come no faster than the connection.
    pub(super) fn take(&mut self, bytes: usize, readers: usize, now: Instant) {
        self.settle(now);
        let bytes = u32::try_from(bytes.saturating_mul(readers.max(1))).unwrap_or(u32::MAX);
        let earned = Duration::from_secs(1).saturating_mul(bytes) / BYTES_PER_SECOND;
        self.credit = self.credit.saturating_add(earned).min(self.bound);
    }

    /// True if the client is too slow.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.is_waiting && now.duration_since(self.since) >= self.credit
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// True if nothing waits and the credit is whole.
    pub(super) fn is_rested(&self) -> bool {
        !self.is_waiting && self.credit == self.bound
    }

    fn settle(&mut self, now: Instant) {
        let passed = now.duration_since(self.since);
        self.since = now;
        self.credit = match self.is_waiting {
            true => self.credit.saturating_sub(passed),
            false => self.credit.saturating_add(passed).min(self.bound),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(30);

    /// After how many seconds a client is late that takes this many bytes each second, if it is.
    fn late_after(bytes: usize, readers: usize) -> Option<u64> {
        let start = Instant::now();
        let mut patience = Patience::new(BOUND, start);
        patience.set_waiting(true, start);
        (1..3_600).find(|second| {
            let now = start + Duration::from_secs(*second);
            let is_over = patience.is_over(now);
            patience.take(bytes, readers, now);
            is_over
        })
    }

    #[test]
    fn a_client_is_late_below_a_kibibyte_a_second_and_not_above() {
        assert_eq!(late_after(0, 1), Some(30));
        assert_eq!(late_after(512, 1), Some(59));
        assert!(late_after(1_000, 1).is_some());
        assert_eq!(late_after(1_024, 1), None);
        assert_eq!(late_after(100_000, 1), None);
        assert_eq!((late_after(64, 16), late_after(60, 16).is_some()), (None, true));
    }

    #[test]
    fn what_was_taken_fast_buys_no_more_than_the_bound() {
        let start = Instant::now();
        let mut patience = Patience::new(BOUND, start);
        patience.set_waiting(true, start);
        patience.take(usize::MAX, 256, start);
        assert!(!patience.is_over(start + BOUND / 2) && patience.is_over(start + BOUND));
    }

    #[test]
    fn a_client_that_takes_all_there_is_may_be_told_little() {
        let start = Instant::now();
        let mut patience = Patience::new(BOUND, start);
        for second in 0..3_600 {
            let now = start + Duration::from_secs(second);
            patience.set_waiting(true, now);
            patience.take(1, 1, now + Duration::from_millis(10));
            patience.set_waiting(false, now + Duration::from_millis(10));
            assert!(!patience.is_over(now + Duration::from_millis(900)));
        }
        assert!(patience.credit > BOUND - Duration::from_secs(1));
    }
}
