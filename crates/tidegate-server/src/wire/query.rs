//! The parameters of a query string.

use std::borrow::Cow;
use std::net::IpAddr;

use super::fields::FieldError;

/// How many items a page has by default, and at most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// Parameters that no handler has taken yet. Each is there once.
pub(crate) struct Query<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Query<'q> {
    pub(crate) fn parse(text: &'q str) -> Result<Self, FieldError> {
        let mut parameters: Vec<(Cow<'q, str>, Cow<'q, str>)> = Vec::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            if parameters.iter().any(|(earlier, _)| *earlier == name) {
                return Err(FieldError::new(shorten(&name), "is there twice, expected it once"));
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    /// Parses parameters that select something. None of them may be empty.
    pub(crate) fn parse_selection(text: &'q str) -> Result<Self, FieldError> {
        let query = Self::parse(text)?;
        match query.0.iter().find(|(_, value)| value.is_empty()) {
            Some((name, _)) => Err(FieldError::new(shorten(name), "is empty")),
            None => Ok(query),
        }
    }

    /// Removes a parameter.
    pub(crate) fn take(&mut self, name: &str) -> Option<Cow<'q, str>> {
        let index = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(index).1)
    }

    /// Removes a parameter and parses it.
    pub(crate) fn take_parsed<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str, &str) -> Result<T, FieldError>,
    ) -> Result<Option<T>, FieldError> {
        self.take(name).map(|value| parse(name, &value)).transpose()
    }

    /// Removes `count`: how many items the page has.
    pub(crate) fn take_count(&mut self) -> Result<usize, FieldError> {
        Ok(self.take_parsed("count", count)?.unwrap_or(PAGE_DEFAULT))
    }

    /// The parameters that are left, in their order.
    pub(crate) fn into_rest(self) -> Vec<(Cow<'q, str>, Cow<'q, str>)> {
        self.0
    }

    /// The names of the parameters that are left.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }
}

/// The error for a parameter that the call does not have.
pub(crate) fn unknown_parameter(name: &str, expected: &str) -> FieldError {
    FieldError::new(shorten(name), format!("is not a parameter here, expected {expected}"))
}

fn count(name: &str, value: &str) -> Result<usize, FieldError> {
    let number = value.parse().ok().filter(|number| (1..=PAGE_MAX).contains(number));
    let detail = || format!("found `{}`, expected 1 to {PAGE_MAX}", shorten(value));
    number.ok_or_else(|| FieldError::new(name, detail()))
}

/// `true` or `false`.
pub(crate) fn boolean(name: &str, value: &str) -> Result<bool, FieldError> {
    value.parse().map_err(|_| FieldError::new(name, "expected true or false"))
}

/// An IP address.
pub(crate) fn address(name: &str, value: &str) -> Result<IpAddr, FieldError> {
    let detail = || format!("found `{}`, expected an IP address", shorten(value));
    value.parse().map_err(|_| FieldError::new(name, detail()))
}

/// The beginning of a caller's text, for an error message.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
