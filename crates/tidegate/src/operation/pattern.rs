//! Patterns of operations, `POST /rooms/{room}/bookings`, and of paths alone.
//!
//! A pattern says exactly one thing per segment: a literal, `*`, `**` or `{name}`. What a
//! normalised path can never contain is refused when the policy is read, not silently unmatched.

use std::fmt;

use smallvec::SmallVec;

use super::letter_case::LetterCase;
use super::methods::Methods;
use super::path::{NormalPath, Spelling, decode};
use crate::units::ParseError;

/// The most segments a pattern may have.
const PATTERN_SEGMENTS_MAX: usize = 32;

/// One operation as a policy writes it: `[METHOD[|METHOD]] PATTERN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    methods: Methods,
    path: PathPattern,
}

impl Pattern {
    /// Reads `POST /login`, `PUT|PATCH /rooms/{room}` or, for any method, `/batch/**`.
    ///
    /// # Errors
    /// What was found instead, and what was expected.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let text = text.trim();
        let (methods, path) = match text.split_once([' ', '\t']) {
            Some((methods, path)) if !text.starts_with('/') => (Methods::parse(methods)?, path),
            _ => (Methods::any(), text),
        };
        Ok(Self { methods, path: PathPattern::parse(path.trim_start())? })
    }

    /// The same pattern, whose letters are compared like this.
    #[must_use]
    pub fn with_case(self, case: LetterCase) -> Self {
        Self { path: self.path.with_case(case), ..self }
    }

    /// Whether a request is of this kind.
    #[must_use]
    pub fn matches(&self, method: &str, path: &NormalPath<'_>) -> bool {
        self.methods.contains(method) && self.path.matches(path)
    }

    /// Whether every request that `later` matches is matched here too, so that `later`, standing
    /// behind, can never match. A yes is certain; a no may be overcautious. A pattern
    /// has no header conditions: do not ask for a rule that has some.
    #[must_use]
    pub fn covers(&self, later: &Self) -> bool {
        self.methods.covers(&later.methods) && self.path.covers(&later.path)
    }

    /// A pattern of the same requests, whose wildcards stand in the one order that
    /// [`covers`](Self::covers) compares.
    pub(super) fn with_stars_last(&self) -> Self {
        let path = PathPattern { segments: stars_last(&self.path.segments), ..self.path };
        Self { methods: self.methods.clone(), path }
    }

    /// The methods it names.
    #[must_use]
    pub const fn methods(&self) -> &Methods {
        &self.methods
    }

    /// The path it names.
    #[must_use]
    pub const fn path(&self) -> &PathPattern {
        &self.path
    }
}

/// What one segment of a pattern stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// Exactly this text, decoded.
    Literal(String),
    /// `*`: any one segment.
    One,
    /// `{name}`: any one segment, remembered.
    Capture(String),
    /// `**`: any number of segments, also none.
    Many,
}

impl Segment {
    fn accepts(&self, text: &str, case: LetterCase) -> bool {
        match self {
            Self::Literal(literal) => case.is_same(literal, text),
            Self::One | Self::Capture(_) | Self::Many => true,
        }
    }

    /// Whether it accepts all that `other` does; only `**` accepts `**`.
    fn covers(&self, other: &Self, case: LetterCase) -> bool {
        match (self, other) {
            (Self::Many, _) => true,
            (_, Self::Many) => false,
            (Self::Literal(literal), other) => {
                matches!(other, Self::Literal(text) if case.is_same(literal, text))
            }
            (Self::One | Self::Capture(_), _) => true,
        }
    }
}

/// A pattern of paths: `/rooms/{room}`, `/files/**`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    segments: Vec<Segment>,
    /// True if it is written with a slash at its end.
    ends_with_slash: bool,
    case: LetterCase,
}

