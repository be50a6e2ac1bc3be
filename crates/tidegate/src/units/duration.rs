//! Durations and the periods of rates, in microseconds.

use super::{Amount, MICROS, ParseError};

/// Microseconds in one second.
pub const SECOND_US: u64 = 1_000_000;

/// Microseconds in one day of 86,400 seconds.
pub const DAY_US: u64 = 86_400 * SECOND_US;

/// The longest duration a policy may name: a thousand days.
pub const DURATION_US_MAX: u64 = 1_000 * DAY_US;

/// Said of a duration above [`DURATION_US_MAX`].
const TOO_LONG: &str = "at most 1000 days";

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
/// allowed here (`at: 0s`); a caller that cannot use zero refuses it.
///
/// # Errors
/// A missing number or unit, a unit that is not known, or more than a thousand days.
pub fn parse_duration(text: &str) -> Result<u64, ParseError> {
    let expected = "a duration with its unit, such as 500ms, 2s, 15min, 1h or 7d";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_us = DURATION_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, us)| *us);
    let Some(unit_us) = unit_us.filter(|_| digits > 0) else {
        return Err(ParseError::new(text, expected));
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(unit_us))
        .filter(|us| *us <= DURATION_US_MAX)
        .ok_or_else(|| ParseError::new(text, TOO_LONG))
}

/// The duration that was probably meant by a text that is none: `15min` for `15m` and `15 minutes`.
#[must_use]
pub fn meant_duration(text: &str) -> Option<String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "ms" | "msec" | "millis" | "milliseconds" => "ms",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "mn" | "min" | "mins" | "minute" | "minutes" => "min",
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        _ => return None,
    };
    let meant = format!("{number}{unit}");
    (parse_duration(text).is_err() && parse_duration(&meant).is_ok()).then_some(meant)
}

/// Reads a duration that need not be whole, such as `29.5s` or `333.334ms`, exactly to the
/// microsecond.
///
/// # Errors
/// As [`parse_duration`], or a part finer than a microsecond.
pub fn parse_exact_duration(text: &str) -> Result<u64, ParseError> {
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(digits);
    let number =
        Amount::parse(number).map_err(|_| ParseError::new(text, "a duration such as 29.5s"))?;
    let unit_us = parse_duration(&format!("1{unit}"))
        .map_err(|error| ParseError::new(text, error.expected))?;
    let scaled = u128::from(number.micros()) * u128::from(unit_us);
    let exact = scaled.is_multiple_of(u128::from(MICROS)).then_some(scaled / u128::from(MICROS));
    let exact = exact.and_then(|us| u64::try_from(us).ok()).filter(|us| *us <= DURATION_US_MAX);
    exact.ok_or_else(|| ParseError::new(text, "whole microseconds, at most 1000 days"))
}

/// Reads the period behind the slash of a rate: a unit with an optional whole number before it
/// (`min`, `5min`, `500ms`), into microseconds.
///
/// # Errors
/// Anything that is not such a period, zero, or more than a thousand days.
pub fn parse_period(text: &str) -> Result<u64, ParseError> {
    let bare_unit = text.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    let duration =
        if bare_unit { parse_duration(&format!("1{text}")) } else { parse_duration(text) };
    match duration {
        Ok(0) => Err(ParseError::new(text, "a period longer than zero")),
        Ok(us) if !text.ends_with('d') => Ok(us),
        Err(error) if error.expected == TOO_LONG => Err(ParseError::new(text, TOO_LONG)),
        Ok(_) | Err(_) => {
            Err(ParseError::new(text, "a period: ms, s, min, h or day, such as 5min"))
        }
    }
}

/// A duration in its largest exact unit: `1m`, `90s`, `500ms`.
#[must_use]
pub fn short_duration(us: u64) -> String {
    let (number, unit) = largest_unit(us);
    format!("{number}{}", unit.short)
}

/// A duration as a policy writes it: `1min`, `90s`, `2day`.
pub(crate) fn written_duration(us: u64) -> String {
    let (number, unit) = largest_unit(us);
    let unit = match unit.short {
        "m" => "min",
        "d" => "day",
        unit => unit,
    };
    format!("{number}{unit}")
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_duration_in_other_units_is_guessed() {
        for (text, meant) in
            [("15m", "15min"), ("1 hour", "1h"), ("30sec", "30s"), ("2 days", "2d")]
        {
            assert_eq!(meant_duration(text).as_deref(), Some(meant), "{text}");
        }
        for text in ["15min", "m", "soon", "5", "1.5m"] {
            assert_eq!(meant_duration(text), None, "{text}");
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
