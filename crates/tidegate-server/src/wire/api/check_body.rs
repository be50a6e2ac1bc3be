//! The body of a check or an acquire, from JSON to a request of the engine.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tidegate::Request;

use crate::wire::fields::{
    FieldError, Object, address, amount, boolean, is_null, objects, scalar, text, unknown_field,
    whole,
};

/// The longest wait: an hour.
const WAIT_MS_MAX: u64 = 3_600_000;

/// The fields of a check.
const CHECK: [&str; 14] = [
    "policy",
    "method",
    "path",
    "ip",
    "user",
    "tier",
    "internal",
    "country",
    "operation",
    "attributes",
    "headers",
    "body",
    "cost",
    "reserve",
];

/// A check, or what it shares with other calls.
pub(super) struct CheckBody<'a> {
    pub(super) request: Request<'a>,
    /// The `Authorization` header of the client.
    authorization: Option<Cow<'a, str>>,
    /// Only in acquire.
    pub(super) max_wait_ms: Option<u64>,
}

impl<'a> CheckBody<'a> {
    pub(super) fn parse_check(text: &'a [u8]) -> Result<Self, FieldError> {
        Self::from_fields(&Object::parse(text)?)
    }

    /// An acquire is a check with `max_wait_ms`.
    pub(super) fn parse_acquire(text: &'a [u8]) -> Result<Self, FieldError> {
        Self::from_object(&Object::parse(text)?, true)
    }

    pub(super) fn parse_batch(text: &'a [u8], max: usize) -> Result<Vec<Self>, FieldError> {
        let items = objects(text, max).map_err(|error| {
            FieldError::new("", format!("expected an array of checks: {error}"))
        })?;
        let call = |(index, object): (usize, &Object<'a>)| {
            Self::from_object(object, false).map_err(|error| error.within(&format!("[{index}]")))
        };
        items.iter().enumerate().map(call).collect()
    }

    pub(super) fn from_fields(object: &Object<'a>) -> Result<Self, FieldError> {
        Self::from_object(object, false)
    }

    pub(super) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }

    /// The subject of a report: a check without a charge.
    pub(super) fn from_report_fields(object: &Object<'a>) -> Result<Self, FieldError> {
        let charged = |name: &str| matches!(name, "cost" | "reserve");
        match object.0.iter().find(|(name, _)| charged(name)) {
            Some((name, _)) => Err(unknown(name)),
            None => Self::from_object(object, false),
        }
    }

    fn from_object(object: &Object<'a>, can_wait: bool) -> Result<Self, FieldError> {
        let mut call = Self { request: Request::default(), authorization: None, max_wait_ms: None };
        for (name, value) in &object.0 {
            if is_null(value) && (CHECK.contains(&&**name) || can_wait && name == "max_wait_ms") {
                continue;
            }
            call.set(name, value, can_wait)?;
        }
        Ok(call)
    }

    fn set(&mut self, name: &str, value: &'a RawValue, can_wait: bool) -> Result<(), FieldError> {
        let request = &mut self.request;
        match name {
            "policy" => request.policy = Some(text(name, value)?),
            "method" => request.method = Some(text(name, value)?),
            "path" => request.path = Some(text(name, value)?),
            "ip" => request.ip = Some(address(name, value)?),
            "user" => request.user = Some(scalar(name, value)?),
            "tier" => request.tier = Some(scalar(name, value)?),
            "internal" => request.internal = boolean(name, value)?,
            "country" => request.country = Some(text(name, value)?),
            "operation" => request.operation = Some(text(name, value)?),
            "attributes" => request.attributes = pairs(name, value)?,
            "headers" => self.headers(value)?,
            "body" => {
                request.body = Some(body(name, value)?);
                request.is_json_body = !is_text(value);
            }
            "cost" => request.cost = Some(amount(name, value)?),
            "reserve" => request.reserve = boolean(name, value)?,
            "max_wait_ms" if can_wait => self.max_wait_ms = Some(whole(name, value, WAIT_MS_MAX)?),
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// Headers: a string each, or a list of strings where a header has several lines.
    fn headers(&mut self, value: &'a RawValue) -> Result<(), FieldError> {
        let within = |error: FieldError| error.within("headers");
        for (name, value) in Object::parse(value.get().as_bytes()).map_err(within)?.0 {
            let lines = match value.get().as_bytes().first() {
                Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(value.get())
                    .map_err(|error| within(FieldError::new(&*name, error.to_string())))?,
                _ if is_null(value) => continue,
                _ => vec![value],
            };
            for line in lines {
                let line = scalar(&name, line).map_err(within)?;
                if name.eq_ignore_ascii_case("authorization")
                    && self.authorization.replace(line.clone()).is_some()
                {
                    let twice = "is there twice, expected one token at most";
                    return Err(within(FieldError::new("authorization", twice)));
                }
                self.request.headers.push((name.clone(), line));
            }
        }
        Ok(())
    }
}

/// An object of names and scalars; a null is left out.
fn pairs<'a>(field: &str, value: &'a RawValue) -> Result<Vec<Pair<'a>>, FieldError> {
    let object = Object::parse(value.get().as_bytes()).map_err(|error| error.within(field))?;
    let fields = object.0.into_iter().filter(|(_, value)| !is_null(value));
    fields
        .map(|(name, value)| {
            let value = scalar(&name, value).map_err(|error| error.within(field))?;
            Ok((name, value))
        })
        .collect()
}

