//! A mark that an operator sets: `{"key": {"user": "u1"}, "for": "1h", "reason": "…"}`.

use std::time::Duration;

use tidegate::NewMark;
use tidegate::marks::{MarkKind, Subject};
use tidegate::units::parse_duration;

use crate::wire::api::fields::{FieldError, Object, is_null, scalar, text};

/// The longest text that a mark holds.
const TEXT_BYTES_MAX: usize = 512;

/// What is to be set.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) order: NewMark,
    /// The flag's name; bans have none.
    pub(super) flag: Option<String>,
}

impl Ordered {
    pub(super) fn parse(body: &[u8], kind: MarkKind) -> Result<Self, FieldError> {
        let (mut key, mut lasts, mut flag) = (None, None, None);
        let (mut reason, mut policy) = (None, None);
        for (name, value) in Object::parse(body)?.0 {
            match &*name {
                _ if is_null(value) => {}
                "key" => key = Some(subject_of(value.get())?),
                "for" => lasts = Some(duration(&text(&name, value)?)?),
                "reason" => reason = Some(short(&name, &text(&name, value)?)?),
                "policy" => policy = Some(short(&name, &text(&name, value)?)?),
                "flag" if kind == MarkKind::Flag => {
                    flag = Some(short(&name, &text(&name, value)?)?);
                }
                other => {
                    let expected = match kind {
                        MarkKind::Flag => "key, flag, for, reason, policy",
                        MarkKind::Ban | MarkKind::Factor => "key, for, reason, policy",
                    };
                    let shown: String = other.chars().take(80).collect();
                    let detail = format!("is not a field here, expected {expected}");
                    return Err(FieldError::new(shown, detail));
                }
            }
        }
        let missing = |field: &str| FieldError::new(field, "is missing");
        if kind == MarkKind::Ban && lasts.is_none() {
            return Err(missing("for"));
        }
        if kind == MarkKind::Flag && flag.as_deref().is_none_or(str::is_empty) {
            return Err(missing("flag"));
        }
        let mut order = NewMark::new(key.ok_or_else(|| missing("key"))?);
        (order.lasts, order.policy) = (lasts, policy);
        order.reason = reason.unwrap_or_default();
        Ok(Self { order, flag })
    }
}

/// One part of a subject, in one spelling.
pub(super) fn part(name: &str, value: &str) -> Result<Subject, FieldError> {
    let value = &*short(name, value)?;
    Ok(match name {
        "ip" => {
            let expected = |_| FieldError::new(name, "expected an IP address");
            Subject::ip(value.parse().map_err(expected)?)
        }
        "network" => {
            let expected = |_| FieldError::new(name, "expected a network such as 203.0.113.0/24");
            Subject::network(value.parse().map_err(expected)?)
        }
        name => Subject::part(short(name, name)?, value),
    })
}

fn subject_of(key: &str) -> Result<Subject, FieldError> {
    let within = |error: FieldError| error.within("key");
    let mut parts = Vec::new();
    for (name, value) in Object::parse(key.as_bytes()).map_err(within)?.0 {
        let value = scalar(&name, value).map_err(within)?;
        let part = part(&name, &value).map_err(within)?;
        parts.extend(part.parts().map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    if parts.is_empty() {
        return Err(FieldError::new("key", "says nobody, expected such as {\"user\": \"u1\"}"));
    }
    Ok(Subject::of_parts(parts))
}

fn duration(text: &str) -> Result<Duration, FieldError> {
    let us = parse_duration(text).map_err(|error| FieldError::new("for", error.to_string()))?;
    if us == 0 {
        return Err(FieldError::new("for", "expected a time that is longer than none"));
    }
    Ok(Duration::from_micros(us))
}

fn short(field: &str, text: &str) -> Result<String, FieldError> {
    if text.len() > TEXT_BYTES_MAX {
        let detail = format!("expected at most {TEXT_BYTES_MAX} bytes");
        let field: String = field.chars().take(80).collect();
        return Err(FieldError::new(field, detail));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_of(text: &str, kind: MarkKind) -> Option<String> {
        Ordered::parse(text.as_bytes(), kind).err().map(|error| error.field)
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
            (r#"{"key":{"user":"u1"},"for":"1h","why":"x"}"#, "why"),
        ] {
            assert_eq!(field_of(text, MarkKind::Ban).as_deref(), Some(field), "{text}");
        }
        let flag = r#"{"key":{"user":"u1"}}"#;
        assert_eq!(field_of(flag, MarkKind::Flag).as_deref(), Some("flag"));
    }

    #[test]
    fn whom_is_read_in_one_spelling() {
        let text = r#"{"key":{"network":"203.0.113.7/24"},"for":"7d","reason":"r","policy":"p"}"#;
        let ordered = Ordered::parse(text.as_bytes(), MarkKind::Ban).unwrap();
        assert_eq!(ordered.order.subject.to_string(), "network 203.0.113.0/24");
        assert_eq!(ordered.order.lasts, Some(Duration::from_secs(7 * 86_400)));
        let text = r#"{"key":{"user":7,"ip":"::ffff:192.0.2.1"},"flag":"review"}"#;
        let ordered = Ordered::parse(text.as_bytes(), MarkKind::Flag).unwrap();
        assert_eq!(ordered.order.subject.to_string(), "user 7, ip 192.0.2.1");
        assert_eq!((ordered.flag.as_deref(), ordered.order.lasts), (Some("review"), None));
    }
}
