//! Rates and quotas: how much a limit allows. None can be built wrong.
//!
//! Each has a typed form and the text form of policies. Builders take both:
//!
//! ```
//! use std::num::NonZeroU32;
//! use std::time::Duration;
//! use tidegate::engine::{BurstRate};
//! use tidegate::Rate;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const FIVE: NonZeroU32 = NonZeroU32::new(5).unwrap();
//! assert_eq!(Rate::per_minute(FIVE), "5/min".parse()?);
//! assert_eq!(Rate::new(5, Duration::from_secs(300))?, "5/5min".parse()?);
//! assert_eq!(Rate::per_second(FIVE).burst(FIVE), "5/s burst 5".parse::<BurstRate>()?);
//! assert!(Rate::new(0, Duration::from_secs(1)).is_err());
//! # Ok(())
//! # }
//! ```

use std::convert::Infallible;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use crate::algorithm::{
    Spec, calendar, fixed_window, sliding_counter, sliding_window, token_bucket,
};
use crate::policy::diagnostics::shown;
use crate::units::{Amount, DAY_US, DURATION_US_MAX, ParseError, SECOND_US, parse_period};

/// The largest limit whose charges, or whose places, a store remembers one by one.
pub(crate) const EXACT_MAX: u64 = 65_536;

/// A number of units in each period: `5/min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: Amount,
    period_us: u64,
}

impl Rate {
    /// This many in each second.
    #[must_use]
    pub const fn per_second(count: NonZeroU32) -> Self {
        Self { count: amount(count), period_us: SECOND_US }
    }

    /// This many in each minute.
    #[must_use]
    pub const fn per_minute(count: NonZeroU32) -> Self {
        Self { count: amount(count), period_us: 60 * SECOND_US }
    }

    /// This many in each hour.
    #[must_use]
    pub const fn per_hour(count: NonZeroU32) -> Self {
        Self { count: amount(count), period_us: 3_600 * SECOND_US }
    }

    /// This many in each span of 24 hours. For days of the calendar there is [`Quota`].
    #[must_use]
    pub const fn per_day(count: NonZeroU32) -> Self {
        Self { count: amount(count), period_us: DAY_US }
    }

    /// This many in each period.
    ///
    /// # Errors
    /// The count is zero, or the period is shorter than a microsecond or longer than 1,000 days.
    pub fn new(count: u32, period: Duration) -> Result<Self, RateError> {
        let period_us = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        if !(1..=DURATION_US_MAX).contains(&period_us) {
            let found = format!("{period:?}");
            return Err(RateError::new(&found, "a period of a microsecond to 1000 days"));
        }
        let count = NonZeroU32::new(count).ok_or_else(|| RateError::new("0", "at least 1"))?;
        Ok(Self { count: amount(count), period_us })
    }

    /// The same rate for a token bucket that holds this many units.
    #[must_use]
    pub const fn burst(self, burst: NonZeroU32) -> BurstRate {
        BurstRate { rate: self, burst: amount(burst) }
    }

    pub(crate) fn sliding_window(self) -> Result<Spec, RateError> {
        let Self { count: limit, period_us: window_us } = self;
        let spec = Spec::SlidingWindow(sliding_window::Spec { limit, window_us });
        if limit.whole() > EXACT_MAX {
            return Err(RateError::new(&spec.to_string(), "at most 65536 here")
                .help("for more, use `sliding_counter`"));
        }
        Ok(spec)
    }

    pub(crate) const fn sliding_counter(self) -> Spec {
        let Self { count: limit, period_us: window_us } = self;
        Spec::SlidingCounter(sliding_counter::Spec { limit, window_us })
    }

    pub(crate) const fn fixed_window(self) -> Spec {
        let Self { count: limit, period_us: window_us } = self;
        Spec::FixedWindow(fixed_window::Spec { limit, window_us })
    }

    /// Reads `N/PERIOD`. `example` is what an error shows.
    fn parse(text: &str, example: &str) -> Result<Self, RateError> {
        let rate = || RateError::new(text, &format!("a rate such as {example}"));
        let (count, period) = text.split_once('/').ok_or_else(rate)?;
        if period.contains(" burst") {
            return Err(rate().help("only a `token_bucket` has a burst"));
        }
        if matches!(period, "week" | "month") {
            return Err(RateError::new(text, "a period: ms, s, min, h or day")
                .help("weeks and months are for `quota`"));
        }
        let with_hint = |error: ParseError| RateError { help: hint(count, period), ..error.into() };
        let count = Amount::parse_count(count).map_err(with_hint)?;
        Ok(Self { count, period_us: parse_period(period).map_err(with_hint)? })
    }
}

