//! What a spec says of itself: its number, its window, its share, and itself as a policy writes it.

use std::fmt;

use super::{Spec, calendar, saturate};
use crate::units::{
    Amount, DAY_US, duration_in_words, per_duration, short_duration, written_duration,
};

/// The window that a spec counts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// A fixed length, in microseconds.
    Span(u64),
    /// A day, week or month of the calendar.
    Calendar(calendar::Unit),
}

impl Window {
    /// `1m`, `5m`, `1d`, `1w`, `1mo`.
    #[must_use]
    pub fn short(self) -> String {
        match self {
            Self::Span(us) => short_duration(us),
            Self::Calendar(calendar::Unit::Day) => "1d".to_owned(),
            Self::Calendar(calendar::Unit::Week) => "1w".to_owned(),
            Self::Calendar(calendar::Unit::Month) => "1mo".to_owned(),
        }
    }

    /// `1 second`, `5 minutes`, `1 month`.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::Span(us) => duration_in_words(us),
            Self::Calendar(unit) => format!("1 {}", unit.word()),
        }
    }

    /// What stands behind "per": `second`, `5 minutes`, `month`.
    #[must_use]
    pub fn per(self) -> String {
        match self {
            Self::Span(us) => per_duration(us),
            Self::Calendar(unit) => unit.word().to_owned(),
        }
    }
}

impl calendar::Unit {
    /// `day`, `week` or `month`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

impl Spec {
    /// The number in the spec: 20 of `20/min burst 5`.
    #[must_use]
    pub const fn number(&self) -> Amount {
        match self {
            Self::TokenBucket(spec) => spec.count,
            _ => self.capacity(),
        }
    }

    /// The window it counts over, if it has one.
    #[must_use]
    pub const fn window(&self) -> Option<Window> {
        match self {
            Self::TokenBucket(spec) => Some(Window::Span(spec.period_us)),
            Self::SlidingWindow(spec) => Some(Window::Span(spec.window_us)),
            Self::SlidingCounter(spec) => Some(Window::Span(spec.window_us)),
            Self::FixedWindow(spec) => Some(Window::Span(spec.window_us)),
            Self::Quota(spec) => Some(Window::Calendar(spec.unit)),
            Self::Concurrency(_) | Self::Total(_) | Self::Ceiling(_) => None,
        }
    }

    /// The length of its window in microseconds; that of the present one, for a calendar.
    #[must_use]
    pub const fn window_us(&self) -> Option<u64> {
        match (self, self.window()) {
            (Self::Quota(spec), _) => Some(spec.end_us.saturating_sub(spec.start_us)),
            (_, Some(Window::Span(us))) => Some(us),
            _ => None,
        }
    }

    /// How long it takes to give its whole capacity once: an empty bucket refills, a window passes. In
    /// microseconds; `None` where time alone gives nothing back.
    #[must_use]
    pub fn refill_us(&self) -> Option<u64> {
        match self {
            Self::TokenBucket(spec) if spec.burst != spec.count => {
                let product = u128::from(spec.burst.micros()) * u128::from(spec.period_us);
                Some(saturate(product.div_ceil(u128::from(spec.count.micros().max(1)))))
            }
            _ => self.window_us(),
        }
    }

    /// How long a charge can have an effect at most. That on a total never ends by itself; what may
    /// still be corrected is kept for as long as the longest calendar window.
    #[must_use]
    pub fn forgets_within_us(&self) -> u64 {
        const LONGEST_US: u64 = 31 * DAY_US;
        match self {
            Self::TokenBucket(spec) => {
                let owed = u128::from(spec.burst.micros()) * 2 * u128::from(spec.period_us);
                saturate(owed.div_ceil(u128::from(spec.count.micros().max(1))))
            }
            Self::SlidingCounter(spec) => spec.window_us.saturating_mul(2),
            Self::Concurrency(spec) => spec.lease_us,
            Self::Total(_) => LONGEST_US,
            Self::Ceiling(_) => 0,
            _ => self.window_us().unwrap_or_default(),
        }
        .min(LONGEST_US)
    }

    /// Whether nothing is stored for it.
    #[must_use]
    pub const fn is_stateless(&self) -> bool {
        matches!(self, Self::Ceiling(_))
    }

    /// One of `nodes` equal shares, never under 1. Shares of a bucket add up to at most the bucket;
    /// shares of windows are whole, so they are rounded up.
    #[must_use]
    pub fn share_of(&self, nodes: u32) -> Self {
        let nodes = u64::from(nodes.max(1));
        let exact = |amount: Amount| {
            Amount::from_micros(amount.micros() / nodes).unwrap_or(amount).max(Amount::ONE)
        };
        let whole = |amount: Amount| {
            Amount::from_units(amount.whole().div_ceil(nodes)).unwrap_or(amount).max(Amount::ONE)
        };
        let mut share = *self;
        match &mut share {
            Self::TokenBucket(spec) => {
                spec.count = exact(spec.count);
                spec.burst = exact(spec.burst);
            }
            Self::SlidingWindow(spec) => spec.limit = whole(spec.limit),
            Self::SlidingCounter(spec) => spec.limit = whole(spec.limit),
            Self::FixedWindow(spec) => spec.limit = whole(spec.limit),
            Self::Quota(spec) => spec.limit = whole(spec.limit),
            Self::Concurrency(spec) => spec.places = whole(spec.places),
            Self::Total(spec) => spec.limit = whole(spec.limit),
            Self::Ceiling(_) => {}
        }
        share
    }
}

impl fmt::Display for Spec {
    /// As a policy writes it: `20/min burst 5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number();
        match self.window() {
            None => write!(f, "{number}"),
            Some(Window::Calendar(unit)) => write!(f, "{number}/{}", unit.word()),
            Some(Window::Span(us)) => {
                write!(f, "{number}/{}", period(us))?;
                match self {
                    Self::TokenBucket(spec) if spec.burst != spec.count => {
                        write!(f, " burst {}", spec.burst)
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

/// A period as a policy writes it: `min`, `5min`.
fn period(us: u64) -> String {
    let written = written_duration(us);
    match written.strip_prefix('1') {
        Some(unit) if !unit.starts_with(|c: char| c.is_ascii_digit()) => unit.to_owned(),
        _ => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{sliding_window, token_bucket};

    fn bucket(count: u64, burst: u64) -> Spec {
        let units = |units| Amount::from_units(units).unwrap();
        Spec::TokenBucket(token_bucket::Spec {
            count: units(count),
            period_us: 60_000_000,
            burst: units(burst),
        })
    }

    #[test]
    fn a_spec_reads_as_it_was_written() {
        assert_eq!(bucket(20, 5).to_string(), "20/min burst 5");
        assert_eq!(bucket(20, 20).to_string(), "20/min");
        let window = sliding_window::Spec { limit: Amount::ONE, window_us: 300_000_000 };
        assert_eq!(Spec::SlidingWindow(window).to_string(), "1/5min");
    }

    #[test]
    fn shares_of_a_bucket_never_add_up_to_more_but_are_never_under_one() {
        let Spec::TokenBucket(share) = bucket(10, 10).share_of(3) else { panic!() };
        assert!(share.burst.micros() * 3 <= 10_000_000);
        let Spec::TokenBucket(least) = bucket(2, 2).share_of(5) else { panic!() };
        assert_eq!(least.burst, Amount::ONE);
    }
}
