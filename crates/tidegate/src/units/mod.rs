//! Exact numbers: amounts in millionths and durations in microseconds.
//!
//! Nothing here rounds in silence: what has more than six decimal places, a sign or an unknown unit
//! is refused with a sentence that says what was expected.

mod amount;
mod duration;
mod number;

use std::fmt;

pub use amount::Amount;
pub(crate) use duration::written_duration;
pub use duration::{
    DAY_US, DURATION_US_MAX, SECOND_US, duration_in_words, meant_duration, parse_duration,
    parse_exact_duration, parse_period, per_duration, seconds_rounded_up, short_duration,
};
pub use number::canonical_number;

/// Millionths in one unit.
pub(crate) const MICROS: u64 = 1_000_000;

/// A text that cannot be read: what was found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The start of the text, harmless in logs and terminals.
    pub found: String,
    /// What would have been accepted.
    pub expected: &'static str,
}

impl ParseError {
    pub(crate) fn new(found: &str, expected: &'static str) -> Self {
        let found = found.chars().take(80).flat_map(char::escape_debug).collect();
        Self { found, expected }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found `{}`, expected {}", self.found, self.expected)
    }
}

impl std::error::Error for ParseError {}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}