/// The rate of a token bucket, and how much the bucket holds: `20/min burst 5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstRate {
    rate: Rate,
    burst: Amount,
}

impl BurstRate {
    pub(crate) const fn token_bucket(self) -> Spec {
        let Self { rate: Rate { count, period_us }, burst } = self;
        Spec::TokenBucket(token_bucket::Spec { count, period_us, burst })
    }
}

/// Without a burst, a bucket holds as much as its rate allows in one period.
impl From<Rate> for BurstRate {
    fn from(rate: Rate) -> Self {
        Self { rate, burst: rate.count }
    }
}

/// A number of units in each day, week or month of the calendar: `5/day`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub(crate) limit: Amount,
    pub(crate) unit: calendar::Unit,
}

impl Quota {
    /// This many in each day of the calendar.
    #[must_use]
    pub const fn per_day(limit: NonZeroU32) -> Self {
        Self { limit: amount(limit), unit: calendar::Unit::Day }
    }

    /// This many in each week of the calendar.
    #[must_use]
    pub const fn per_week(limit: NonZeroU32) -> Self {
        Self { limit: amount(limit), unit: calendar::Unit::Week }
    }

    /// This many in each month of the calendar.
    #[must_use]
    pub const fn per_month(limit: NonZeroU32) -> Self {
        Self { limit: amount(limit), unit: calendar::Unit::Month }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    /// Reads `N/PERIOD`.
    fn from_str(text: &str) -> Result<Self, RateError> {
        Self::parse(text, "5/min")
    }
}

impl FromStr for BurstRate {
    type Err = RateError;

    /// Reads `N/PERIOD`, `N/PERIOD burst B` or `N/PERIOD burst Fx`.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let (rate_text, burst) = match text.split_once(" burst ") {
            Some((rate, burst)) => (rate, Some(burst)),
            None => (text, None),
        };
        let rate = Rate::parse(rate_text, "20/min burst 5").map_err(|error| {
            let misspelt = rate_text.contains(" burst");
            RateError { help: error.help.filter(|_| !misspelt), ..error }
        })?;
        let Some(burst) = burst else { return Ok(rate.into()) };
        let burst = match burst.strip_suffix('x') {
            None => Amount::parse_count(burst)?,
            Some(times) => multiply(rate.count, times).ok_or_else(|| {
                let expected = "a burst such as 5 or 2x, of at least 1 and at most 4000000000";
                RateError::new(burst, expected)
            })?,
        };
        Ok(Self { rate, burst })
    }
}

impl FromStr for Quota {
    type Err = RateError;

    /// Reads `N/day`, `N/week` or `N/month`.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let quota = || RateError::new(text, "a quota such as 5/day, 3/week or 1000/month");
        let (count, unit) = text.split_once('/').ok_or_else(quota)?;
        let unit = match unit {
            "day" => calendar::Unit::Day,
            "week" => calendar::Unit::Week,
            "month" => calendar::Unit::Month,
            _ => {
                return Err(quota().help(
                    "a quota runs over a calendar day, week or month; for other periods use `fixed_window`",
                ));
            }
        };
        Ok(Self { limit: Amount::parse_count(count)?, unit })
    }
}

impl TryFrom<&str> for Rate {
    type Error = RateError;

    fn try_from(text: &str) -> Result<Self, RateError> {
        text.parse()
    }
}

impl TryFrom<&str> for BurstRate {
    type Error = RateError;

    fn try_from(text: &str) -> Result<Self, RateError> {
        text.parse()
    }
}

impl TryFrom<&str> for Quota {
    type Error = RateError;

    fn try_from(text: &str) -> Result<Self, RateError> {
        text.parse()
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.limit, self.unit.word())
    }
}

/// A rate that cannot be read: what was found, what was expected, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateError {
    pub(crate) message: String,
    pub(crate) help: Option<&'static str>,
}

impl RateError {
    pub(crate) fn new(found: &str, expected: &str) -> Self {
        Self { message: format!("found `{}`, expected {expected}", shown(found)), help: None }
    }

