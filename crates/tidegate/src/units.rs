//! Exact numbers: amounts in millionths and durations in microseconds.
//!
//! Nothing here rounds in silence: what has more than six decimal places, a sign or an unknown unit
//! is refused with a sentence that says what was expected.

use std::fmt;

/// Millionths in one unit.
const MICROS: u64 = 1_000_000;

/// Microseconds in one second.
pub const SECOND_US: u64 = 1_000_000;

/// Microseconds in one day of 86,400 seconds.
pub const DAY_US: u64 = 86_400 * SECOND_US;

/// The longest duration a policy may name: a thousand days.
pub const DURATION_US_MAX: u64 = 1_000 * DAY_US;

/// An exact, non-negative decimal with at most six places: a cost, a count, dollars.
///
/// Twice the largest amount stays below 2^53, so that every sum a limiter makes is exact in a
/// store whose numbers are doubles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount(u64);

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// One unit: the cost of a request that says nothing else.
    pub const ONE: Self = Self(MICROS);
    /// The largest amount: four thousand million units.
    pub const MAX: Self = Self(4_000_000_000 * MICROS);

    /// Whole units; `None` above [`Amount::MAX`].
    #[must_use]
    pub const fn from_units(units: u64) -> Option<Self> {
        match units.checked_mul(MICROS) {
            Some(micros) => Self::from_micros(micros),
            None => None,
        }
    }

    /// Millionths; `None` above [`Amount::MAX`].
    #[must_use]
    pub const fn from_micros(micros: u64) -> Option<Self> {
        if micros <= Self::MAX.0 { Some(Self(micros)) } else { None }
    }

    /// The amount in millionths.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Whole units, rounded down.
    #[must_use]
    pub const fn whole(self) -> u64 {
        self.0 / MICROS
    }

    /// Whole units, rounded up; places are never held in parts.
    #[must_use]
    pub const fn whole_up(self) -> Self {
        Self(self.0.div_ceil(MICROS) * MICROS)
    }

    /// Whether nothing is left of it.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, at most [`Amount::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        let sum = self.0.saturating_add(other.0);
        if sum > Self::MAX.0 { Self::MAX } else { Self(sum) }
    }

    /// The difference, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Reads a plain decimal such as `1`, `0.25` or `734.50`, as requests write costs and values.
    ///
    /// # Errors
    /// A sign, an exponent, more than six places, or a number above [`Amount::MAX`].
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let dot_without_places = text.len() > whole.len() && fraction.is_empty();
        if whole.is_empty() || dot_without_places || !all_digits(whole) || !all_digits(fraction) {
            return Err(UnitError::new(text, "a decimal number such as 1 or 2.50, without a sign"));
        }
        if fraction.len() > 6 {
            return Err(UnitError::new(text, "at most six decimal places"));
        }
        let too_large = || UnitError::new(text, "at most 4000000000");
        let units: u64 = whole.parse().map_err(|_| too_large())?;
        let places: u64 = format!("{fraction:0<6}").parse().map_err(|_| too_large())?;
        let micros = units.checked_mul(MICROS).and_then(|micros| micros.checked_add(places));
        micros.and_then(Self::from_micros).ok_or_else(too_large)
    }

    /// Reads a count as policies write it: a whole number with `_` between digits and an optional
    /// `k` (thousand) or `m` (million) behind it.
    ///
    /// # Errors
    /// Anything else, zero, or a number above [`Amount::MAX`].
    pub fn parse_count(text: &str) -> Result<Self, UnitError> {
        let expected = "a whole number such as 5, 1_000 or 10k";
        let (digits, scale) = match text.as_bytes().last() {
            Some(b'k') => (&text[..text.len() - 1], 1_000),
            Some(b'm') => (&text[..text.len() - 1], 1_000_000),
            _ => (text, 1),
        };
        let well_placed =
            !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
        let plain = digits.replace('_', "");
        if plain.is_empty() || !well_placed || !all_digits(&plain) {
            return Err(UnitError::new(text, expected));
        }
        let too_large = || UnitError::new(text, "at most 4000000000");
        let count: u64 = plain.parse().map_err(|_| too_large())?;
        let units = count.checked_mul(scale).ok_or_else(too_large)?;
        match Self::from_units(units) {
            Some(Self::ZERO) => Err(UnitError::new(text, "at least 1")),
            Some(amount) => Ok(amount),
            None => Err(too_large()),
        }
    }
}

impl fmt::Display for Amount {
    /// The shortest exact decimal: `1`, `0.25`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.0)
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.0)
    }
}

/// Millionths as the shortest exact decimal.
pub(crate) fn write_decimal(out: &mut impl fmt::Write, micros: u64) -> fmt::Result {
    let (whole, places) = (micros / MICROS, micros % MICROS);
    if places == 0 {
        return write!(out, "{whole}");
    }
    let places = format!("{places:06}");
    write!(out, "{whole}.{}", places.trim_end_matches('0'))
}

/// Said of a duration above [`DURATION_US_MAX`].
const TOO_LONG: &str = "at most 1000 days";

