//! Attributes from the body, which is read by what the request says that it is.

use super::attribute::AttributeValue;
use super::media_type::MediaType;
use super::{Unreadable, form, json, multipart};
use crate::policy::model::{BodyFormat, BodySource, Normal};
use crate::request::Request;

/// Bodies larger than this are not read.
pub(crate) const BYTES_MAX: usize = 64 * 1024;

/// What a body has of an attribute.
pub(super) fn read<'b>(
    source: &BodySource,
    request: &Request<'_>,
    body: &'b [u8],
    normal: Normal,
) -> Result<AttributeValue<'b>, Unreadable> {
    let media_type = media_type(request)?;
    if body.len() > BYTES_MAX {
        return Err(Unreadable::Size);
    }
    let format = match media_type {
        MediaType::Json => BodyFormat::Json,
        MediaType::Urlencoded | MediaType::Multipart { .. } => BodyFormat::Form,
        MediaType::Plain => return Err(Unreadable::Type),
    };
    if source.format.is_some_and(|only| only != format) {
        return Err(Unreadable::Type);
    }
    let found = match media_type {
        MediaType::Multipart { boundary } => {
            multipart::field(body, &boundary, field_name(source)?)?.map(Into::into)
        }
        MediaType::Urlencoded if looks_like_json(body) => return Err(Unreadable::Type),
        MediaType::Urlencoded => form::field(body, field_name(source)?)?,
        MediaType::Json | MediaType::Plain => {
            let found = json::find(body, &source.pointer)?.map(|value| value.get());
            return Ok(found.map_or(AttributeValue::Absent, |value| {
                match (source.count, normal) {
                    (true, _) => json::count(value),
                    (false, Normal::Number) => json::written_scalar(value),
                    (false, _) => json::scalar(value),
                }
            }));
        }
    };
    Ok(found.map_or(AttributeValue::Absent, AttributeValue::Text))
}

/// What the request says of its body. Behind a socket it must say so; a caller that speaks for the
/// application, and says nothing, gives JSON.
fn media_type(request: &Request<'_>) -> Result<MediaType, Unreadable> {
    if request.is_json_body {
        return Ok(MediaType::Json);
    }
    let mut types = request.header_lines("content-type");
    let (said, further) = (types.next(), types.next());
    if further.is_some() {
        return Err(Unreadable::Ambiguous);
    }
    let is_identity = |coding: &str| coding.is_empty() || coding.eq_ignore_ascii_case("identity");
    if !request.header_lines("content-encoding").all(is_identity) {
        return Err(Unreadable::Encoding);
    }
    match said {
        Some(line) => MediaType::parse(line),
        None if request.peer.is_none() => Ok(MediaType::Json),
        None => Err(Unreadable::NoType),
    }
}

/// The field that a pointer means in a form. Services nest fields in different ways, and repeat them
/// for lists: there a form is unreadable.
fn field_name(source: &BodySource) -> Result<&str, Unreadable> {
    source.field.as_deref().filter(|_| !source.count).ok_or(Unreadable::Type)
}

/// True if a service that reads JSON whatever its type, as Go's decoder does, could read this.
fn looks_like_json(body: &[u8]) -> bool {
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    matches!(text.trim_ascii_start().first(), Some(b'{' | b'['))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "application/x-www-form-urlencoded";
    const SOCKET: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn source(pointer: &str, format: Option<BodyFormat>) -> BodySource {
        BodySource::new(pointer.to_owned(), format, false)
    }

    fn read_email<'b>(
        request: &Request<'_>,
        body: &'b str,
    ) -> Result<AttributeValue<'b>, Unreadable> {
        read(&source("/email", None), request, body.as_bytes(), Normal::AsIs)
    }

    fn typed(content_type: &str) -> Request<'_> {
        Request::new("POST", "/").peer(SOCKET).header("Content-Type", content_type)
    }

    fn text(text: &str) -> AttributeValue<'_> {
        AttributeValue::Text(text.into())
    }

    #[test]
    fn a_body_is_read_by_its_type() {
        let json = r#"{"email":"a"}"#;
        assert_eq!(read_email(&typed("application/json"), json), Ok(text("a")));
        assert_eq!(read_email(&typed(FORM), "x=1&email=a"), Ok(text("a")));
        let multipart =
            "--b\r\nContent-Disposition: form-data; name=\"email\"\r\n\r\na\r\n--b--\r\n";
        let typed_multipart = typed("multipart/form-data; boundary=b");
        assert_eq!(read_email(&typed_multipart, multipart), Ok(text("a")));
        let identity = typed("application/json").header("content-encoding", "Identity");
        assert_eq!(read_email(&identity, json), Ok(text("a")));
    }

    #[test]
    fn what_is_not_said_or_said_otherwise_is_unreadable() {
        let json = r#"{"email":"a"}"#;
        let untyped = || Request::new("POST", "/").peer(SOCKET);
        for (request, body, why) in [
            (untyped(), json, Unreadable::NoType),
            (typed("text/plain"), json, Unreadable::Type),
            (typed("application/json; charset=utf-7"), json, Unreadable::Charset),
            (
                typed("application/json").header("content-encoding", "gzip"),
                json,
                Unreadable::Encoding,
            ),
            (typed("application/json").header("content-type", FORM), json, Unreadable::Ambiguous),
            (typed("application/json"), "email=a", Unreadable::Syntax),
            (typed(FORM), r#"{"email":"d1","x":"&email=a&"}"#, Unreadable::Type),
            (typed(FORM), "\u{feff} \r\n[&email=a", Unreadable::Type),
        ] {
            assert_eq!(read_email(&request, body), Err(why), "{body}");
        }
        let large = format!("email=a&x={}", "x".repeat(BYTES_MAX));
        assert_eq!(read_email(&typed(FORM), &large), Err(Unreadable::Size));
    }

    #[test]
    fn a_caller_without_a_socket_gives_json_unless_it_says_otherwise() {
        let json = r#"{"email":"a"}"#;
        let bare = || Request::new("POST", "/");
        assert_eq!(read_email(&bare(), json), Ok(text("a")));
        assert_eq!(read_email(&bare().header("content-type", FORM), "email=a"), Ok(text("a")));
        let parsed = Request { is_json_body: true, ..typed(FORM) };
        assert_eq!(read_email(&parsed, json), Ok(text("a")));
    }

    #[test]
    fn an_attribute_may_take_one_format_alone() {
        let (json, form) = (Some(BodyFormat::Json), Some(BodyFormat::Form));
        let read = |format, content_type, body| {
            let source = source("/email", format);
            read(&source, &typed(content_type), body, Normal::AsIs)
        };
        assert_eq!(read(json, FORM, b"email=a"), Err(Unreadable::Type));
        assert_eq!(read(form, "application/json", b"{}"), Err(Unreadable::Type));
        assert_eq!(read(form, FORM, b"email=a"), Ok(text("a")));
    }

    #[test]
    fn nested_pointers_and_lists_are_unreadable_in_a_form() {
        let nested = source("/user/email", None);
        let form = typed(FORM);
        assert_eq!(read(&nested, &form, b"user[email]=a", Normal::AsIs), Err(Unreadable::Type));
        let counted = BodySource::new("/users".to_owned(), None, true);
        assert_eq!(read(&counted, &form, b"users[]=a", Normal::AsIs), Err(Unreadable::Type));
    }
}
