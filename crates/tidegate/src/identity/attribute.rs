//! Attributes from their declared sources: headers, cookies, query parameters, bodies, claims.

use std::borrow::Cow;

use super::{Unreadable, body, cookie, form};
use crate::policy::model::{Attribute, Normal, Source};
use crate::request::Request;

/// The digits that every service reads as the same number.
const DIGITS_MAX: usize = 15;

/// What a source has of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttributeValue<'r> {
    Absent,
    Text(Cow<'r, str>),
    /// It may be there, but cannot be read: no key is made of it, and as an amount it is an error
    /// rather than nothing.
    Unreadable(Unreadable),
}

impl<'r> AttributeValue<'r> {
    fn of(value: Option<Cow<'r, str>>) -> Self {
        value.map_or(Self::Absent, Self::Text)
    }

    fn of_result(value: Result<Self, Unreadable>) -> Self {
        value.unwrap_or_else(Self::Unreadable)
    }

    /// The same, without borrowing from the request.
    pub(crate) fn into_owned(self) -> AttributeValue<'static> {
        match self {
            Self::Absent => AttributeValue::Absent,
            Self::Text(value) => AttributeValue::Text(Cow::Owned(value.into_owned())),
            Self::Unreadable(why) => AttributeValue::Unreadable(why),
        }
    }

    /// The same in the one form in which it counts.
    pub(crate) fn normalised(self, normal: Normal) -> Self {
        match (self, normal) {
            (Self::Text(value), Normal::Folded) => {
                Self::Text(Cow::Owned(value.trim().to_lowercase()))
            }
            (Self::Text(value), Normal::Number) => {
                let number = whole_number(&value);
                number.map_or(Self::Unreadable(Unreadable::Number), |text| Self::Text(text.into()))
            }
            (other, _) => other,
        }
    }

    /// Why it cannot be read, if that is so.
    pub(crate) const fn unreadable(&self) -> Option<Unreadable> {
        match self {
            Self::Unreadable(why) => Some(*why),
            Self::Absent | Self::Text(_) => None,
        }
    }
}

/// The value of an attribute from where it was declared to come from.
pub(crate) fn from_source<'r>(
    declared: &Attribute,
    request: &'r Request<'_>,
    body: Option<&'r [u8]>,
    headers_believed: bool,
) -> AttributeValue<'r> {
    match &declared.source {
        Source::Given => AttributeValue::Absent,
        Source::Header { trusted: true, .. } if !headers_believed => AttributeValue::Absent,
        Source::Header { name, .. } => {
            AttributeValue::of(request.header_value(name).map(Cow::Borrowed))
        }
        Source::Cookie(name) => {
            let found = cookie::find(request.header_lines("cookie"), name);
            AttributeValue::of_result(found.map(AttributeValue::of))
        }
        Source::Query(name) => match request.path.as_deref().and_then(query) {
            None => AttributeValue::Absent,
            Some(query) => {
                let found = form::field(query.as_bytes(), name);
                AttributeValue::of_result(found.map(AttributeValue::of))
            }
        },
        Source::Jwt(claim) => {
            let claims = request.claims.as_ref();
            AttributeValue::of(claims.and_then(|claims| claims.text(claim)).map(Cow::Borrowed))
        }
        Source::Body(source) => match body {
            None | Some([]) => AttributeValue::Absent,
            Some(body) => {
                let found = body::read(source, request, body, declared.normal);
                AttributeValue::of_result(found)
            }
        },
    }
}

/// The query of a path, if it has one.
pub(crate) fn query(path: &str) -> Option<&str> {
    let (path, _) = path.split_once('#').unwrap_or((path, ""));
    path.split_once('?').map(|(_, query)| query)
}

/// A whole number as its shortest text: `42` for ` 042` and `+42`. What services read differently
/// (`4_2`, `0x2a`, `42.0`, `4e1`, digits of other scripts, or too many) is none.
fn whole_number(text: &str) -> Option<String> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match digits.trim_start_matches('0') {
        "" => Some("0".to_owned()),
        short if short.len() <= DIGITS_MAX => Some(format!("{sign}{short}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_decoded() {
        let read = |path: &str, name: &str| {
            let declared =
                Attribute { source: Source::Query(name.to_owned()), normal: Normal::AsIs };
            let request = Request::new("GET", path.to_owned());
            from_source(&declared, &request, None, true).into_owned()
        };
        let page = "/x?a=1&page=2%20b+c#page=9";
        assert_eq!(read(page, "page"), AttributeValue::Text("2 b c".into()));
        for absent in ["/x?pages=2", "/x", "/x#?page=7"] {
            assert_eq!(read(absent, "page"), AttributeValue::Absent, "{absent}");
        }
    }

    #[test]
    fn a_number_has_one_text() {
        for (number, text) in [
            ("42", "42"),
            (" 42\t", "42"),
            ("042", "42"),
            ("+42", "42"),
            ("-42", "-42"),
            ("-0", "0"),
            ("000", "0"),
            ("000000000000000000000000042", "42"),
            ("999999999999999", "999999999999999"),
        ] {
            assert_eq!(whole_number(number).as_deref(), Some(text), "{number}");
        }
        for other in [
            "",
            " ",
            "-",
            "+-1",
            "4 2",
            "4_2",
            "4,2",
            "42.0",
            "1e99",
            "1e2",
            "0x2a",
            "42abc",
            "1000000000000000",
            "1.00000000000000000000007",
            "\u{ff14}\u{ff12}",
            "\u{664}",
            "NaN",
            "true",
            "\u{feff}42",
        ] {
            assert_eq!(whole_number(other), None, "{other}");
        }
    }
}
