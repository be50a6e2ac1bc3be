//! Exact decimals: costs, counts, dollars.

use std::fmt;

use super::{MICROS, ParseError, all_digits};
use crate::text::push_decimal;

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
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let dot_without_places = text.len() > whole.len() && fraction.is_empty();
        if whole.is_empty() || dot_without_places || !all_digits(whole) || !all_digits(fraction) {
            return Err(ParseError::new(
                text,
                "a decimal number such as 1 or 2.50, without a sign",
            ));
        }
        if fraction.len() > 6 {
            return Err(ParseError::new(text, "at most six decimal places"));
        }
        let too_large = || ParseError::new(text, "at most 4000000000");
        let units: u64 = whole.parse().map_err(|_| too_large())?;
        let places: u64 = format!("{fraction:0<6}").parse().map_err(|_| too_large())?;
        let micros = units.checked_mul(MICROS).and_then(|micros| micros.checked_add(places));
        micros.and_then(Self::from_micros).ok_or_else(too_large)
    }

    /// Reads a count as policies write it: a whole number with `_` between digits and an optional
    /// `k` (thousand) or `m` (million) behind it. `10.0`, as programs write a number, is 10.
    ///
    /// # Errors
    /// Anything else, zero, or a number above [`Amount::MAX`].
    pub fn parse_count(text: &str) -> Result<Self, ParseError> {
        let expected = "a whole number such as 5, 1_000 or 10k";
        let (digits, scale) = match text.as_bytes().last() {
            Some(b'k') => (&text[..text.len() - 1], 1_000),
            Some(b'm') => (&text[..text.len() - 1], 1_000_000),
            _ => (text, 1),
        };
        let digits = if scale == 1 { without_zero_fraction(digits) } else { digits };
        let well_placed =
            !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
        let plain = digits.replace('_', "");
        if plain.is_empty() || !well_placed || !all_digits(&plain) {
            return Err(ParseError::new(text, expected));
        }
        let too_large = || ParseError::new(text, "at most 4000000000");
        let count: u64 = plain.parse().map_err(|_| too_large())?;
        let units = count.checked_mul(scale).ok_or_else(too_large)?;
        match Self::from_units(units) {
            Some(Self::ZERO) => Err(ParseError::new(text, "at least 1")),
            Some(amount) => Ok(amount),
            None => Err(too_large()),
        }
    }
}

/// `10.0` without its fraction, if that is nothing but up to six zeros.
fn without_zero_fraction(text: &str) -> &str {
    match text.split_once('.') {
        Some((whole, "0" | "00" | "000" | "0000" | "00000" | "000000")) => whole,
        _ => text,
    }
}

impl fmt::Display for Amount {
    /// The shortest exact decimal: `1`, `0.25`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        push_decimal(&mut text, self.0);
        f.pad(&text)
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

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
        assert_eq!(units("10.0"), Ok(10));
        assert_eq!(units("1_000.000000"), Ok(1_000));
        for text in [
            "0",
            "",
            "k",
            "_1",
            "1_",
            "1__0",
            "1.5",
            "1.",
            ".0",
            "1.0k",
            "1_.0",
            "1.0000000",
            "-3",
            "99999999999999999999",
            "5m k",
        ] {
            assert!(units(text).is_err(), "{text}");
        }
    }
}
