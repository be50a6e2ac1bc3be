//! Cookies.

use std::borrow::Cow;

use super::Unreadable;
use super::names::is_kin;

/// The value of a cookie on these lines. Browsers send one twice, by its paths: the same value twice
/// is one, two values are none. Quotes around a value are dropped and escapes are decoded, as many
/// services do, so that no session has several spellings.
pub(super) fn find<'l>(
    lines: impl Iterator<Item = &'l str>,
    name: &str,
) -> Result<Option<Cow<'l, str>>, Unreadable> {
    let (mut found, mut is_exact) = (None, true);
    for pair in lines.flat_map(|line| line.split(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = key.trim();
        if !is_kin(key, name) {
            continue;
        }
        is_exact &= key == name;
        let value = decode(value.trim());
        if *found.get_or_insert_with(|| value.clone()) != value {
            return Err(Unreadable::Ambiguous);
        }
    }
    if is_exact { Ok(found) } else { Err(Unreadable::Name) }
}

fn decode(value: &str) -> Cow<'_, str> {
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let value = quoted.unwrap_or(value);
    percent_encoding::percent_decode_str(value).decode_utf8().unwrap_or(Cow::Borrowed(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'l>(lines: &[&'l str]) -> Result<Option<Cow<'l, str>>, Unreadable> {
        find(lines.iter().copied(), "sid")
    }

    #[test]
    fn a_cookie_has_one_value_however_it_is_written() {
        for line in ["sid=s 1", "a=b; sid=\"s%201\";c", "sid = s%201; sid=s 1"] {
            assert_eq!(read(&[line]), Ok(Some("s 1".into())), "{line}");
        }
        assert_eq!(read(&["a=b", "sid=%ff"]), Ok(Some("%ff".into())));
        assert_eq!(read(&["sid"]), Ok(Some("".into())));
        assert_eq!(read(&["sids=1; xsid=2", ""]), Ok(None));
        assert_eq!(read(&["sid=1", "sid=2"]), Err(Unreadable::Ambiguous));
        assert_eq!(read(&["sid=1; sid[0]=2"]), Err(Unreadable::Ambiguous));
        assert_eq!(read(&["SID=1"]), Err(Unreadable::Name));
    }
}