impl PathPattern {
    /// Reads a pattern. A trailing slash is dropped, as it is from paths; only
    /// [`matches_as_forwarded`](Self::matches_as_forwarded) knows of it.
    ///
    /// # Errors
    /// What was found instead, and what was expected.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(ParseError::new(text, "a path that starts with `/`"));
        };
        let mut segments = Vec::new();
        for raw in rest.split_terminator('/') {
            let segment = parse_segment(raw)?;
            if let Some(expected) = placement_error(&segments, &segment) {
                return Err(ParseError::new(raw, expected));
            }
            segments.push(segment);
        }
        let ends_with_slash = rest.ends_with('/');
        Ok(Self { segments, ends_with_slash, case: LetterCase::default() })
    }

    /// The same pattern, whose letters are compared like this.
    #[must_use]
    pub fn with_case(self, case: LetterCase) -> Self {
        Self { case, ..self }
    }

    /// Whether a path is one of these.
    #[must_use]
    pub fn matches(&self, path: &NormalPath<'_>) -> bool {
        // Nearly all that do not match differ at once.
        if let Some(first @ Segment::Literal(_)) = self.segments.first()
            && !path.segments().next().is_some_and(|segment| first.accepts(segment, self.case))
        {
            return false;
        }
        self.captures(path).is_some()
    }

    /// Whether a path is one of these in the very form in which it is forwarded: a service may take
    /// `/health;x=1`, `/health//` and `/health/` for something else than `/health`. A slash at the end
    /// must stand in both or in none, unless the pattern ends with `**`.
    #[must_use]
    pub fn matches_as_forwarded(&self, path: &NormalPath<'_>) -> bool {
        let fits = match path.spelling() {
            Spelling::Odd => false,
            _ if self.segments.last() == Some(&Segment::Many) => true,
            spelling => self.ends_with_slash == (spelling == Spelling::TrailingSlash),
        };
        fits && self.matches(path)
    }

    /// The segments that the names in the pattern stand for, or `None` where the path does not match.
    /// Each `**` takes as few segments as it can, the first one first.
    pub(super) fn captures<'p>(&self, path: &'p NormalPath<'_>) -> Option<Captured<&'p str>> {
        align(&self.segments, path.segments(), |segment, text| segment.accepts(text, self.case))
    }

    /// The places of the captured segments, if they are the same in all paths: without a `**`.
    pub(super) fn capture_places(&self) -> Option<Vec<usize>> {
        let is_capture = |segment: &Segment| matches!(segment, Segment::Capture(_));
        let places = self.segments.iter().enumerate().filter(|(_, segment)| is_capture(segment));
        (!self.segments.contains(&Segment::Many)).then(|| places.map(|(place, _)| place).collect())
    }

    /// The names that the pattern captures, from left to right.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Capture(name) => Some(name.as_str()),
            Segment::Literal(_) | Segment::One | Segment::Many => None,
        })
    }

    /// Whether every path that `later` matches is matched here too. A yes is certain.
    #[must_use]
    pub fn covers(&self, later: &Self) -> bool {
        let (here, there) = (stars_last(&self.segments), stars_last(&later.segments));
        align(&here, there.iter(), |segment, other| segment.covers(other, self.case)).is_some()
    }

    /// Whether no path matches both patterns. A yes is certain, also where letters match in either case.
    pub(crate) fn is_apart_from(&self, other: &Self) -> bool {
        let (here, there) = (&self.segments, &other.segments);
        let is_bounded = |segments: &[Segment]| !segments.contains(&Segment::Many);
        let least = |segments: &[Segment]| {
            segments.iter().filter(|segment| **segment != Segment::Many).count()
        };
        let differ = |(a, b): (&Segment, &Segment)| match (a, b) {
            (Segment::Literal(a), Segment::Literal(b)) => !a.eq_ignore_ascii_case(b),
            _ => false,
        };
        let is_one = |(a, b): &(&Segment, &Segment)| **a != Segment::Many && **b != Segment::Many;
        here.iter().zip(there).take_while(is_one).any(differ)
            || is_bounded(here) && here.len() < least(there)
            || is_bounded(there) && there.len() < least(here)
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl fmt::Display for PathPattern {
    /// As a policy writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.segments.is_empty() {
            return f.write_str("/");
        }
        for segment in &self.segments {
            match segment {
                Segment::Literal(text) => write!(f, "/{}", escape_literal(text))?,
                Segment::One => f.write_str("/*")?,
                Segment::Capture(name) => write!(f, "/{{{name}}}")?,
                Segment::Many => f.write_str("/**")?,
            }
        }
        Ok(())
    }
}

