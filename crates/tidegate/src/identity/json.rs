//! Values in JSON, found by a pointer.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Unreadable;
use super::attribute::AttributeValue;
use super::names::{Sightings, differ_in_case_alone};
use crate::units::canonical_number;

/// The steps of a JSON pointer.
pub(crate) fn tokens(pointer: &str) -> impl Iterator<Item = String> {
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
pub(super) fn scalar(text: &str) -> AttributeValue<'static> {
    match written_scalar(text) {
        AttributeValue::Text(number)
            if text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) =>
        {
            // A number that has no decimal text stays as it is, and is no amount.
            AttributeValue::Text(canonical_number(&number).map_or(number, Cow::Owned))
        }
        other => other,
    }
}

/// The same, but a number as it is written: services differ in how they round.
pub(super) fn written_scalar(text: &str) -> AttributeValue<'static> {
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text)
            .map_or(AttributeValue::Unreadable(Unreadable::Syntax), AttributeValue::Text),
        Some(b'n') => AttributeValue::Absent,
        Some(b'{' | b'[') | None => AttributeValue::Unreadable(Unreadable::Shape),
        Some(_) => AttributeValue::Text(Cow::Owned(text.to_owned())),
    }
}

/// How many items a JSON list has.
pub(super) fn count(text: &str) -> AttributeValue<'static> {
    match text.as_bytes().first() {
        Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(items) => AttributeValue::Text(Cow::Owned(items.len().to_string())),
            Err(_) => AttributeValue::Unreadable(Unreadable::Syntax),
        },
        Some(b'n') => AttributeValue::Absent,
        _ => AttributeValue::Unreadable(Unreadable::Shape),
    }
}

/// What a pointer finds in a body.
pub(super) fn find<'b>(body: &'b [u8], pointer: &str) -> Result<Option<&'b RawValue>, Unreadable> {
    let mut value: &RawValue = serde_json::from_slice(body).map_err(|_| Unreadable::Syntax)?;
    for token in tokens(pointer) {
        match child(value, &token)? {
            Some(child) => value = child,
            None => return Ok(None),
        }
    }
    Ok(Some(value))
}

/// The member or element of this name.
fn child<'v>(value: &'v RawValue, token: &str) -> Result<Option<&'v RawValue>, Unreadable> {
    let broken = |_| Unreadable::Syntax;
    match value.get().as_bytes().first() {
        Some(b'{') => {
            let mut object = serde_json::Deserializer::from_str(value.get());
            object.deserialize_map(Member { name: token }).map_err(broken)?.only()
        }
        Some(b'[') => {
            let list: Vec<&RawValue> = serde_json::from_str(value.get()).map_err(broken)?;
            Ok(index(token).and_then(|index| list.get(index).copied()))
        }
        _ => Ok(None),
    }
}

/// Finds the members of an object that a service may read under a name.
struct Member<'t> {
    name: &'t str,
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Sightings<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = Sightings::none();
        while let Some((name, value)) = map.next_entry::<Cow<'_, str>, &RawValue>()? {
            let is_exact = name == self.name;
            if is_exact || differ_in_case_alone(&name, self.name) {
                found.add(is_exact, value);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8], pointer: &str) -> AttributeValue<'static> {
        match find(body, pointer) {
            Ok(found) => found.map_or(AttributeValue::Absent, |value| scalar(value.get())),
            Err(why) => AttributeValue::Unreadable(why),
        }
    }

    fn text(text: &str) -> AttributeValue<'static> {
        AttributeValue::Text(Cow::Owned(text.to_owned()))
    }

    #[test]
    fn pointers_find_text_and_exact_numbers() {
        let body = br#"{"email":" A@b.C ","order":{"items":[{"price":734.50}]},"a/b":true,"n":null,"esc":"\u00e9"}"#;
        let find = |pointer| read(body, pointer);
        assert_eq!(find("/email"), text(" A@b.C "));
        assert_eq!(find("/order/items/0/price"), text("734.5"));
        assert_eq!(find("/a~1b"), text("true"));
        assert_eq!(find("/esc"), text("é"));
        for absent in
            ["/n", "/order/items/1", "/order/items/00", "/order/items/-1", "/x", "/email/x"]
        {
            assert_eq!(find(absent), AttributeValue::Absent, "{absent}");
        }
        for shape in ["/order", "/order/items", "/order/items/0"] {
            assert_eq!(find(shape), AttributeValue::Unreadable(Unreadable::Shape), "{shape}");
        }
        assert_eq!(read(b"{\"a\":1e99999999999999999999}", "/a"), text("1e99999999999999999999"));
    }

    #[test]
    fn what_is_no_json_is_unreadable() {
        for body in [
            &b"not json"[..],
            br#"{"\ud800":1,"a":2}"#,
            b"{\"a\":1} x",
            b"{\"a\":1}{\"a\":2}",
            b"\xef\xbb\xbf{\"a\":1}",
            b"{\"a\":\"\xff\"}",
            b"{'a':1}",
            b"{\"a\":1,}",
            b"{\"a\":042}",
            &b"[".repeat(60_000),
        ] {
            assert_eq!(read(body, "/a"), AttributeValue::Unreadable(Unreadable::Syntax));
        }
    }

    #[test]
    fn a_member_that_is_there_twice_is_ambiguous_and_one_in_another_case_is_no_absent_one() {
        let body = br#"{"b":0,"b":1,"a":{"x":2,"X":null},"c":3,"D":{"e":4}}"#;
        assert_eq!(read(body, "/b"), AttributeValue::Unreadable(Unreadable::Ambiguous));
        assert_eq!(read(body, "/a/x"), AttributeValue::Unreadable(Unreadable::Ambiguous));
        assert_eq!(read(body, "/c"), text("3"));
        assert_eq!(read(body, "/C"), AttributeValue::Unreadable(Unreadable::Name));
        assert_eq!(read(body, "/d/e"), AttributeValue::Unreadable(Unreadable::Name));
    }

    #[test]
    fn a_list_is_counted_and_nothing_else_is() {
        assert_eq!(count("[]"), text("0"));
        assert_eq!(count("[1, [2, 3], {\"a\": [4]}]"), text("3"));
        assert_eq!(count("null"), AttributeValue::Absent);
        for other in ["3", "\"[1]\"", "{\"0\":1}", "true"] {
            assert_eq!(count(other), AttributeValue::Unreadable(Unreadable::Shape), "{other}");
        }
    }
}
