//! Request paths in one normal form: decoded once, without parameters, dots or doubled slashes.
//!
//! What two servers could read differently is refused instead of guessed: an encoded slash or
//! backslash, a control character, a broken escape, bytes that are not UTF-8.

use std::borrow::Cow;
use std::fmt;

use crate::units::ParseError;

/// The longest path that is read, in bytes; the query does not count.
const PATH_BYTES_MAX: usize = 8 * 1024;

/// The most segments a normalised path may have.
pub const SEGMENTS_MAX: usize = 256;

/// What is expected of a path that holds a separator or an end to some servers, and a letter to others.
const NO_SEPARATOR: &str = "a path without backslash, control character or encoded slash";

/// A path as operations see it: `/`, or segments that each follow one `/`.
///
/// A decoded segment never holds a slash, so the text alone says where its segments are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NormalPath<'p> {
    text: Cow<'p, str>,
    spelling: Spelling,
}

/// How far a path, as it is forwarded, differs from its normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Spelling {
    /// Not at all; what must be escaped is escaped.
    Plain,
    /// By one slash at its end.
    TrailingSlash,
    /// By path parameters, doubled slashes, or escapes of plain letters.
    Odd,
}

impl Spelling {
    /// The spelling of a path without dot segments that can be normalised.
    fn of(path: &str) -> Self {
        let rest = path.strip_prefix('/').unwrap_or(path);
        let (rest, spelling) = match rest.strip_suffix('/') {
            Some(rest) => (rest, Self::TrailingSlash),
            None => (rest, Self::Plain),
        };
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let escapes_letter = |segment: &str| {
            let mut escapes = segment.split('%').skip(1).map(escaped_byte);
            escapes.any(|byte| byte.is_ok_and(is_letter))
        };
        let is_plain = |segment: &str| {
            !segment.is_empty() && !segment.contains(';') && !escapes_letter(segment)
        };
        match path == "/" || rest.split('/').all(is_plain) {
            true => spelling,
            false => Self::Odd,
        }
    }
}

impl<'p> NormalPath<'p> {
    /// Normalises a request target in origin form (`/a/b?c`), or the `*` of `OPTIONS *`, which
    /// becomes the one segment `*`.
    ///
    /// # Errors
    /// A path that does not start with a slash, that cannot be decoded safely, or that is too long.
    pub fn parse(raw: &'p str) -> Result<Self, ParseError> {
        let end = raw.bytes().position(|byte| matches!(byte, b'?' | b'#'));
        let path = &raw[..end.unwrap_or(raw.len())];
        if path.len() > PATH_BYTES_MAX {
            let found = format!("{} bytes", path.len());
            return Err(ParseError::new(&found, "a path of at most 8 KiB"));
        }
        let (text, spelling) = match path.strip_prefix('/') {
            Some(rest) if is_normal(rest) => (Cow::Borrowed(path), Spelling::Plain),
            Some(rest) => {
                (Cow::Owned(normalise(rest)?), Spelling::of(&without_dot_segments(path)?))
            }
            None if path == "*" => (Cow::Borrowed("/*"), Spelling::Plain),
            None => return Err(ParseError::new(path, "a path that starts with `/`")),
        };
        let segments = text.bytes().filter(|byte| *byte == b'/').count();
        if segments > SEGMENTS_MAX {
            let found = format!("{segments} segments");
            return Err(ParseError::new(&found, "a path of at most 256 segments"));
        }
        Ok(Self { text, spelling })
    }

    /// The same, without borrowing from the request.
    pub(crate) fn into_owned(self) -> NormalPath<'static> {
        NormalPath { text: Cow::Owned(self.text.into_owned()), spelling: self.spelling }
    }

    pub(super) fn spelling(&self) -> Spelling {
        self.spelling
    }

    /// The whole path: `/a/b`, and `/` for the root.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The segments from left to right; the root has none.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = &str> + Clone {
        let mut rest = self.text.strip_prefix('/').filter(|rest| !rest.is_empty());
        std::iter::from_fn(move || {
            let text = rest?;
            // Segments are short: a loop over their bytes is faster than a search for a character.
            let end = text.bytes().position(|byte| byte == b'/');
            rest = end.map(|end| &text[end + 1..]);
            Some(&text[..end.unwrap_or(text.len())])
        })
    }
}

impl fmt::Display for NormalPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The request target that a proxy forwards: dot segments resolved as [`NormalPath`] resolves them,
/// one slash at its start, everything else, the query included, as it was sent. It normalises to the same path.
///
/// # Errors
/// As [`NormalPath::parse`].
pub fn forwarded_path(raw: &str) -> Result<Cow<'_, str>, ParseError> {
    let end = raw.find(['?', '#']).unwrap_or(raw.len());
    let (path, rest) = raw.split_at(end);
    if holds_dots(path) {
        NormalPath::parse(path)?;
    }
    let forwarded = without_dot_segments(path)?;
    Ok(if forwarded == path {
        Cow::Borrowed(raw)
    } else {
        Cow::Owned(forwarded.into_owned() + rest)
    })
}