/// A JSON number as its shortest exact decimal text, so that `42`, `42.0` and `4.2e1` are one key.
/// Numbers beyond forty zeros keep an exponent; what is not a JSON number is `None`.
#[must_use]
pub fn canonical_number(text: &str) -> Option<String> {
    let (sign, unsigned) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let places = i64::try_from(fraction.len()).ok()?;
    let exponent = exponent.parse::<i64>().ok()?.checked_sub(places)?;
    let joined = format!("{whole}{fraction}");
    let significant = joined.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Some("0".to_owned());
    }
    let dropped = joined.len() - joined.trim_end_matches('0').len();
    let exponent = exponent.checked_add(i64::try_from(dropped).ok()?)?;
    Some(format!("{sign}{}", placed(significant, exponent)))
}

/// Digits without zeros around them, times a power of ten, as plain text.
fn placed(digits: &str, exponent: i64) -> String {
    match (usize::try_from(exponent), usize::try_from(exponent.unsigned_abs())) {
        (Ok(zeros), _) if zeros <= 40 => format!("{digits}{}", "0".repeat(zeros)),
        (Err(_), Ok(places)) if places < digits.len() => {
            let (whole, fraction) = digits.split_at(digits.len() - places);
            format!("{whole}.{fraction}")
        }
        (Err(_), Ok(places)) if places <= digits.len() + 40 => {
            format!("0.{}{digits}", "0".repeat(places - digits.len()))
        }
        _ => format!("{digits}e{exponent}"),
    }
}

/// A unit of time that policies may write.
const DURATION_UNITS: [(&str, u64); 6] = [
    ("ms", 1_000),
    ("s", SECOND_US),
    ("min", 60 * SECOND_US),
    ("h", 3_600 * SECOND_US),
    ("day", DAY_US),
    ("d", DAY_US),
];

/// Reads a duration with its unit, `500ms`, `2s`, `15min`, `1h`, `7d`, into microseconds. Zero is
/// allowed here (`at: 0s`); whoever cannot use it says so.
///
/// # Errors
/// A missing number or unit, a unit that is not known, or more than a thousand days.
pub fn parse_duration(text: &str) -> Result<u64, UnitError> {
    let expected = "a duration with its unit, such as 500ms, 2s, 15min, 1h or 7d";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_us = DURATION_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, us)| *us);
    let Some(unit_us) = unit_us.filter(|_| digits > 0) else {
        return Err(UnitError::new(text, expected));
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(unit_us))
        .filter(|us| *us <= DURATION_US_MAX)
        .ok_or_else(|| UnitError::new(text, TOO_LONG))
}

/// Reads a duration that need not be whole, such as `29.5s` or `333.334ms`, exactly to the
/// microsecond.
///
/// # Errors
/// As [`parse_duration`], or a part finer than a microsecond.
pub fn parse_exact_duration(text: &str) -> Result<u64, UnitError> {
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(digits);
    let number =
        Amount::parse(number).map_err(|_| UnitError::new(text, "a duration such as 29.5s"))?;
    let unit_us = parse_duration(&format!("1{unit}"))
        .map_err(|error| UnitError::new(text, error.expected))?;
    let scaled = u128::from(number.micros()) * u128::from(unit_us);
    let exact = scaled.is_multiple_of(u128::from(MICROS)).then_some(scaled / u128::from(MICROS));
    let exact = exact.and_then(|us| u64::try_from(us).ok()).filter(|us| *us <= DURATION_US_MAX);
    exact.ok_or_else(|| UnitError::new(text, "whole microseconds, at most 1000 days"))
}

/// Reads the period behind the slash of a rate: a unit with an optional whole number before it
/// (`min`, `5min`, `500ms`), into microseconds.
///
/// # Errors
/// Anything that is not such a period, zero, or more than a thousand days.
pub fn parse_period(text: &str) -> Result<u64, UnitError> {
    let bare_unit = text.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    let duration =
        if bare_unit { parse_duration(&format!("1{text}")) } else { parse_duration(text) };
    match duration {
        Ok(0) => Err(UnitError::new(text, "a period longer than zero")),
        Ok(us) if !text.ends_with('d') => Ok(us),
        Err(error) if error.expected == TOO_LONG => Err(UnitError::new(text, TOO_LONG)),
        Ok(_) | Err(_) => Err(UnitError::new(text, "a period: ms, s, min, h or day, such as 5min")),
    }
}

/// A duration in its largest exact unit: `1m`, `90s`, `500ms`.
#[must_use]
pub fn short_duration(us: u64) -> String {
    let (number, unit) = largest_unit(us);
    format!("{number}{}", unit.short)
}

/// A duration in words: `1 second`, `5 minutes`.
#[must_use]
pub fn duration_in_words(us: u64) -> String {
    let (number, unit) = largest_unit(us);
    format!("{number} {}{}", unit.word, if number == 1 { "" } else { "s" })
}

/// What stands behind "per": `second`, `5 minutes`.
#[must_use]
pub fn per_duration(us: u64) -> String {
    let (number, unit) = largest_unit(us);
    if number == 1 { unit.word.to_owned() } else { duration_in_words(us) }
}

