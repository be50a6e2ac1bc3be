//! Attributes from their declared sources: headers, query parameters, JSON bodies.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::value::RawValue;

use crate::policy::model::Source;
use crate::request::Request;
use crate::units::canonical_number;

/// Bodies larger than this are not read.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024;

/// The value of an attribute from where it was declared to come from.
pub(crate) fn from_source<'r>(
    source: &Source,
    request: &'r Request<'_>,
    headers_believed: bool,
) -> Option<Cow<'r, str>> {
    match source {
        Source::Given => None,
        Source::Header { trusted: true, .. } if !headers_believed => None,
        Source::Header { name, .. } => request.header_value(name).map(Cow::Borrowed),
        Source::Query(name) => query_parameter(request.path.as_deref()?, name),
        Source::Body(pointer) => {
            let body = request.body.as_deref().filter(|body| body.len() <= BODY_BYTES_MAX)?;
            json_value(body, pointer).map(Cow::Owned)
        }
    }
}

/// Trimmed and lower-cased.
pub(crate) fn fold(value: &str) -> Cow<'static, str> {
    Cow::Owned(value.trim().to_lowercase())
}

/// The first parameter of this name, decoded.
fn query_parameter<'p>(path: &'p str, name: &str) -> Option<Cow<'p, str>> {
    let (_, query) = path.split_once('?')?;
    let query = query.split('#').next().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value)
}

/// What a JSON pointer finds: a string's text, `true` or `false`, or a number as its decimal text.
/// Lists, maps and null are no values.
fn json_value(body: &[u8], pointer: &str) -> Option<String> {
    let mut value: &RawValue = serde_json::from_slice(body).ok()?;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        value = if value.get().starts_with('{') {
            let map: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(value.get()).ok()?;
            map.get(token.as_str()).copied()?
        } else {
            let list: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
            let index =
                Some(token.as_str()).filter(|token| *token == "0" || !token.starts_with('0'))?;
            list.get(index.parse::<usize>().ok()?).copied()?
        };
    }
    let text = value.get();
    match text.as_bytes().first()? {
        b'"' => serde_json::from_str(text).ok(),
        b'{' | b'[' | b'n' => None,
        b't' | b'f' => Some(text.to_owned()),
        _ => canonical_number(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_pointers_find_text_and_exact_numbers() {
        let body = br#"{"email":" A@b.C ","order":{"items":[{"price":734.50}]},"a/b":true,"n":null,"esc":"\u00e9"}"#;
        let find = |pointer| json_value(body, pointer);
        assert_eq!(find("/email").as_deref(), Some(" A@b.C "));
        assert_eq!(find("/order/items/0/price").as_deref(), Some("734.5"));
        assert_eq!(find("/a~1b").as_deref(), Some("true"));
        assert_eq!(find("/esc").as_deref(), Some("é"));
        for missing in [
            "/n",
            "/order",
            "/order/items",
            "/order/items/1",
            "/order/items/00",
            "/order/items/-1",
            "/x",
        ] {
            assert_eq!(find(missing), None, "{missing}");
        }
        assert_eq!(json_value(b"not json", "/a"), None);
        assert_eq!(json_value(&b"[".repeat(60_000), "/0/0/0"), None);
    }

    #[test]
    fn query_parameters_are_decoded() {
        assert_eq!(query_parameter("/x?a=1&page=2%20b+c#page=9", "page").as_deref(), Some("2 b c"));
        assert_eq!(query_parameter("/x?pages=2", "page"), None);
        assert_eq!(query_parameter("/x", "page"), None);
    }
}
