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
    slashes: Slashes,
}

impl<'p> NormalPath<'p> {
    /// Normalises a request target in origin form (`/a/b?c`), or the `*` of `OPTIONS *`, which
    /// becomes the one segment `*`.
    ///
    /// # Errors
    /// A path that does not start with a slash, that cannot be decoded safely, or that is too long.
    pub fn parse(raw: &'p str) -> Result<Self, ParseError> {
        match normal(raw) {
            Some((path, slashes)) => Self { text: Cow::Borrowed(path), slashes }.bounded(path),
            None => Self::parse_odd(raw),
        }
    }

    /// The same of a path that is not in normal form as it stands.
    #[cold]
    fn parse_odd(raw: &'p str) -> Result<Self, ParseError> {
        let end = raw.bytes().position(|byte| matches!(byte, b'?' | b'#'));
        let path = end.map_or(raw, |end| &raw[..end]);
        if path.len() > PATH_BYTES_MAX {
            return Err(too_long(path));
        }
        let text = match path.strip_prefix('/') {
            Some(rest) => rebuilt(rest)?,
            None if path == "*" => "/*".to_owned(),
            None => return Err(ParseError::new(path, "a path that starts with `/`")),
        };
        let slashes = Slashes::of(&text);
        Self { text: Cow::Owned(text), slashes }.bounded(path)
    }

    /// The path itself, unless there is too much of it.
    fn bounded(self, raw: &str) -> Result<Self, ParseError> {
        let segments = usize::from(self.slashes.count);
        if raw.len() > PATH_BYTES_MAX {
            return Err(too_long(raw));
        }
        if segments > SEGMENTS_MAX {
            let found = format!("{segments} segments");
            return Err(ParseError::new(&found, "a path of at most 256 segments"));
        }
        Ok(self)
    }

    /// The whole path: `/a/b`, and `/` for the root.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The segments from left to right; the root has none.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = &str> + Clone {
        self.spans().map(|span| self.text(span))
    }

    /// The bytes of the segments, from left to right: they are looked up sooner than texts.
    #[inline]
    pub(super) fn pieces(&self) -> Pieces<'_> {
        Pieces { text: self.text.as_bytes(), slashes: &self.slashes, place: 0, start: 1 }
    }

    /// Where each segment stands in the text.
    #[inline]
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> + Clone {
        let (mut index, mut start) = (0, 1);
        std::iter::from_fn(move || {
            let span = self.span(index, start)?;
            (index, start) = (index + 1, span.end + 1);
            Some(span)
        })
    }

    /// Where a segment stands, by its place among them.
    pub(super) fn span_at(&self, place: usize) -> Option<Span> {
        match self.slashes.at.get(place) {
            Some(slash) if place < usize::from(self.slashes.count) => self.span(place, slash + 1),
            _ => self.spans().nth(place),
        }
    }

    /// The segment of this place, which begins here.
    #[inline]
    fn span(&self, place: usize, start: u16) -> Option<Span> {
        let rest =
            self.text.as_bytes().get(usize::from(start)..).filter(|rest| !rest.is_empty())?;
        if let Some(end) = self.slashes.noted(place + 1) {
            return Some(Span { start, end });
        }
        let is_last = place + 1 >= usize::from(self.slashes.count);
        let behind = if is_last { None } else { rest.iter().position(|byte| *byte == b'/') };
        let length = behind.unwrap_or(rest.len());
        // No path is longer than its bound.
        Some(Span { start, end: start.saturating_add(u16::try_from(length).unwrap_or(u16::MAX)) })
    }

    /// The text of a segment of this path.
    #[must_use]
    #[inline]
    pub fn text(&self, span: Span) -> &str {
        self.text.get(usize::from(span.start)..usize::from(span.end)).unwrap_or_default()
    }
}

/// The bytes of a path's segments.
#[derive(Debug)]
pub(super) struct Pieces<'p> {
    text: &'p [u8],
    slashes: &'p Slashes,
    place: usize,
    start: usize,
}

impl<'p> Iterator for Pieces<'p> {
    type Item = &'p [u8];

    #[inline(always)]
    fn next(&mut self) -> Option<&'p [u8]> {
        let rest = self.text.get(self.start..).filter(|rest| !rest.is_empty())?;
        self.place += 1;
        let length = match self.slashes.noted(self.place) {
            Some(end) => usize::from(end) - self.start,
            None if self.place >= usize::from(self.slashes.count) => rest.len(),
            None => rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len()),
        };
        self.start += length + 1;
        rest.get(..length)
    }
}

/// Where a segment stands in its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u16,
    end: u16,
}

/// How many slashes of a path are noted: few have more, and those are looked for.
const SLASHES_NOTED: usize = 8;

/// Where the slashes of a path are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slashes {
    count: u16,
    /// The first of them.
    at: [u16; SLASHES_NOTED],
}

impl Slashes {
    fn of(text: &str) -> Self {
        let mut slashes = Self::default();
        let places = text.bytes().enumerate().filter(|(_, byte)| *byte == b'/');
        places.for_each(|(place, _)| slashes.note(place));
        slashes
    }

    /// There is one at this place, behind the others. A path with one behind the bound is none.
    #[inline]
    fn note(&mut self, place: usize) {
        if let Some(free) = self.at.get_mut(usize::from(self.count)) {
            *free = u16::try_from(place).unwrap_or(u16::MAX);
        }
        self.count = self.count.saturating_add(1);
    }

    /// Where one of them is, if it is known.
    #[inline]
    fn noted(&self, index: usize) -> Option<u16> {
        self.at.get(index).copied().filter(|_| index < usize::from(self.count))
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

/// The path of a request target that is in normal form as it stands. Nearly all are, and need no copy.
/// A `None` only means that it takes a closer look.
fn normal(raw: &str) -> Option<(&str, Slashes)> {
    let rest = raw.strip_prefix('/')?;
    let mut slashes = Slashes::default();
    slashes.note(0);
    let (mut slash, mut end) = (0, raw.len());
    for (before, byte) in rest.bytes().enumerate() {
        let kind = KINDS[usize::from(byte)];
        if kind == Kind::Plain {
            continue;
        }
        let (place, begins) = (before + 1, before == slash);
        match kind {
            Kind::Slash if !begins => {
                slashes.note(place);
                slash = place;
            }
            Kind::End => {
                end = place;
                break;
            }
            Kind::Plain => {}
            Kind::Dot if !begins => {}
            Kind::Slash | Kind::Dot | Kind::Odd => return None,
        }
    }
    let ends_with_slash = end > 1 && end == slash + 1;
    (!ends_with_slash).then(|| (&raw[..end], slashes))
}

/// What a byte means for the form of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Slash,
    /// Only at the start of a segment it may mean something.
    Dot,
    /// The path ends before it.
    End,
    /// It takes a closer look wherever it stands.
    Odd,
}

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Plain; 256];
    kinds[b'/' as usize] = Kind::Slash;
    kinds[b'.' as usize] = Kind::Dot;
    kinds[b'?' as usize] = Kind::End;
    kinds[b'#' as usize] = Kind::End;
    kinds[b'%' as usize] = Kind::Odd;
    kinds[b';' as usize] = Kind::Odd;
    kinds[b'\\' as usize] = Kind::Odd;
    kinds[0] = Kind::Odd;
    kinds
};

/// The normal form of what follows a path's first slash.
fn rebuilt(rest: &str) -> Result<String, ParseError> {
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

fn too_long(path: &str) -> ParseError {
    ParseError::new(&format!("{} bytes", path.len()), "a path of at most 8 KiB")
}

#[cfg(test)]
mod tests;
