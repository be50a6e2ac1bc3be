//! The fields of a JSON object.
//!
//! Values stay raw until a handler takes them: numbers keep every digit, and every error names its
//! field.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tidegate::RequestError;
use tidegate::engine::units::{Amount, canonical_number};

use super::query::{self, shorten};

/// The most members of one object: their names are compared with each other.
const MEMBERS_MAX: usize = 256;

/// A field that is wrong, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) detail: String,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }

    /// The same error, one level further out.
    pub(crate) fn within(mut self, outer: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{outer}{dot}{}", self.field);
        self
    }
}

/// A JSON object's members, in order.
pub(crate) struct Object<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// Reads an object; its own field has no name yet.
    pub(crate) fn parse(text: &'a [u8]) -> Result<Self, FieldError> {
        let text = str::from_utf8(text)
            .map_err(|_| FieldError::new("", "expected a JSON object, which is UTF-8"))?;
        serde_json::from_str(text)
            .map_err(|error| FieldError::new("", format!("expected a JSON object: {error}")))
    }

    /// Removes a field and reads its value; `None` if it is missing or null.
    pub(crate) fn take<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&str, &'a RawValue) -> Result<T, FieldError>,
    ) -> Result<Option<T>, FieldError> {
        let Some(index) = self.0.iter().position(|(known, _)| known == name) else {
            return Ok(None);
        };
        let (_, value) = self.0.remove(index);
        if is_null(value) { Ok(None) } else { read(name, value).map(Some) }
    }

    /// Refuses a field that nobody has taken.
    pub(crate) fn finish(&self, expected: &str) -> Result<(), FieldError> {
        self.0.first().map_or(Ok(()), |(name, _)| Err(unknown_field(name, expected)))
    }
}

/// The error for a field that the call does not have.
pub(crate) fn unknown_field(name: &str, expected: &str) -> FieldError {
    FieldError::new(shorten(name), format!("is not a field here, expected {expected}"))
}

impl From<RequestError> for FieldError {
    fn from(RequestError { field, detail, .. }: RequestError) -> Self {
        Self { field, detail }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor).map(Object)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut members: Self::Value = Vec::new();
        while let Some((Text(name), value)) = map.next_entry()? {
            if members.iter().any(|(earlier, _)| *earlier == name) {
                return Err(M::Error::custom(format_args!("`{name}` is there twice")));
            }
            if members.len() >= MEMBERS_MAX {
                return Err(M::Error::custom(format_args!("more than {MEMBERS_MAX} members")));
            }
            members.push((name, value));
        }
        Ok(members)
    }
}

/// Reads an array of at most `max` objects, and stops behind them.
pub(crate) fn objects(text: &[u8], max: usize) -> serde_json::Result<Vec<Object<'_>>> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let objects = deserializer.deserialize_seq(ObjectsVisitor { max })?;
    deserializer.end()?;
    Ok(objects)
}

struct ObjectsVisitor {
    max: usize,
}

impl<'de> Visitor<'de> for ObjectsVisitor {
    type Value = Vec<Object<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of JSON objects")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut sequence: S) -> Result<Self::Value, S::Error> {
        let mut objects = Vec::new();
        while let Some(object) = sequence.next_element()? {
            if objects.len() >= self.max {
                let max = self.max;
                return Err(S::Error::custom(format_args!("found more than {max} of them")));
            }
            objects.push(object);
        }
        Ok(objects)
    }
}

/// A string, borrowed if it has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// True for `null`, which means the same as a missing field.
pub(crate) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// A string.
pub(crate) fn text<'a>(field: &str, value: &'a RawValue) -> Result<Cow<'a, str>, FieldError> {
    let written = value.get();
    let quoted = written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    // The value is valid JSON: without an escape the text is what stands between the quotes.
    match quoted.filter(|text| !text.contains('\\')) {
        Some(text) => Ok(Cow::Borrowed(text)),
        None => serde_json::from_str(written)
            .map(|Text(text)| text)
            .map_err(|_| FieldError::new(field, "expected a string")),
    }
}

