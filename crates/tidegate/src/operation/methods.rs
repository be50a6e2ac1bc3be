//! The methods of an operation.

use crate::units::ParseError;

/// The most methods one pattern may name.
const METHODS_MAX: usize = 32;

/// A set of methods, or all of them, in upper case, as requests' methods are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Methods(Option<Vec<String>>);

impl Methods {
    /// Every method.
    #[must_use]
    pub const fn any() -> Self {
        Self(None)
    }

    /// Reads `GET` or `PUT|PATCH`; custom methods are allowed.
    ///
    /// # Errors
    /// A word that is not an upper-case method, one named twice, or too many.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut methods: Vec<String> = Vec::new();
        for method in text.split('|') {
            if !is_method(method) {
                let expected = "an upper-case method such as GET or PUT|PATCH, then a path";
                return Err(ParseError::new(method, expected));
            }
            if methods.iter().any(|known| known == method) {
                return Err(ParseError::new(method, "each method once"));
            }
            if methods.len() == METHODS_MAX {
                return Err(ParseError::new(method, "at most 32 methods"));
            }
            methods.push(method.to_owned());
        }
        Ok(Self(Some(methods)))
    }

    /// True if a method is one of them; `GET` includes `HEAD`.
    #[must_use]
    pub fn contains(&self, method: &str) -> bool {
        let Some(methods) = &self.0 else { return true };
        methods.iter().any(|known| known == method || (known == "GET" && method == "HEAD"))
    }

    /// The names; none if every method is included.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().map(String::as_str)
    }

    pub(super) fn covers(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), Some(others)) => others.iter().all(|method| self.contains(method)),
        }
    }
}

/// True if a word can be a method.
pub(crate) fn is_method(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-'))
}
