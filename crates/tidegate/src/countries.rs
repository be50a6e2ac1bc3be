//! The country of an address. Its source is outside the engine.

use std::fmt;
use std::net::IpAddr;

/// The country of addresses. It is asked where a policy needs a country and the caller says none,
/// once for each decision.
pub trait Countries: fmt::Debug + Send + Sync {
    /// The country of an address as an ISO 3166 code in capitals; `None` where it is not known.
    fn country(&self, ip: IpAddr) -> Option<CountryCode>;
}

/// A country, by its two letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CountryCode(u16);

const LETTERS: usize = 26;

/// Every pair of letters, so that a code has a text without an allocation.
static PAIRS: [u8; LETTERS * LETTERS * 2] = pairs();

impl CountryCode {
    /// The country of a code such as `DE` or `de`; `None` for what is not two letters.
    #[must_use]
    pub const fn new(code: &str) -> Option<Self> {
        let [first, second] = *code.as_bytes() else { return None };
        match (place(first), place(second)) {
            (Some(first), Some(second)) => Some(Self(first * 26 + second)),
            _ => None,
        }
    }

    /// The code in capitals.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let start = usize::from(self.0) * 2;
        PAIRS.get(start..start + 2).and_then(|pair| std::str::from_utf8(pair).ok()).unwrap_or("")
    }
}

impl fmt::Display for CountryCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

const fn place(letter: u8) -> Option<u16> {
    let letter = letter.to_ascii_uppercase();
    if letter.is_ascii_uppercase() { Some((letter - b'A') as u16) } else { None }
}

const fn pairs() -> [u8; LETTERS * LETTERS * 2] {
    const ALPHABET: &[u8; LETTERS] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut pairs = [0; LETTERS * LETTERS * 2];
    let mut index = 0;
    while index < LETTERS * LETTERS {
        pairs[index * 2] = ALPHABET[index / LETTERS];
        pairs[index * 2 + 1] = ALPHABET[index % LETTERS];
        index += 1;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_two_letters_and_told_in_capitals() {
        for (code, told) in [("DE", "DE"), ("de", "DE"), ("AA", "AA"), ("Zz", "ZZ")] {
            assert_eq!(CountryCode::new(code).map(CountryCode::as_str), Some(told));
        }
        for code in ["", "D", "DEU", "D1", "-E", "é"] {
            assert_eq!(CountryCode::new(code), None, "{code}");
        }
    }
}
