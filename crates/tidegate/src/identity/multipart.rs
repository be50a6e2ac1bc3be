//! Fields of `multipart/form-data`.
//!
//! The parser is our own: the crates for it are asynchronous, or read what they can. This one reads a
//! body in memory as browsers and HTTP clients write it, and nothing else: where Go's `mime/multipart`,
//! busboy and PHP could find other parts, names or values, the whole body is unreadable. So there is
//! no text before the first delimiter or after the last, no bare LF, no folded header, no backslash in
//! quotes, no `filename*`, no transfer encoding, and no boundary inside a part.

use super::Unreadable;
use super::media_type::{MediaType, Parameters, is_token};
use super::names::{Sightings, is_kin};

/// A part has at most this many header lines.
const HEADERS_MAX: usize = 8;

/// The value of a field.
pub(super) fn field<'b>(
    body: &'b [u8],
    boundary: &str,
    name: &str,
) -> Result<Option<&'b str>, Unreadable> {
    let mut found = Sightings::none();
    for part in parts(body, boundary)? {
        let part = Part::parse(part).ok_or(Unreadable::Syntax)?;
        if is_kin(part.name, name) {
            found.add(part.name == name, part);
        }
    }
    found.only()?.map(|part| part.text()).transpose()
}

/// What is between the delimiters.
fn parts<'b>(body: &'b [u8], boundary: &str) -> Result<Vec<&'b [u8]>, Unreadable> {
    let delimiter = format!("--{boundary}");
    let between = split(body, delimiter.as_bytes());
    let [before, inner @ .., after] = &*between else { return Err(Unreadable::Syntax) };
    if !before.is_empty() || inner.is_empty() || !matches!(*after, b"--" | b"--\r\n") {
        return Err(Unreadable::Syntax);
    }
    let part = |part: &&'b [u8]| part.strip_prefix(b"\r\n")?.strip_suffix(b"\r\n");
    inner.iter().map(|one| part(one).ok_or(Unreadable::Syntax)).collect()
}

/// The pieces around every occurrence of a delimiter.
fn split<'b>(body: &'b [u8], delimiter: &[u8]) -> Vec<&'b [u8]> {
    let (mut pieces, mut start) = (Vec::new(), 0);
    for at in memchr::memmem::find_iter(body, delimiter) {
        pieces.push(&body[start..at]);
        start = at + delimiter.len();
    }
    pieces.push(&body[start..]);
    pieces
}

/// One part of a form.
struct Part<'b> {
    name: &'b str,
    is_file: bool,
    media_type: Option<&'b str>,
    content: &'b [u8],
}

impl<'b> Part<'b> {
    fn parse(part: &'b [u8]) -> Option<Self> {
        let end = memchr::memmem::find(part, b"\r\n\r\n")?;
        let (head, content) = (std::str::from_utf8(&part[..end]).ok()?, &part[end + 4..]);
        let (mut disposition, mut media_type) = (None, None);
        for (number, line) in head.split("\r\n").enumerate() {
            let (name, value) = line.split_once(':')?;
            let value = value.trim_matches([' ', '\t']);
            if number >= HEADERS_MAX || !is_token(name) || value.contains(char::is_control) {
                return None;
            }
            let earlier = match &*name.to_ascii_lowercase() {
                "content-disposition" => disposition.replace(value),
                "content-type" => media_type.replace(value),
                // Go and PHP decode such a part, others do not.
                "content-transfer-encoding" => Some(value).filter(|value| !is_identity(value)),
                _ => None,
            };
            if earlier.is_some() {
                return None;
            }
        }
        let (name, is_file) = read_disposition(disposition?)?;
        Some(Self { name, is_file, media_type, content })
    }

    /// The text of a field that is no file.
    fn text(&self) -> Result<&'b str, Unreadable> {
        if self.is_file {
            return Err(Unreadable::Shape);
        }
        match self.media_type.map(MediaType::parse).transpose()? {
            None | Some(MediaType::Plain) => {}
            Some(_) => return Err(Unreadable::Type),
        }
        std::str::from_utf8(self.content).map_err(|_| Unreadable::Charset)
    }
}

fn is_identity(encoding: &str) -> bool {
    ["7bit", "8bit", "binary"].iter().any(|known| encoding.eq_ignore_ascii_case(known))
}

