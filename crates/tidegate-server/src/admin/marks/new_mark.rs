//! The body that sets a mark: `{"key": {"user": "u1"}, "for": "1h", "reason": "…"}`.

use std::time::Duration;

use serde_json::value::RawValue;
use tidegate::NewMark;
use tidegate::engine::marks::{MarkKind, Subject};
use tidegate::engine::units::parse_duration;

use crate::wire::fields::{FieldError, Object, boolean, scalar, text};
use crate::wire::query::shorten;

/// The longest text in a mark.
const TEXT_BYTES_MAX: usize = 512;

/// Parses a new mark, and the name of its flag if it is one.
pub(super) fn parse_new_mark(
    body: &[u8],
    kind: MarkKind,
) -> Result<(NewMark, Option<String>), FieldError> {
    let is_flag = kind == MarkKind::Flag;
    let mut fields = Object::parse(body)?;
    let subject = fields.take("key", subject)?;
    let lasts = fields.take("for", duration)?;
    let reason = fields.take("reason", short_text)?;
    let policy = fields.take("policy", short_text)?;
    let flag = if is_flag { fields.take("flag", short_text)? } else { None };
    let permanent = if is_flag { None } else { fields.take("permanent", boolean)? };
    fields.finish(if is_flag {
        "key, flag, for, reason, policy"
    } else {
        "key, for, permanent, reason, policy"
    })?;
    let missing = |field: &str| FieldError::new(field, "is missing");
    match (lasts, permanent.unwrap_or_default()) {
        (None, false) if !is_flag => {
            let detail = "is missing; `permanent` is for a ban without an end";
            return Err(FieldError::new("for", detail));
        }
        (Some(_), true) => return Err(FieldError::new("permanent", "is beside `for`: say one")),
        _ => {}
    }
    if is_flag && flag.as_deref().is_none_or(str::is_empty) {
        return Err(missing("flag"));
    }
    let mut mark = NewMark::new(subject.ok_or_else(|| missing("key"))?);
    (mark.lasts, mark.policy) = (lasts, policy);
    mark.reason = reason.unwrap_or_default();
    Ok((mark, flag))
}

/// One part of a subject, with addresses and networks in their canonical form.
pub(super) fn subject_part(name: &str, value: &str) -> Result<Subject, FieldError> {
    check_length(name, value)?;
    check_length(name, name)?;
    Subject::parse_part(name, value).map_err(|detail| FieldError::new(name, detail))
}

fn subject(field: &str, value: &RawValue) -> Result<Subject, FieldError> {
    let within = |error: FieldError| error.within(field);
    let mut parts = Vec::new();
    for (name, value) in Object::parse(value.get().as_bytes()).map_err(within)?.0 {
        let value = scalar(&name, value).map_err(within)?;
        let part = subject_part(&name, &value).map_err(within)?;
        parts.extend(part.parts().map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    if parts.is_empty() {
        return Err(FieldError::new(field, "says nobody, expected such as {\"user\": \"u1\"}"));
    }
    Ok(Subject::of_parts(parts))
}

fn duration(field: &str, value: &RawValue) -> Result<Duration, FieldError> {
    let us = parse_duration(&text(field, value)?)
        .map_err(|error| FieldError::new(field, error.to_string()))?;
    if us == 0 {
        return Err(FieldError::new(field, "expected a time that is longer than none"));
    }
    Ok(Duration::from_micros(us))
}

fn short_text(field: &str, value: &RawValue) -> Result<String, FieldError> {
    let text = text(field, value)?;
    check_length(field, &text)?;
    Ok(text.into_owned())
}

fn check_length(field: &str, text: &str) -> Result<(), FieldError> {
    if text.len() > TEXT_BYTES_MAX {
        let detail = format!("expected at most {TEXT_BYTES_MAX} bytes");
        return Err(FieldError::new(shorten(field), detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_of(text: &str, kind: MarkKind) -> Option<String> {
        parse_new_mark(text.as_bytes(), kind).err().map(|error| error.field)
    }

    #[test]
    fn what_is_wrong_is_told_with_its_field() {
        for (text, field) in [
            ("[]", ""),
            (r#"{"for":"1h"}"#, "key"),
            (r#"{"key":{},"for":"1h"}"#, "key"),
            (r#"{"key":"u1","for":"1h"}"#, "key"),
            (r#"{"key":{"ip":"here"},"for":"1h"}"#, "key.ip"),
            (r#"{"key":{"user":"u1"}}"#, "for"),
            (r#"{"key":{"user":"u1"},"for":"1 hour"}"#, "for"),
            (r#"{"key":{"user":"u1"},"for":"0s"}"#, "for"),
            (r#"{"key":{"user":"u1"},"for":"1h","flag":"f"}"#, "flag"),
            (r#"{"key":{"user":"u1"},"permanent":false}"#, "for"),
            (r#"{"key":{"user":"u1"},"permanent":"yes"}"#, "permanent"),
            (r#"{"key":{"user":"u1"},"for":"1h","permanent":true}"#, "permanent"),
            (r#"{"key":{"user":"u1"},"for":"1h","why":"x"}"#, "why"),
        ] {
            assert_eq!(field_of(text, MarkKind::Ban).as_deref(), Some(field), "{text}");
        }
        let flag = r#"{"key":{"user":"u1"}}"#;
        assert_eq!(field_of(flag, MarkKind::Flag).as_deref(), Some("flag"));
    }

    #[test]
    fn a_subject_is_read_in_its_canonical_form() {
        let text = r#"{"key":{"network":"203.0.113.7/24"},"for":"7d","reason":"r","policy":"p"}"#;
        let (mark, _) = parse_new_mark(text.as_bytes(), MarkKind::Ban).unwrap();
        assert_eq!(mark.subject.to_string(), "network 203.0.113.0/24");
        assert_eq!(mark.lasts, Some(Duration::from_secs(7 * 86_400)));
        let text = r#"{"key":{"user":"u1"},"permanent":true}"#;
        assert_eq!(parse_new_mark(text.as_bytes(), MarkKind::Ban).unwrap().0.lasts, None);
        let text = r#"{"key":{"user":7,"ip":"::ffff:192.0.2.1"},"flag":"review"}"#;
        let (mark, flag) = parse_new_mark(text.as_bytes(), MarkKind::Flag).unwrap();
        assert_eq!(mark.subject.to_string(), "user 7, ip 192.0.2.1");
        assert_eq!((flag.as_deref(), mark.lasts), (Some("review"), None));
    }
}
