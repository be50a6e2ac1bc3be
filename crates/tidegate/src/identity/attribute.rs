//! Attributes from their declared sources: headers, query parameters, JSON bodies, claims.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::policy::model::Source;
use crate::request::Request;
use crate::units::canonical_number;

/// Bodies larger than this are not read.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024;

/// What a source has of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttributeValue<'r> {
    Absent,
    Text(Cow<'r, str>),
    /// Something is there, but it is no text, number or flag: no key is made of it, and as an
    /// amount it is an error rather than nothing.
    Unusable,
}

impl<'r> AttributeValue<'r> {
    fn of(value: Option<Cow<'r, str>>) -> Self {
        value.map_or(Self::Absent, Self::Text)
    }

    /// The same, without borrowing from the request.
    pub(crate) fn into_owned(self) -> AttributeValue<'static> {
        match self {
            Self::Absent => AttributeValue::Absent,
            Self::Text(value) => AttributeValue::Text(Cow::Owned(value.into_owned())),
            Self::Unusable => AttributeValue::Unusable,
        }
    }
}

/// The value of an attribute from where it was declared to come from.
pub(crate) fn from_source<'r>(
    source: &Source,
    request: &'r Request<'_>,
    body: Option<&'r [u8]>,
    headers_believed: bool,
) -> AttributeValue<'r> {
    match source {
        Source::Given => AttributeValue::Absent,
        Source::Header { trusted: true, .. } if !headers_believed => AttributeValue::Absent,
        Source::Header { name, .. } => {
            AttributeValue::of(request.header_value(name).map(Cow::Borrowed))
        }
        Source::Query(name) => {
            let path = request.path.as_deref();
            AttributeValue::of(path.and_then(|path| query_parameter(path, name)))
        }
        Source::Jwt(claim) => {
            let claims = request.claims.as_ref();
            AttributeValue::of(claims.and_then(|claims| claims.text(claim)).map(Cow::Borrowed))
        }
        Source::Body(pointer) => match body {
            None | Some([]) => AttributeValue::Absent,
            Some(body) if body.len() > BODY_BYTES_MAX => AttributeValue::Unusable,
            Some(body) => json_value(body, pointer),
        },
    }
}

/// The query of a path, if it has one.
pub(crate) fn query(path: &str) -> Option<&str> {
    let (path, _) = path.split_once('#').unwrap_or((path, ""));
    path.split_once('?').map(|(_, query)| query)
}

/// How often a query says what an attribute is read from.
pub(crate) fn count_in_query(source: &Source, query: &str) -> usize {
    match source {
        Source::Query(name) => query_parameters(query, name).count(),
        Source::Given | Source::Header { .. } | Source::Jwt(_) | Source::Body(_) => 0,
    }
}

/// Trimmed and lower-cased.
pub(crate) fn fold(value: &str) -> Cow<'static, str> {
    Cow::Owned(value.trim().to_lowercase())
}

/// The steps of a JSON pointer.
pub(super) fn tokens(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"))
}

/// The step of a JSON pointer into a list.
pub(super) fn index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|b| b.is_ascii_digit());
    let plain = digits && (token == "0" || !token.starts_with('0'));
    plain.then(|| token.parse().ok()).flatten()
}

/// A JSON value's text: a string's own, `true` or `false`, or a number as its decimal text. Null is
/// none; lists and maps are no values.
pub(super) fn json_scalar(text: &str) -> AttributeValue<'static> {
    match text.as_bytes().first() {
        Some(b'"') => {
            serde_json::from_str(text).map_or(AttributeValue::Unusable, AttributeValue::Text)
        }
        Some(b't' | b'f') => AttributeValue::Text(Cow::Owned(text.to_owned())),
        Some(b'n') => AttributeValue::Absent,
        Some(b'{' | b'[') | None => AttributeValue::Unusable,
        // A number that has no decimal text stays as it is, and is no amount.
        Some(_) => AttributeValue::Text(Cow::Owned(
            canonical_number(text).unwrap_or_else(|| text.to_owned()),
        )),
    }
}