type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

fn is_text(value: &RawValue) -> bool {
    value.get().starts_with('"')
}

/// A string is the body's text, of the type that the headers say; any other value is a JSON body.
fn body<'a>(field: &str, value: &'a RawValue) -> Result<Cow<'a, [u8]>, FieldError> {
    if !is_text(value) {
        return Ok(Cow::Borrowed(value.get().as_bytes()));
    }
    Ok(match text(field, value)? {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    })
}

fn unknown(name: &str) -> FieldError {
    unknown_field(name, &format!("one of {}", CHECK.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_contract_is_read() {
        let text =
            br#"{"policy":null,"method":"POST","path":"/rooms/r9/bookings","ip":"203.0.113.7",
            "user":"u1","tier":"free","internal":false,"country":null,"operation":null,
            "attributes":{"room":"r9","n":5},"headers":{"x-api-key":"k","x-two":["a","b"]},
            "body":{"email":"a"},"cost":1,"reserve":false}"#;
        assert!(CheckBody::parse_check(text).is_ok());
        assert!(CheckBody::parse_check(b"{}").is_ok());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_field() {
        for (text, field) in [
            (r#"{"usr":"u"}"#, "usr"),
            (r#"{"usr":null}"#, "usr"),
            (r#"{"ip":"x"}"#, "ip"),
            (r#"{"cost":"-1"}"#, "cost"),
            (r#"{"internal":1}"#, "internal"),
            (r#"{"attributes":{"a":[]}}"#, "attributes.a"),
            (r#"{"attributes":[]}"#, "attributes"),
            (r#"{"headers":{"a":{}}}"#, "headers.a"),
            (r#"{"headers":{"a":[{}]}}"#, "headers.a"),
            (r#"{"headers":{"Authorization":"a","authorization":"b"}}"#, "headers.authorization"),
            (r#"{"max_wait_ms":5}"#, "max_wait_ms"),
            (r#"{"user":"#, ""),
        ] {
            let found = CheckBody::parse_check(text.as_bytes()).err().map(|error| error.field);
            assert_eq!(found.as_deref(), Some(field), "{text}");
        }
    }

    #[test]
    fn a_string_is_a_body_of_its_type_and_any_other_value_is_json() {
        for (text, is_json) in [
            (r#"{"body":"email=a","headers":{"content-type":"text/plain"}}"#, false),
            (r#"{"body":{"email":"a"},"headers":{"content-type":"text/plain"}}"#, true),
            (r#"{"body":["a"]}"#, true),
        ] {
            let check = CheckBody::parse_check(text.as_bytes()).unwrap();
            assert_eq!(check.request.is_json_body, is_json, "{text}");
        }
    }

    #[test]
    fn only_acquire_waits() {
        assert_eq!(
            CheckBody::parse_acquire(br#"{"max_wait_ms":250}"#).unwrap().max_wait_ms,
            Some(250)
        );
        assert!(CheckBody::parse_acquire(br#"{"max_wait_ms":3600001}"#).is_err());
    }

    #[test]
    fn a_batch_names_the_item_that_is_wrong() {
        assert_eq!(CheckBody::parse_batch(br#"[{},{"user":"u"}]"#, 2).unwrap().len(), 2);
        let error = CheckBody::parse_batch(br#"[{},{"cost":"x"}]"#, 2).err().unwrap();
        assert_eq!(error.field, "[1].cost");
        assert!(CheckBody::parse_batch(b"[{},{},{}]", 2).is_err());
        assert!(CheckBody::parse_batch(b"{}", 2).is_err());
    }
}