/// Microseconds as seconds, rounded up.
#[must_use]
pub const fn seconds_rounded_up(us: u64) -> u64 {
    us.div_ceil(SECOND_US)
}

struct SpokenUnit {
    us: u64,
    short: &'static str,
    word: &'static str,
}

const SPOKEN_UNITS: [SpokenUnit; 6] = [
    SpokenUnit { us: DAY_US, short: "d", word: "day" },
    SpokenUnit { us: 3_600 * SECOND_US, short: "h", word: "hour" },
    SpokenUnit { us: 60 * SECOND_US, short: "m", word: "minute" },
    SpokenUnit { us: SECOND_US, short: "s", word: "second" },
    SpokenUnit { us: 1_000, short: "ms", word: "millisecond" },
    SpokenUnit { us: 1, short: "us", word: "microsecond" },
];

fn largest_unit(us: u64) -> (u64, &'static SpokenUnit) {
    let exact = SPOKEN_UNITS.iter().find(|unit| us >= unit.us && us.is_multiple_of(unit.us));
    let unit = exact.unwrap_or(&SPOKEN_UNITS[3]);
    (us / unit.us, unit)
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// A number or duration that cannot be read: what was found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    /// The text as it was written.
    pub found: String,
    /// What would have been accepted.
    pub expected: &'static str,
}

impl UnitError {
    fn new(found: &str, expected: &'static str) -> Self {
        let found = found.chars().take(80).collect();
        Self { found, expected }
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found `{}`, expected {}", self.found, self.expected)
    }
}

impl std::error::Error for UnitError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> u64 {
        Amount::parse(text).unwrap().micros()
    }

    #[test]
    fn decimals_are_exact_to_six_places() {
        assert_eq!(amount("1"), 1_000_000);
        assert_eq!(amount("0.000001"), 1);
        assert_eq!(amount("734.50"), 734_500_000);
        assert_eq!(Amount::parse("734.50").unwrap().to_string(), "734.5");
    }

    #[test]
    fn what_is_not_a_plain_decimal_is_refused() {
        for text in
            ["", "-1", "+1", "1e3", ".5", "5.", "1.0000001", "NaN", "1 ", "4000000000.000001", "٣"]
        {
            assert!(Amount::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_take_underscores_and_suffixes() {
        let units = |text| Amount::parse_count(text).map(Amount::whole);
        assert_eq!(units("1_000_000"), Ok(1_000_000));
        assert_eq!(units("10k"), Ok(10_000));
        assert_eq!(units("2m"), Ok(2_000_000));
        for text in ["0", "", "k", "_1", "1_", "1__0", "1.5", "-3", "99999999999999999999", "5m k"]
        {
            assert!(units(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_have_one_text_however_they_are_written() {
        for text in ["42", "42.0", "4.2e1", "4.2E+1", "4200e-2", "42.000"] {
            assert_eq!(canonical_number(text).as_deref(), Some("42"), "{text}");
        }
        for (text, canonical) in [
            ("0", "0"),
            ("-0.0", "0"),
            ("-1.50", "-1.5"),
            ("734.50", "734.5"),
            ("1e-7", "0.0000001"),
            ("123e-5", "0.00123"),
            ("1e3", "1000"),
            ("1e400", "1e400"),
            ("10e399", "1e400"),
            ("25e-400", "25e-400"),
        ] {
            assert_eq!(canonical_number(text).as_deref(), Some(canonical), "{text}");
        }
        for text in ["", "-", "e5", ".5", "1.2.3", "1e", "1e99999999999999999999", "0x1", "NaN"] {
            assert_eq!(canonical_number(text), None, "{text}");
        }
    }

    #[test]
    fn durations_carry_their_unit() {
        assert_eq!(parse_duration("500ms"), Ok(500_000));
        assert_eq!(parse_duration("0s"), Ok(0));
        assert_eq!(parse_duration("7d"), Ok(7 * DAY_US));
        for text in ["5", "s", "5 s", "1.5s", "-1s", "5m", "1001d", "99999999999999999999s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn periods_may_leave_the_one_out() {
        assert_eq!(parse_period("min"), Ok(60 * SECOND_US));
        assert_eq!(parse_period("5min"), Ok(300 * SECOND_US));
        assert_eq!(parse_period("day"), Ok(DAY_US));
        for text in ["", "0s", "d", "2d", "week", "5"] {
            assert!(parse_period(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_spoken_in_their_largest_exact_unit() {
        assert_eq!(short_duration(60 * SECOND_US), "1m");
        assert_eq!(short_duration(90 * SECOND_US), "90s");
        assert_eq!(duration_in_words(300 * SECOND_US), "5 minutes");
        assert_eq!(duration_in_words(SECOND_US), "1 second");
        assert_eq!(per_duration(SECOND_US), "second");
        assert_eq!(per_duration(500_000), "500 milliseconds");
        assert_eq!(short_duration(0), "0s");
    }
}