/// The first parameter of this name, decoded.
fn query_parameter<'p>(path: &'p str, name: &str) -> Option<Cow<'p, str>> {
    query_parameters(query(path)?, name).next()
}

fn query_parameters<'p>(query: &'p str, name: &str) -> impl Iterator<Item = Cow<'p, str>> {
    let named = form_urlencoded::parse(query.as_bytes()).filter(move |(key, _)| key == name);
    named.map(|(_, value)| value)
}

/// What a JSON pointer finds. A body that is no JSON holds nothing usable.
fn json_value(body: &[u8], pointer: &str) -> AttributeValue<'static> {
    let Ok(mut value) = serde_json::from_slice::<&RawValue>(body) else {
        return AttributeValue::Unusable;
    };
    for token in tokens(pointer) {
        value = match child(value, &token) {
            Ok(Some(child)) => child,
            Ok(None) => return AttributeValue::Absent,
            Err(_) => return AttributeValue::Unusable,
        };
    }
    json_scalar(value.get())
}

/// Finds one member of an object. One that is there twice is an error: of two, the service could
/// read the other.
struct Member<'t> {
    name: &'t str,
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = None;
        while let Some((name, value)) = map.next_entry::<Cow<'_, str>, &RawValue>()? {
            if name == self.name && found.replace(value).is_some() {
                return Err(M::Error::custom("it is there twice"));
            }
        }
        Ok(found)
    }
}

/// The member or element of this name.
fn child<'v>(value: &'v RawValue, token: &str) -> Result<Option<&'v RawValue>, serde_json::Error> {
    match value.get().as_bytes().first() {
        Some(b'{') => {
            serde_json::Deserializer::from_str(value.get()).deserialize_map(Member { name: token })
        }
        Some(b'[') => {
            let list: Vec<&RawValue> = serde_json::from_str(value.get())?;
            Ok(index(token).and_then(|index| list.get(index).copied()))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_pointers_find_text_and_exact_numbers() {
        let body = br#"{"email":" A@b.C ","order":{"items":[{"price":734.50}]},"a/b":true,"n":null,"esc":"\u00e9"}"#;
        let find = |pointer| json_value(body, pointer);
        let value = |text: &str| AttributeValue::Text(Cow::Owned(text.to_owned()));
        assert_eq!(find("/email"), value(" A@b.C "));
        assert_eq!(find("/order/items/0/price"), value("734.5"));
        assert_eq!(find("/a~1b"), value("true"));
        assert_eq!(find("/esc"), value("é"));
        for absent in
            ["/n", "/order/items/1", "/order/items/00", "/order/items/-1", "/x", "/email/x"]
        {
            assert_eq!(find(absent), AttributeValue::Absent, "{absent}");
        }
        for unusable in ["/order", "/order/items", "/order/items/0"] {
            assert_eq!(find(unusable), AttributeValue::Unusable, "{unusable}");
        }
        for body in
            [&b"not json"[..], br#"{"\ud800":1,"a":2}"#, b"{\"a\":1} x", &b"[".repeat(60_000)]
        {
            assert_eq!(json_value(body, "/a"), AttributeValue::Unusable);
        }
        assert_eq!(
            json_value(b"{\"a\":1e99999999999999999999}", "/a"),
            value("1e99999999999999999999")
        );
    }

    #[test]
    fn a_member_that_is_there_twice_is_no_value() {
        let body = br#"{"b":0,"b":1,"a":{"x":2,"x":null},"c":3}"#;
        assert_eq!(json_value(body, "/b"), AttributeValue::Unusable);
        assert_eq!(json_value(body, "/a/x"), AttributeValue::Unusable);
        assert_eq!(json_value(body, "/c"), AttributeValue::Text(Cow::Borrowed("3")));
    }

    #[test]
    fn query_parameters_are_decoded() {
        assert_eq!(query_parameter("/x?a=1&page=2%20b+c#page=9", "page").as_deref(), Some("2 b c"));
        assert_eq!(query_parameter("/x?pages=2", "page"), None);
        assert_eq!(query_parameter("/x", "page"), None);
        assert_eq!(query_parameter("/x#?page=7", "page"), None);
    }
}