/// True if a path may hold dot segments.
fn holds_dots(path: &str) -> bool {
    path.split('/').any(|segment| {
        segment.starts_with('.') || segment.get(..3).is_some_and(|s| s.eq_ignore_ascii_case("%2e"))
    })
}

/// A path with dot segments resolved, and one slash at its start.
fn without_dot_segments(path: &str) -> Result<Cow<'_, str>, ParseError> {
    if !holds_dots(path) {
        // A reader that knows relative references would take what follows two slashes for a host.
        let slashes = path.bytes().take_while(|byte| *byte == b'/').count();
        return Ok(Cow::Borrowed(&path[slashes.saturating_sub(1)..]));
    }
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_with_dots = false;
    for segment in path.split('/').skip(1) {
        let name = decode(segment.split(';').next().unwrap_or_default())?;
        ends_with_dots = matches!(&*name, "." | "..");
        match &*name {
            "." => {}
            // Empty segments are none once normalised, so they are not what is taken back.
            ".." => {
                while kept.pop().is_some_and(|last| last.is_empty() || last.starts_with(';')) {}
            }
            _ => kept.push(segment),
        }
    }
    let mut resolved = String::with_capacity(path.len());
    for segment in kept.iter().skip_while(|segment| segment.is_empty()) {
        resolved.push('/');
        resolved.push_str(segment);
    }
    if ends_with_dots || resolved.is_empty() {
        resolved.push('/');
    }
    Ok(Cow::Owned(resolved))
}

/// True if what follows a path's first slash is in normal form as it stands. Nearly all paths are,
/// and need no copy. False only means that the path takes a closer look.
fn is_normal(rest: &str) -> bool {
    let mut before = b'/';
    for byte in rest.bytes() {
        let odd = match byte {
            // A byte of 0xC2 begins the control characters that are not ASCII.
            b'%' | b';' | b'\\' | 0xC2 => true,
            byte if byte.is_ascii_control() => true,
            b'/' | b'.' => before == b'/',
            _ => false,
        };
        if odd {
            return false;
        }
        before = byte;
    }
    before != b'/' || rest.is_empty()
}

/// The normal form of what follows a path's first slash.
fn normalise(rest: &str) -> Result<String, ParseError> {
    let mut text = String::with_capacity(rest.len() + 1);
    for segment in rest.split('/') {
        append(&mut text, segment)?;
    }
    if text.is_empty() {
        text.push('/');
    }
    Ok(text)
}

/// Adds one raw segment to a path without trailing slash, whose root is the empty text.
fn append(text: &mut String, raw: &str) -> Result<(), ParseError> {
    let (name, parameters) = raw.split_once(';').unwrap_or((raw, ""));
    // A server that knows no path parameters reads these as part of the path: `;%2F..%2Fadmin`.
    decode(parameters)?;
    match &*decode(name)? {
        "" | "." => {}
        ".." => text.truncate(text.rfind('/').unwrap_or(0)),
        segment => {
            text.push('/');
            text.push_str(segment);
        }
    }
    Ok(())
}

/// Decodes the percent escapes of one segment, once.
pub(super) fn decode(raw: &str) -> Result<Cow<'_, str>, ParseError> {
    if raw.contains(|letter: char| letter == '\\' || letter.is_control()) {
        return Err(ParseError::new(raw, NO_SEPARATOR));
    }
    if !raw.contains('%') {
        return Ok(Cow::Borrowed(raw));
    }
    let mut pieces = raw.split('%');
    let mut bytes = Vec::with_capacity(raw.len());
    bytes.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
    for piece in pieces {
        bytes.push(escaped_byte(piece)?);
        bytes.extend(piece.bytes().skip(2));
    }
    match String::from_utf8(bytes) {
        Ok(decoded) if decoded.contains(char::is_control) => {
            Err(ParseError::new(raw, NO_SEPARATOR))
        }
        Ok(decoded) => Ok(Cow::Owned(decoded)),
        Err(_) => Err(ParseError::new(raw, "UTF-8 once decoded")),
    }
}

/// The byte meant by the two digits that follow a `%`.
fn escaped_byte(after_percent: &str) -> Result<u8, ParseError> {
    let mut digits = after_percent.chars().map(|digit| digit.to_digit(16));
    let (high, low) = (digits.next().flatten(), digits.next().flatten());
    let byte = high.zip(low).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
    let refuse = |expected| {
        let found: String = after_percent.chars().take(2).collect();
        Err(ParseError::new(&format!("%{found}"), expected))
    };
    match byte {
        None => refuse("two hexadecimal digits behind each `%`"),
        Some(b'/' | b'\\') => refuse(NO_SEPARATOR),
        Some(byte) if byte.is_ascii_control() => refuse(NO_SEPARATOR),
        Some(byte) => Ok(byte),
    }
}

#[cfg(test)]
mod tests;