/// A literal, with what would read as something else spelt out.
fn escape_literal(literal: &str) -> String {
    let spelt = [("%", "%25"), ("*", "%2A"), ("{", "%7B"), ("}", "%7D")];
    spelt.iter().fold(literal.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// What the names of a pattern stand for; few have more than four.
pub(super) type Captured<T> = SmallVec<[T; 4]>;

/// Lays a pattern over items and returns those that its captures stand for, or `None`.
///
/// Only the last `**` met is ever asked to take more: whatever an earlier one could give up, the
/// later one could skip as well. So the work is at most the product of both lengths.
fn align<T: Copy>(
    pattern: &[Segment],
    items: impl Iterator<Item = T> + Clone,
    accepts: impl Fn(&Segment, T) -> bool,
) -> Option<Captured<T>> {
    let mut captured = Captured::new();
    let (mut at, mut rest) = (0, items);
    let mut last_many = None;
    loop {
        let segment = pattern.get(at);
        at += 1;
        if segment == Some(&Segment::Many) {
            last_many = Some((at, rest.clone(), captured.len()));
            continue;
        }
        match (segment, rest.next()) {
            (None, None) => return Some(captured),
            (Some(segment), Some(item)) if accepts(segment, item) => {
                if matches!(segment, Segment::Capture(_)) {
                    captured.push(item);
                }
            }
            _ => {
                let (behind, taken, kept) = last_many.as_mut()?;
                taken.next()?;
                (at, rest) = (*behind, taken.clone());
                captured.truncate(*kept);
            }
        }
    }
}

/// The same paths, written so that `**/*` and `*/**` look alike: in a run of wildcards, how many
/// there are and whether one is `**` is all that counts.
fn stars_last(segments: &[Segment]) -> Vec<Segment> {
    let mut sorted = Vec::with_capacity(segments.len());
    for run in segments.chunk_by(|a, b| is_wild(a) && is_wild(b)) {
        sorted.extend(run.iter().filter(|segment| **segment != Segment::Many).cloned());
        if run.contains(&Segment::Many) {
            sorted.push(Segment::Many);
        }
    }
    sorted
}

fn is_wild(segment: &Segment) -> bool {
    !matches!(segment, Segment::Literal(_))
}

/// What is wrong with a segment behind the ones before it.
fn placement_error(before: &[Segment], segment: &Segment) -> Option<&'static str> {
    if before.len() == PATTERN_SEGMENTS_MAX {
        return Some("at most 32 segments");
    }
    match segment {
        Segment::Many if before.last() == Some(segment) => {
            Some("something between two `**`, or one `**` alone")
        }
        Segment::Capture(_) if before.contains(segment) => Some("each name once in a pattern"),
        _ => None,
    }
}

fn parse_segment(raw: &str) -> Result<Segment, ParseError> {
    let refuse = |expected| Err(ParseError::new(raw, expected));
    match raw {
        "" => return refuse("a segment between two slashes"),
        "*" => return Ok(Segment::One),
        "**" => return Ok(Segment::Many),
        _ => {}
    }
    if let Some(name) = raw.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'))
        && !name.contains(['{', '}'])
    {
        return match is_name(name) {
            true => Ok(Segment::Capture(name.to_owned())),
            false => refuse("a name of letters, digits and `_` between the braces"),
        };
    }
    if raw.contains(['{', '}']) {
        return refuse("a `{name}` that is the whole segment");
    }
    if raw.contains('*') {
        return refuse("`*` or `**` as the whole segment (a literal star is `%2A`)");
    }
    parse_literal(raw)
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A literal is decoded as the path will be; what a normalised path cannot hold is refused.
fn parse_literal(raw: &str) -> Result<Segment, ParseError> {
    let refuse = |expected| Err(ParseError::new(raw, expected));
    if raw.contains(['?', '#']) {
        return refuse("a path without query or fragment, which are cut before matching");
    }
    if raw.contains(';') {
        return refuse("a segment without `;`, since path parameters are cut before matching");
    }
    if raw.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
        return refuse("a segment without spaces (a literal space is `%20`)");
    }
    match decode(raw) {
        Ok(text) if text == "." || text == ".." => {
            refuse("a segment that is not a dot, since dots are resolved before matching")
        }
        Ok(text) => Ok(Segment::Literal(text.into_owned())),
        Err(error) => refuse(error.expected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    fn path(text: &str) -> NormalPath<'_> {
        NormalPath::parse(text).unwrap()
    }

    fn captured(pattern: &str, text: &str) -> Option<String> {
        let (pattern, path) = (PathPattern::parse(pattern).unwrap(), path(text));
        let captured = pattern.names().zip(pattern.captures(&path)?);
        let pairs = captured.map(|(name, text)| format!("{name}={text}"));
        Some(pairs.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn patterns_are_apart_only_if_no_path_matches_both() {
        let is_apart = |a: &str, b: &str| {
            let [a, b] = [a, b].map(|text| PathPattern::parse(text).unwrap());
            assert_eq!(a.is_apart_from(&b), b.is_apart_from(&a));
            a.is_apart_from(&b)
        };
        for (a, b) in [
            ("/a", "/b"),
            ("/a/{x}", "/a"),
            ("/a/**", "/b/**"),
            ("/a/*/c", "/a/x/d"),
            ("/a/**/b/c", "/a/b"),
        ] {
            assert!(is_apart(a, b), "{a} {b}");
        }
        for (a, b) in
            [("/a", "/A"), ("/a/{x}", "/a/b"), ("/a/**", "/a"), ("/**/b", "/a/**"), ("/**", "/")]
        {
            assert!(!is_apart(a, b), "{a} {b}");
        }
    }

    #[test]
    fn a_pattern_reads_as_it_was_written() {
        for text in ["/", "/rooms/{room}/bookings", "/a/*/**", "/%2A/%7Bx%7D/100%25"] {
            let pattern = PathPattern::parse(text).unwrap();
            assert_eq!(pattern.to_string(), text);
        }
    }

    #[test]
    fn methods_are_any_some_or_get_with_head() {
        assert!(pattern("/a").matches("BREW", &path("/a")));
        assert!(pattern("GET /a").matches("HEAD", &path("/a")));
        assert!(!pattern("HEAD /a").matches("GET", &path("/a")));
        assert!(pattern("PUT|M-SEARCH  /a").matches("M-SEARCH", &path("/a")));
        assert!(!pattern("PUT|PATCH /a").matches("put", &path("/a")));
    }

    #[test]
    fn wildcards_stand_for_one_or_any_number() {
        let matches = |text: &str, raw| PathPattern::parse(text).unwrap().matches(&path(raw));
        assert!(matches("/", "/") && !matches("/", "/a") && matches("/a/", "/a"));
        assert!(matches("/a/*", "/a/b") && !matches("/a/*", "/a") && !matches("/a/*", "/a/b/c"));
        assert!(matches("/a/**", "/a") && matches("/a/**", "/a/b/c") && !matches("/a/**", "/ab"));
        assert!(matches("/**/z", "/z") && matches("/**/z", "/z/z") && !matches("/**/z", "/z/y"));
        assert!(matches("/**/a/**/b", "/a/x/a/b/y/b") && !matches("/**/a/**/b", "/b/a"));
        assert!(matches("/caf%C3%A9/%2A", "/café/*") && !matches("/%2A", "/x"));
    }

    #[test]
    fn as_it_is_forwarded_a_path_matches_only_in_the_form_of_the_pattern() {
        let matches = |text: &str, raw: &str| {
            PathPattern::parse(text).unwrap().matches_as_forwarded(&path(raw))
        };
        for raw in ["/health", "/x/../health", "//health", "/./health", "/health?x=;y"] {
            assert!(matches("/health", raw), "{raw}");
        }
        let odd = ["/health;x=1", "/health//", "/health/;/", "/;/health", "/%68ealth", "/health;"];
        for raw in odd.into_iter().chain(["/health/", "/health/.", "/health/x/.."]) {
            assert!(path(raw).as_str() == "/health" && !matches("/health", raw), "{raw}");
        }
        assert!(odd.iter().all(|raw| !matches("/**", raw) && !matches("/health/", raw)));
        assert!(matches("/health/", "/health/") && !matches("/health/", "/health"));
        assert!(matches("/files/**", "/files/") && matches("/files/**", "/files/a%20b"));
        assert!(matches("/", "/") && matches("/", "//") && matches("/", "/a/.."));
    }

    #[test]
    fn captures_hold_while_stars_take_as_little_as_they_can() {
        assert_eq!(captured("/rooms/{room}/x", "/rooms/7/x").unwrap(), "room=7");
        assert_eq!(captured("/**/{a}/b/**/{c}", "/1/2/b/3/b/4").unwrap(), "a=2 c=4");
        assert_eq!(captured("/**/a/{x}/c", "/a/1/a/2/c").unwrap(), "x=2");
        assert_eq!(captured("/{x}", "/"), None);
    }

    #[test]
    fn every_mistake_says_what_was_expected() {
        let mistakes: [(&str, &[&str]); 14] = [
            ("upper-case", &["get /a", "GET| /a", "| /a"]),
            ("once", &["GET|GET /a", "/{a}/{a}"]),
            ("starts with", &["", "a", "GET", "GET a"]),
            ("whole segment", &["/{a}b", "/a*", "/***", "/{a}{b}", "/{", "/}{"]),
            ("a name", &["/{}", "/{1a}", "/{a-b}"]),
            ("between two", &["/**/**", "//", "//a", "/a//"]),
            ("parameters", &["/a;x"]),
            ("query", &["/a?x", "/a#x"]),
            ("dot", &["/./a", "/a/..", "/%2e%2e"]),
            ("encoded slash", &["/a%2Fb", "/a%5c", "/a\\b", "/%00", "/%0a", "/%7F"]),
            ("hexadecimal", &["/%zz", "/%"]),
            ("UTF-8", &["/%ff"]),
            ("%20", &["/a b", "/a\u{7}"]),
            ("32 segments", &[&"/a".repeat(33)]),
        ];
        for (expected, text) in
            mistakes.iter().flat_map(|(e, texts)| texts.iter().map(move |t| (e, t)))
        {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.expected.contains(expected), "{text}: {error}");
        }
        assert!(PathPattern::parse(&"/a".repeat(32)).is_ok());
        let error = Pattern::parse("/{a}b").unwrap_err().to_string();
        assert_eq!(error, "found `{a}b`, expected a `{name}` that is the whole segment");
    }

    #[test]
    fn a_pattern_covers_what_it_leaves_nothing_of() {
        let covers = |earlier, later| pattern(earlier).covers(&pattern(later));
        assert!(covers("/a", "GET /a") && !covers("GET /a", "/a"));
        assert!(covers("GET /a", "HEAD /a") && !covers("HEAD /a", "GET /a"));
        assert!(covers("POST|PUT /a", "PUT /a") && !covers("PUT /a", "POST|PUT /a"));
        assert!(covers("/a/{x}", "/a/*") && covers("/a/*", "/a/b") && !covers("/a/b", "/a/*"));
        assert!(covers("/**", "/a/*/b") && covers("/a/**", "/a") && !covers("/a/*", "/a/**"));
        assert!(covers("/**/*", "/*/**") && covers("/*/**", "/**/*") && !covers("/*/**", "/**"));
        assert!(covers("/**/b", "/a/**/x/b") && !covers("/**/b", "/**"));
    }

    /// Every way to lay the pattern over the path, one by one.
    fn naive(pattern: &[Segment], path: &[&str], case: LetterCase) -> bool {
        let is_same = |literal: &str, text: &str| match case {
            LetterCase::Matters => literal == text,
            LetterCase::Ignored => literal.to_lowercase() == text.to_lowercase(),
        };
        match (pattern.split_first(), path.split_first()) {
            (None, first) => first.is_none(),
            (Some((Segment::Many, rest)), _) => {
                (0..=path.len()).any(|n| naive(rest, &path[n..], case))
            }
            (Some(_), None) => false,
            (Some((Segment::Literal(literal), _)), Some((text, _))) if !is_same(literal, text) => {
                false
            }
            (Some((_, rest)), Some((_, texts))) => naive(rest, texts, case),
        }
    }

    fn some_case() -> impl Strategy<Value = LetterCase> {
        prop::sample::select(vec![LetterCase::Matters, LetterCase::Ignored])
    }

    fn some_pattern() -> impl Strategy<Value = PathPattern> {
        let text = "(/(a|b|A|\\*|\\*\\*)){0,6}"
            .prop_map(|text: String| format!("/{}", text.trim_start_matches('/')));
        text.prop_filter_map("two adjacent `**`", |text| PathPattern::parse(&text).ok())
    }

    proptest! {
        #[test]
        fn matching_agrees_with_trying_everything(
            pattern in some_pattern(),
            case in some_case(),
            raw in "/([abAB]/){0,7}",
        ) {
            let (pattern, path) = (pattern.with_case(case), path(&raw));
            let segments: Vec<_> = path.segments().collect();
            prop_assert_eq!(pattern.matches(&path), naive(pattern.segments(), &segments, case));
        }

        #[test]
        fn what_is_covered_is_matched(
            a in some_pattern(),
            b in some_pattern(),
            case in some_case(),
            raw in "/([abAB]/){0,7}",
        ) {
            let (a, b, path) = (a.with_case(case), b.with_case(case), path(&raw));
            prop_assert!(!a.covers(&b) || !b.matches(&path) || a.matches(&path));
        }

        #[test]
        fn no_text_breaks_the_parser(text in "\\PC*|[A-Z|]{0,4} ?/[a*{}/%;.]{0,20}") {
            if let Err(error) = Pattern::parse(&text) {
                prop_assert!(!error.expected.is_empty());
            }
        }
    }
}
