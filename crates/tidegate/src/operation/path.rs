//! Request paths in one normal form: decoded once, without parameters, dots or doubled slashes.
//!
//! What two servers could read differently is refused instead of guessed: an encoded slash or
//! backslash, a NUL, a broken escape, bytes that are not UTF-8.

use std::borrow::Cow;
use std::fmt;

use crate::units::ParseError;

/// The longest path that is read, in bytes; the query does not count.
const PATH_BYTES_MAX: usize = 8 * 1024;

/// The most segments a normalised path may have.
pub const SEGMENTS_MAX: usize = 256;

/// What is expected of a path that holds a separator to some servers, and a letter to others.
const NO_SEPARATOR: &str = "a path without backslash, NUL or encoded slash";

/// A path as operations see it: `/`, or segments that each follow one `/`.
///
/// A decoded segment never holds a slash, so the text alone says where its segments are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NormalPath<'p> {
    text: Cow<'p, str>,
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
        let text = match path.strip_prefix('/') {
            Some(rest) if is_normal(rest) => Cow::Borrowed(path),
            Some(rest) => Cow::Owned(normalise(rest)?),
            None if path == "*" => Cow::Borrowed("/*"),
            None => return Err(ParseError::new(path, "a path that starts with `/`")),
        };
        let segments = text.bytes().filter(|byte| *byte == b'/').count();
        if segments > SEGMENTS_MAX {
            let found = format!("{segments} segments");
            return Err(ParseError::new(&found, "a path of at most 256 segments"));
        }
        Ok(Self { text })
    }

    /// The same, without borrowing from the request.
    pub(crate) fn into_owned(self) -> NormalPath<'static> {
        NormalPath { text: Cow::Owned(self.text.into_owned()) }
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
    let may_hold_dots = |segment: &str| {
        segment.starts_with('.') || segment.get(..3).is_some_and(|s| s.eq_ignore_ascii_case("%2e"))
    };
    if !path.split('/').any(may_hold_dots) {
        // A reader that knows relative references would take what follows two slashes for a host.
        let slashes = path.bytes().take_while(|byte| *byte == b'/').count();
        return Ok(match slashes {
            0 | 1 => Cow::Borrowed(raw),
            _ => Cow::Owned(raw[slashes - 1..].to_owned()),
        });
    }
    NormalPath::parse(path)?;
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
    let mut forwarded = String::with_capacity(raw.len());
    for segment in kept.iter().skip_while(|segment| segment.is_empty()) {
        forwarded.push('/');
        forwarded.push_str(segment);
    }
    if ends_with_dots || forwarded.is_empty() {
        forwarded.push('/');
    }
    forwarded.push_str(rest);
    Ok(Cow::Owned(forwarded))
}

/// True if what follows a path's first slash is in normal form as it stands. Nearly all paths are,
/// and need no copy. False only means that the path takes a closer look.
fn is_normal(rest: &str) -> bool {
    let mut before = b'/';
    for byte in rest.bytes() {
        let odd = match byte {
            b'%' | b';' | b'\\' | b'\0' => true,
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
    let mut escapes = false;
    for byte in raw.bytes() {
        match byte {
            b'\\' | b'\0' => return Err(ParseError::new(raw, NO_SEPARATOR)),
            byte => escapes |= byte == b'%',
        }
    }
    if !escapes {
        return Ok(Cow::Borrowed(raw));
    }
    let mut pieces = raw.split('%');
    let mut bytes = Vec::with_capacity(raw.len());
    bytes.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
    for piece in pieces {
        bytes.push(escaped_byte(piece)?);
        bytes.extend(piece.bytes().skip(2));
    }
    let decoded = String::from_utf8(bytes);
    decoded.map(Cow::Owned).map_err(|_| ParseError::new(raw, "UTF-8 once decoded"))
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
        Some(b'/' | b'\\' | 0) => refuse(NO_SEPARATOR),
        Some(byte) => Ok(byte),
    }
}

#[cfg(test)]
mod tests;
