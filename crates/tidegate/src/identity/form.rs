//! Fields of urlencoded forms and parameters of queries.

use std::borrow::Cow;

use super::Unreadable;
use super::names::{Sightings, is_kin};

/// The value of a field. Services also split at `;`, and read a bad escape in their own ways: where
/// that could change what they read, the field is unreadable.
pub(super) fn field<'f>(form: &'f [u8], name: &str) -> Result<Option<Cow<'f, str>>, Unreadable> {
    let mut found = Sightings::none();
    for piece in form.split(|byte| *byte == b'&') {
        let is_whole = !piece.contains(&b';');
        for part in piece.split(|byte| *byte == b';') {
            let Some((key, value)) = form_urlencoded::parse(part).next() else { continue };
            if is_kin(&key, name) {
                found.add(is_whole && key == name, (part, value));
            } else if is_whole && has_bad_escape(written_name(part)) {
                return Err(Unreadable::Syntax);
            }
        }
    }
    match found.only()? {
        Some((part, _)) if has_bad_escape(part) => Err(Unreadable::Syntax),
        Some((_, value)) if value.contains(char::REPLACEMENT_CHARACTER) => Err(Unreadable::Charset),
        found => Ok(found.map(|(_, value)| value)),
    }
}

fn written_name(part: &[u8]) -> &[u8] {
    part.split(|byte| *byte == b'=').next().unwrap_or(part)
}

/// True if a `%` has no two hexadecimal digits behind it.
fn has_bad_escape(text: &[u8]) -> bool {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let is_bad = |at: usize| !is_hex(text.get(at + 1)) || !is_hex(text.get(at + 2));
    text.iter().enumerate().any(|(at, byte)| *byte == b'%' && is_bad(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: &str) -> Result<Option<Cow<'_, str>>, Unreadable> {
        field(form.as_bytes(), "email")
    }

    #[test]
    fn a_field_is_decoded() {
        for (form, value) in [
            ("email=a", "a"),
            ("x=1&email=A%40b.c+d&y=2", "A@b.c d"),
            ("&&em%61il=%c3%a9&", "é"),
            ("email", ""),
            ("email=", ""),
            ("email=a=b", "a=b"),
            ("x={&email=a", "a"),
            ("password=50%&email=a", "a"),
            ("q=a;b&email=a", "a"),
        ] {
            assert_eq!(read(form), Ok(Some(value.into())), "{form}");
        }
        for form in ["", "&", "emails=a", "x=email", "x=1%26email=a", "=email"] {
            assert_eq!(read(form), Ok(None), "{form}");
        }
    }

    #[test]
    fn what_services_read_differently_is_unreadable() {
        for (form, why) in [
            ("email=a&email=a", Unreadable::Ambiguous),
            ("email=a&EMAIL=b", Unreadable::Ambiguous),
            ("email[]=b&email=a", Unreadable::Ambiguous),
            ("email=a&email%5B0%5D=b", Unreadable::Ambiguous),
            ("email=a&+email=b", Unreadable::Ambiguous),
            ("email=a&x=1;email=b", Unreadable::Ambiguous),
            ("email=%zz&email=a", Unreadable::Ambiguous),
            ("EMAIL=a", Unreadable::Name),
            ("email[]=a", Unreadable::Name),
            ("x=1;email=a", Unreadable::Name),
            ("email=a;1", Unreadable::Name),
            ("email=%u0061", Unreadable::Syntax),
            ("email=a%", Unreadable::Syntax),
            ("%u0065mail=a", Unreadable::Syntax),
            ("email=%ff", Unreadable::Charset),
        ] {
            assert_eq!(read(form), Err(why), "{form}");
        }
    }
}
