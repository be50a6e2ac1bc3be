//! The `Content-Type` of a body, read strictly: what services could read as another type is none.

use super::Unreadable;

/// The types of bodies that attributes are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MediaType {
    Json,
    Urlencoded,
    Multipart {
        boundary: String,
    },
    /// A text without a structure, as a part of a form may be.
    Plain,
}

impl MediaType {
    /// Reads a line such as `application/json; charset=utf-8`.
    pub(super) fn parse(line: &str) -> Result<Self, Unreadable> {
        let (essence, parameters) = line.split_once(';').unwrap_or((line, ""));
        let essence = essence.trim_ascii().to_ascii_lowercase();
        let mut parameters = Parameters(parameters);
        let (mut boundary, mut charset) = (None, None);
        while let Some((name, value)) = parameters.next_pair().map_err(|()| Unreadable::Type)? {
            let known = match &*name {
                "charset" => &mut charset,
                "boundary" => &mut boundary,
                // A service could find the boundary in it, or the rest of a charset.
                _ => return Err(Unreadable::Type),
            };
            if known.replace(value).is_some() {
                return Err(Unreadable::Type);
            }
        }
        let (kind, subtype) = essence.split_once('/').ok_or(Unreadable::Type)?;
        let is_json = kind == "application" && subtype == "json" || subtype.ends_with("+json");
        let found = match (&*essence, boundary) {
            ("multipart/form-data", Some(boundary)) if is_boundary(boundary) => {
                Self::Multipart { boundary: boundary.to_owned() }
            }
            ("multipart/form-data", _) => return Err(Unreadable::Syntax),
            (_, Some(_)) => return Err(Unreadable::Type),
            ("application/x-www-form-urlencoded", None) => Self::Urlencoded,
            ("text/plain", None) => Self::Plain,
            (_, None) if is_json && is_token(kind) && is_token(subtype) => Self::Json,
            _ => return Err(Unreadable::Type),
        };
        match charset {
            Some(charset) if !charset.eq_ignore_ascii_case("utf-8") => Err(Unreadable::Charset),
            _ => Ok(found),
        }
    }
}

/// Boundaries as browsers and clients make them. Services cut one with other signs at different
/// places.
fn is_boundary(boundary: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"'+_.-".contains(&byte);
    (1..=70).contains(&boundary.len()) && boundary.bytes().all(is_usual)
}

/// What is written as `; name=value; name="value"`.
pub(super) struct Parameters<'l>(pub(super) &'l str);

impl<'l> Parameters<'l> {
    /// The next parameter, its name in lower case. A backslash in a quoted value is an error, because
    /// services differ in what it means, and so is `name*`, which only some know.
    pub(super) fn next_pair(&mut self) -> Result<Option<(String, &'l str)>, ()> {
        let rest = self.0.trim_start_matches([' ', '\t', ';']);
        if rest.is_empty() {
            return Ok(None);
        }
        let (name, rest) = rest.split_once('=').ok_or(())?;
        if !is_token(name) || name.contains('*') {
            return Err(());
        }
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or(())?,
            None => {
                let (value, rest) =
                    rest.split_at(rest.find([' ', '\t', ';']).unwrap_or(rest.len()));
                (Some(value).filter(|value| is_token(value)).ok_or(())?, rest)
            }
        };
        let after = rest.trim_start_matches([' ', '\t']);
        let is_odd = |c: char| c == '\\' || c.is_control();
        if value.contains(is_odd) || !after.is_empty() && !after.starts_with(';') {
            return Err(());
        }
        self.0 = after;
        Ok(Some((name.to_ascii_lowercase(), value)))
    }
}

/// True for a token of RFC 9110.
pub(super) fn is_token(text: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_utf_8_and_forms_are_known() {
        for json in [
            "application/json",
            "Application/JSON ; Charset=\"UTF-8\"",
            "application/json;charset=utf-8;",
            "application/vnd.api+json",
        ] {
            assert_eq!(MediaType::parse(json), Ok(MediaType::Json), "{json}");
        }
        for form in
            ["application/x-www-form-urlencoded", "application/x-www-form-urlencoded;charset=UTF-8"]
        {
            assert_eq!(MediaType::parse(form), Ok(MediaType::Urlencoded), "{form}");
        }
        for boundary in ["----WebKitFormBoundaryAb1", "\"b-1_2.3+4\""] {
            let line = format!("multipart/form-data; boundary={boundary}");
            let boundary = boundary.trim_matches('"').to_owned();
            assert_eq!(MediaType::parse(&line), Ok(MediaType::Multipart { boundary }), "{line}");
        }
    }

    #[test]
    fn every_other_type_is_unreadable() {
        for (line, why) in [
            ("", Unreadable::Type),
            ("json", Unreadable::Type),
            ("text/json", Unreadable::Type),
            ("application/x-json", Unreadable::Type),
            ("application/json, text/plain", Unreadable::Type),
            ("application/json; charset", Unreadable::Type),
            ("application/json; charset=utf-8; charset=utf-8", Unreadable::Type),
            ("application/json; charset*=utf-7''x", Unreadable::Type),
            ("application/json; version=1", Unreadable::Type),
            ("application/json; boundary=x", Unreadable::Type),
            ("application/json; charset=\"utf-8", Unreadable::Type),
            ("application/json; charset=\"utf\\-8\"", Unreadable::Type),
            ("application/json; charset=\"utf-8\"x", Unreadable::Type),
            ("application/json; charset=utf-7", Unreadable::Charset),
            ("application/json; charset=\"\"", Unreadable::Charset),
            ("application/json; charset=utf8", Unreadable::Charset),
            ("application/x-www-form-urlencoded; charset=iso-8859-1", Unreadable::Charset),
            ("multipart/form-data", Unreadable::Syntax),
            ("multipart/form-data; boundary=\"a,b\"", Unreadable::Syntax),
            ("multipart/form-data; boundary=\"a b\"", Unreadable::Syntax),
            ("multipart/form-data; xboundary=a; boundary=b", Unreadable::Type),
            ("multipart/form-data; boundary=a; boundary=b", Unreadable::Type),
            ("multipart/form-data; boundary*0=a", Unreadable::Type),
            ("multipart/mixed; boundary=a", Unreadable::Type),
        ] {
            assert_eq!(MediaType::parse(line), Err(why), "{line}");
        }
    }
}