/// The name that a part says, and whether it is a file. Of an empty `filename`, some make a file and
/// some a field.
fn read_disposition(line: &str) -> Option<(&str, bool)> {
    let (kind, parameters) = line.split_once(';')?;
    if !kind.trim_ascii().eq_ignore_ascii_case("form-data") {
        return None;
    }
    let (mut parameters, mut name, mut file_name) = (Parameters(parameters), None, None);
    while let Some((key, value)) = parameters.next_pair().ok()? {
        let earlier = match &*key {
            "name" => name.replace(value),
            "filename" => file_name.replace(value),
            _ => return None,
        };
        if earlier.is_some() {
            return None;
        }
    }
    Some((name?, file_name.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: &str = "--b--\r\n";

    fn part(head: &str, content: &str) -> String {
        format!("--b\r\n{head}\r\n\r\n{content}\r\n")
    }

    fn named(name: &str, content: &str) -> String {
        part(&format!("Content-Disposition: form-data; name=\"{name}\""), content)
    }

    fn read(body: &str) -> Result<Option<&str>, Unreadable> {
        field(body.as_bytes(), "b", "email")
    }

    #[test]
    fn a_field_is_found_among_others_and_files() {
        let file = part(
            "Content-Disposition: form-data; name=\"photo\"; filename=\"é.png\"\r\nContent-Type: image/png",
            "\r\n\u{1}--",
        );
        let typed =
            "content-type: text/plain; charset=UTF-8\r\nCONTENT-DISPOSITION:form-data;name=email";
        for (body, value) in [
            (named("email", "a@b.c") + LAST, "a@b.c"),
            (named("email", "") + "--b--", ""),
            (named("x", "1") + &file + &named("email", "é\n-b") + LAST, "é\n-b"),
            (part(typed, "a") + LAST, "a"),
            (
                part(
                    "Content-Disposition: form-data; name=\"email\"\r\nContent-Transfer-Encoding: 8BIT\r\nContent-Length: 1",
                    "a",
                ) + LAST,
                "a",
            ),
        ] {
            assert_eq!(read(&body), Ok(Some(value)), "{body}");
        }
        assert_eq!(read(&(named("emails", "a") + &file + LAST)), Ok(None));
    }

    #[test]
    fn a_name_that_is_there_twice_or_otherwise_is_no_value() {
        for (others, why) in [
            (["email", "email"], Unreadable::Ambiguous),
            (["email", "EMAIL"], Unreadable::Ambiguous),
            (["email[]", "email"], Unreadable::Ambiguous),
            (["x", "email[0]"], Unreadable::Name),
        ] {
            let body = named(others[0], "a") + &named(others[1], "a") + LAST;
            assert_eq!(read(&body), Err(why), "{others:?}");
        }
    }

    #[test]
    fn what_services_split_differently_is_unreadable() {
        let whole = named("email", "a") + LAST;
        let head = "Content-Disposition: form-data; name=\"email\"";
        for body in [
            String::new(),
            "--b--\r\n".to_owned(),
            named("email", "a"),
            format!("preamble\r\n{whole}"),
            format!("\r\n{whole}"),
            format!("{whole}epilogue"),
            whole.replace("\r\n", "\n"),
            whole.replacen("--b\r\n", "--b \r\n", 1),
            named("email", "a\n--b") + LAST,
            named("email", "a--bc") + LAST,
            named("x\\\"", "1") + &whole,
            part("Content-Disposition: form-data", "a") + LAST,
            part("Content-Disposition: attachment; name=\"email\"", "a") + LAST,
            part("Content-Type: text/plain", "a") + LAST,
            part(&format!("{head}; name=\"x\""), "a") + LAST,
            part(&format!("{head}; filename*=utf-8''x"), "a") + LAST,
            part(&format!("{head}; name*=utf-8''x"), "a") + LAST,
            part(&format!("{head}\r\n{head}"), "a") + LAST,
            part("Content-Disposition: form-data;\r\n name=\"email\"", "a") + LAST,
            part("Content-Disposition : form-data; name=\"email\"", "a") + LAST,
            part(&format!("{head}\r\nContent-Transfer-Encoding: base64"), "YQ==") + LAST,
            part(&format!("{head}\r\n{}", ["X: 1"; HEADERS_MAX].join("\r\n")), "a") + LAST,
        ] {
            assert_eq!(read(&body), Err(Unreadable::Syntax), "{body:?}");
        }
    }

    #[test]
    fn a_file_or_another_type_is_no_text() {
        let head = "Content-Disposition: form-data; name=\"email\"";
        for (head, why) in [
            (format!("{head}; filename=\"\""), Unreadable::Shape),
            (format!("{head}\r\nContent-Type: application/json"), Unreadable::Type),
            (format!("{head}\r\nContent-Type: text/plain; charset=utf-16"), Unreadable::Charset),
        ] {
            assert_eq!(read(&(part(&head, "a") + LAST)), Err(why), "{head}");
        }
        let latin = [named("email", "").as_bytes(), LAST.as_bytes()].concat();
        let at = latin.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4;
        let latin = [&latin[..at], b"\xff", &latin[at..]].concat();
        assert_eq!(field(&latin, "b", "email"), Err(Unreadable::Charset));
    }
}