    pub(crate) fn help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.help {
            Some(help) => write!(f, "{}; {help}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for RateError {}

impl From<ParseError> for RateError {
    fn from(error: ParseError) -> Self {
        Self { message: error.to_string(), help: None }
    }
}

/// A typed rate is never wrong.
impl From<Infallible> for RateError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Whole units, at most [`Amount::MAX`].
const fn amount(units: NonZeroU32) -> Amount {
    match Amount::from_units(units.get() as u64) {
        Some(amount) => amount,
        None => Amount::MAX,
    }
}

/// Whole units of `count` × `times`, at least one.
fn multiply(count: Amount, times: &str) -> Option<Amount> {
    let times = Amount::parse(times).ok()?;
    let units = u128::from(count.whole()) * u128::from(times.micros()) / 1_000_000;
    u64::try_from(units).ok().and_then(Amount::from_units).filter(|amount| !amount.is_zero())
}

/// The probable meaning of a rate that cannot be read.
fn hint(count: &str, period: &str) -> Option<&'static str> {
    let unit = period.trim_start_matches(|c: char| c.is_ascii_digit());
    match unit.split_whitespace().next()? {
        "m" | "mn" | "minute" | "minutes" | "mins" => Some("write `min` for minutes"),
        "hour" | "hours" | "hr" => Some("write `h` for hours"),
        "sec" | "second" | "seconds" => Some("write `s` for seconds"),
        "d" | "days" => Some("write `day` for days"),
        _ if count.ends_with(['K', 'M']) => Some("write `k` for thousand and `m` for million"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(text: &str) -> (u64, u64, u64) {
        let BurstRate { rate, burst } = text.parse().unwrap();
        (rate.count.whole(), rate.period_us, burst.whole())
    }

    #[test]
    fn buckets_take_a_burst_in_units_or_as_a_multiple() {
        assert_eq!(bucket("20/min burst 5"), (20, 60_000_000, 5));
        assert_eq!(bucket("20/s burst 2x"), (20, 1_000_000, 40));
        assert_eq!(bucket("10/5min"), (10, 300_000_000, 10));
        assert_eq!(bucket("1/500ms"), (1, 500_000, 1));
        assert_eq!(bucket("3/s burst 1.5x"), (3, 1_000_000, 4));
    }

    #[test]
    fn typed_rates_are_what_their_texts_are() {
        let three = NonZeroU32::new(3).unwrap();
        assert_eq!(Rate::per_second(three), "3/s".parse().unwrap());
        assert_eq!(Rate::per_minute(three), "3/min".parse().unwrap());
        assert_eq!(Rate::per_hour(three), "3/h".parse().unwrap());
        assert_eq!(Rate::per_day(three), "3/day".parse().unwrap());
        assert_eq!(Quota::per_day(three), "3/day".parse().unwrap());
        assert_eq!(Quota::per_week(three), "3/week".parse().unwrap());
        assert_eq!(Quota::per_month(three), "3/month".parse().unwrap());
        let bucket = BurstRate::try_from("3/min burst 9").unwrap();
        assert_eq!(Rate::per_minute(three).burst(NonZeroU32::new(9).unwrap()), bucket);
    }

    #[test]
    fn the_largest_and_the_smallest_rates_are_exact() {
        assert_eq!(Rate::per_day(NonZeroU32::MAX).count, Amount::MAX);
        for (count, period) in [
            (0, Duration::from_secs(1)),
            (1, Duration::ZERO),
            (1, Duration::from_nanos(999)),
            (1, Duration::from_micros(DURATION_US_MAX + 1)),
            (1, Duration::MAX),
        ] {
            assert!(Rate::new(count, period).is_err(), "{count} in {period:?}");
        }
        assert!(Rate::new(1, Duration::from_micros(DURATION_US_MAX)).is_ok());
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in ["20", "20/min burst", "20/min burst 0x", "20/min  burst 5", "20 / min"] {
            assert!(text.parse::<BurstRate>().is_err(), "{text}");
        }
        for text in ["5/min burst 2", "0/min", "5/week", "5/mn"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        for text in ["5/2day", "5/h", "5"] {
            assert!(text.parse::<Quota>().is_err(), "{text}");
        }
        let error = "5/mn".parse::<Rate>().unwrap_err().to_string();
        assert!(error.ends_with("; write `min` for minutes"), "{error}");
        let error = "100k/min".parse::<Rate>().unwrap().sliding_window().unwrap_err();
        assert_eq!(error.help, Some("for more, use `sliding_counter`"));
    }
}