/// A string, or a number or truth value as its text.
pub(crate) fn scalar<'a>(field: &str, value: &'a RawValue) -> Result<Cow<'a, str>, FieldError> {
    let raw = value.get();
    match raw.as_bytes().first() {
        Some(b'"') => text(field, value),
        Some(b't' | b'f') => Ok(Cow::Borrowed(raw)),
        Some(b'-' | b'0'..=b'9') => {
            let number = canonical_number(raw).map(Cow::Owned);
            number.ok_or_else(|| FieldError::new(field, "expected a number"))
        }
        _ => Err(FieldError::new(field, "expected a string, a number, true or false")),
    }
}

/// `true` or `false`.
pub(crate) fn boolean(field: &str, value: &RawValue) -> Result<bool, FieldError> {
    query::boolean(field, value.get())
}

/// An exact decimal, as a JSON number or as a string.
pub(crate) fn amount(field: &str, value: &RawValue) -> Result<Amount, FieldError> {
    let text = scalar(field, value)?;
    Amount::parse(&text).map_err(|error| FieldError::new(field, error.to_string()))
}

/// A whole number.
pub(crate) fn whole(field: &str, value: &RawValue, max: u64) -> Result<u64, FieldError> {
    let number = canonical_number(value.get()).and_then(|text| text.parse().ok());
    let expected = || FieldError::new(field, format!("expected a whole number from 0 to {max}"));
    number.filter(|number| *number <= max).ok_or_else(expected)
}

/// An IP address.
pub(crate) fn address(field: &str, value: &RawValue) -> Result<IpAddr, FieldError> {
    query::address(field, &text(field, value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn members_keep_their_order_and_text() {
        let object = Object::parse(br#"{"a": 1.50, "b\n": "x", "c": {"d": [1e3]}}"#).unwrap();
        let members: Vec<(&str, &str)> =
            object.0.iter().map(|(name, value)| (&**name, value.get())).collect();
        assert_eq!(members, [("a", "1.50"), ("b\n", "\"x\""), ("c", r#"{"d": [1e3]}"#)]);
    }

    #[test]
    fn what_is_no_object_or_has_a_name_twice_is_refused() {
        for text in
            ["", "[]", "1", "{\"a\":}", "{\"a\":1}x", "{\"a\":1,\"a\":2}", "{\"a\":1,}", "\u{0}"]
        {
            assert!(Object::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_stay_exact() {
        assert_eq!(amount("cost", raw("0.1")).unwrap().micros(), 100_000);
        assert_eq!(amount("cost", raw("1e2")).unwrap().micros(), 100_000_000);
        assert_eq!(amount("cost", raw("\"734.500001\"")).unwrap().micros(), 734_500_001);
        for text in ["-1", "0.0000001", "\"x\"", "true", "[]", "1e99"] {
            assert_eq!(amount("cost", raw(text)).unwrap_err().field, "cost", "{text}");
        }
    }

    #[test]
    fn scalars_become_one_text() {
        assert_eq!(scalar("a", raw("42.0")).unwrap(), "42");
        assert_eq!(scalar("a", raw("\"x\\ty\"")).unwrap(), "x\ty");
        assert_eq!(scalar("a", raw("true")).unwrap(), "true");
        assert!(scalar("a", raw("{}")).is_err());
    }

    #[test]
    fn addresses_and_whole_numbers_are_checked() {
        assert!(address("ip", raw("\"192.0.2.1\"")).is_ok());
        assert!(address("ip", raw("\"192.0.2\"")).is_err());
        assert_eq!(whole("n", raw("5e1"), 99), Ok(50));
        for text in ["-1", "1.5", "100", "\"5\"", "null"] {
            assert!(whole("n", raw(text), 99).is_err(), "{text}");
        }
    }
}
