//! Readers of typed values. A value that does not fit is reported, and read as `None`.

use std::collections::HashSet;
use std::fmt;
use std::ops::RangeInclusive;

use super::advice::{self, Advice};
use crate::policy::diagnostics::{Position, Reporter, shown};
use crate::policy::document::{Entry, Node, Value};
use crate::policy::names::Names;
use crate::policy::protection::percent_ppm;
use crate::units::{meant_duration, parse_duration};

/// A map whose keys are all known.
pub(crate) struct Fields<'n> {
    entries: &'n [Entry],
    diagnostics: &'n Reporter,
    /// The nearest known keys of the keys that are unknown.
    meant: Vec<&'static str>,
}

/// The keys that a map may have, as texts with spaces between them.
pub(crate) struct Keys {
    known: &'static str,
    /// The keys of a later version of the language.
    later: &'static str,
    /// Advice on a key that is none of them, beside all entries of its map.
    advise: fn(&[Entry], &Entry) -> Option<Advice>,
}

impl Keys {
    pub(crate) const fn new(known: &'static str) -> Self {
        Self::with_later(known, "")
    }

    pub(crate) const fn with_later(known: &'static str, later: &'static str) -> Self {
        Self { known, later, advise: |_, _| None }
    }

    /// The same keys with advice on others.
    pub(super) const fn with_advice(self, advise: fn(&[Entry], &Entry) -> Option<Advice>) -> Self {
        Self { advise, ..self }
    }

    /// The keys of this version.
    pub(crate) fn known(&self) -> impl Iterator<Item = &'static str> {
        self.known.split_ascii_whitespace()
    }

    fn has(&self, key: &str) -> bool {
        self.known().any(|known| known == key)
    }
}

impl<'n> Fields<'n> {
    /// Takes a map apart. Reports a value that is no map, and every key that does not belong.
    pub(crate) fn of(
        node: &'n Node,
        what: &str,
        keys: &Keys,
        diagnostics: &'n Reporter,
    ) -> Option<Self> {
        let entries = entries(node, what, diagnostics)?;
        let mut meant = Vec::new();
        let mut given = None;
        for (place, entry) in entries.iter().enumerate() {
            let key = entry.key.as_str();
            if keys.later.split_ascii_whitespace().any(|later| later == key) {
                diagnostics.error(entry.key_at, format!("`{key}` is not supported yet"));
                continue;
            }
            if keys.has(key) {
                continue;
            }
            let message = format!("found the key `{}`, which {what} does not have", shown(key));
            let advice = (keys.advise)(entries, entry);
            match advice.or_else(|| advice::on_place(entries, place, |key| keys.has(key))) {
                // Several keys may be one mistake.
                Some(Advice { help, .. }) if given.as_ref() == Some(&help) => {}
                Some(Advice { help, meant: key }) => {
                    diagnostics.error_with_help(entry.key_at, message, &help);
                    meant.extend(key);
                    given = Some(help);
                }
                None => {
                    meant.extend(diagnostics.unknown_word(
                        entry.key_at,
                        message,
                        key,
                        keys.known(),
                    ));
                }
            }
        }
        Some(Self { entries, diagnostics, meant })
    }

    /// True if one of these keys is there under a misspelt name. Then the misspelling is the error,
    /// not the missing key.
    pub(crate) fn is_misspelt(&self, keys: &[&str]) -> bool {
        self.meant.iter().any(|key| keys.contains(key))
    }

    /// The entry under a key.
    pub(crate) fn entry(&self, key: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The value under a key.
    pub(crate) fn get(&self, key: &str) -> Option<&'n Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The value under a key that must be there; reports `message` at a place if it is not.
    pub(crate) fn require(
        &self,
        key: &str,
        at: Position,
        message: impl AsRef<str>,
    ) -> Option<&'n Node> {
        let node = self.get(key);
        if node.is_none() && !self.is_misspelt(&[key]) {
            self.diagnostics.error(at, message);
        }
        node
    }

    pub(crate) fn text(&self, key: &str, expected: &str) -> Option<&'n str> {
        text(self.get(key)?, expected, self.diagnostics)
    }

    pub(crate) fn owned_text(&self, key: &str, expected: &str) -> Option<String> {
        self.text(key, expected).map(str::to_owned)
    }

    pub(crate) fn boolean(&self, key: &str) -> Option<bool> {
        boolean(self.get(key)?, self.diagnostics)
    }

    pub(crate) fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        word(self.get(key)?, words, self.diagnostics)
    }

    pub(crate) fn integer<T: TryFrom<u64>>(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Option<T> {
        integer(self.get(key)?, range, self.diagnostics)
    }

    pub(crate) fn duration_us(&self, key: &str) -> Option<u64> {
        duration_us(self.get(key)?, self.diagnostics)
    }

    pub(crate) fn percentage_ppm(&self, key: &str, percent_max: u64) -> Option<u64> {
        percentage_ppm(self.get(key)?, percent_max, self.diagnostics)
    }
}

/// The entries of a value that must be a map.
pub(crate) fn entries<'n>(
    node: &'n Node,
    what: &str,
    diagnostics: &Reporter,
) -> Option<&'n [Entry]> {
    let entries = node.entries();
    if entries.is_none() {
        let message = format!("found {}, expected a map for {what}", node.kind());
        match advice::on_map(node, what) {
            Some(help) => diagnostics.error_with_help(node.at, message, help),
            None => diagnostics.error(node.at, message),
        }
    }
    entries
}

/// The entries of a section of at most `max` named things; none if there are more.
pub(crate) fn section<'n>(
    node: &'n Node,
    name: &str,
    max: usize,
    diagnostics: &Reporter,
) -> &'n [Entry] {
    let entries = entries(node, &format!("`{name}`"), diagnostics).unwrap_or_default();
    if entries.len() > max {
        diagnostics.error(node.at, format!("found more than {max} {name}"));
        return &[];
    }
    entries
}

/// A text that must not be empty.
pub(crate) fn text<'n>(node: &'n Node, expected: &str, diagnostics: &Reporter) -> Option<&'n str> {
    let text = node.text().filter(|text| !node.is_null() && !text.is_empty());
    if text.is_none() {
        diagnostics.error(node.at, format!("found {}, expected {expected}", node.kind()));
    }
    text
}

/// `true` or `false`.
pub(crate) fn boolean(node: &Node, diagnostics: &Reporter) -> Option<bool> {
    let boolean = node.text().and_then(|text| text.parse().ok());
    if boolean.is_none() {
        let message = format!("found {}, expected `true` or `false`", node.kind());
        diagnostics.error(node.at, message);
    }
    boolean
}

/// One of a few words.
pub(crate) fn word<T: Copy>(node: &Node, words: &[(&str, T)], diagnostics: &Reporter) -> Option<T> {
    let text = node.text().unwrap_or_default();
    let found = words.iter().find(|(word, _)| *word == text);
    if found.is_none() {
        let valid = words.iter().map(|(word, _)| *word);
        diagnostics.unknown_word(node.at, format!("found {}", node.kind()), text, valid);
    }
    found.map(|(_, value)| *value)
}

/// A whole number within bounds.
pub(crate) fn integer<T: TryFrom<u64>>(
    node: &Node,
    range: RangeInclusive<u64>,
    diagnostics: &Reporter,
) -> Option<T> {
    let digits = node.text().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let number = digits.and_then(|text| text.parse().ok()).filter(|number| range.contains(number));
    if number.is_none() {
        let (min, max) = range.into_inner();
        let message = format!("found {}, expected a whole number from {min} to {max}", node.kind());
        diagnostics.error(node.at, message);
    }
    number.and_then(|number| T::try_from(number).ok())
}

/// A duration longer than nothing, in microseconds.
pub(crate) fn duration_us(node: &Node, diagnostics: &Reporter) -> Option<u64> {
    let text = text(node, "a duration such as 30s", diagnostics)?;
    match parse_duration(text) {
        Ok(0) => {
            diagnostics.error(node.at, format!("found `{text}`, expected more than nothing"));
            None
        }
        Ok(us) => Some(us),
        Err(error) => {
            match meant_duration(text) {
                Some(meant) => {
                    let help = format!("did you mean `{meant}`?");
                    diagnostics.error_with_help(node.at, error.to_string(), help);
                }
                None => diagnostics.error(node.at, error.to_string()),
            }
            None
        }
    }
}

/// `10%`, in millionths.
pub(crate) fn percentage_ppm(node: &Node, percent_max: u64, diagnostics: &Reporter) -> Option<u64> {
    let ppm = node.text().and_then(|text| percent_ppm(text, percent_max));
    if ppm.is_none() {
        let expected = format!("a percentage such as 10%, at most {percent_max}%");
        diagnostics.error(node.at, format!("found {}, expected {expected}", node.kind()));
    }
    ppm
}

/// What was parsed, or its error as a diagnostic.
pub(crate) fn parsed<T>(
    result: Result<T, impl fmt::Display>,
    at: Position,
    diagnostics: &Reporter,
) -> Option<T> {
    result.map_err(|error| diagnostics.error(at, error.to_string())).ok()
}

/// One value, or a list of them.
pub(crate) fn one_or_many(node: &Node) -> &[Node] {
    match &node.value {
        Value::List(nodes) => nodes,
        _ => std::slice::from_ref(node),
    }
}

/// The texts of one value or a list of them.
pub(crate) fn texts<'n>(
    node: &'n Node,
    expected: &str,
    diagnostics: &Reporter,
) -> Vec<(&'n str, Position)> {
    let nodes = one_or_many(node);
    if nodes.is_empty() {
        diagnostics.error(node.at, format!("found an empty list, expected {expected}"));
    }
    nodes.iter().filter_map(|node| Some((text(node, expected, diagnostics)?, node.at))).collect()
}

/// The texts of one value or a list of them, each parsed.
pub(crate) fn parsed_texts<'n, T, E: fmt::Display>(
    node: &'n Node,
    expected: &str,
    parse: impl Fn(&'n str) -> Result<T, E>,
    diagnostics: &Reporter,
) -> Vec<T> {
    let parse = |(text, at)| parsed(parse(text), at, diagnostics);
    texts(node, expected, diagnostics).into_iter().filter_map(parse).collect()
}

/// Texts of which none stands twice.
pub(crate) fn distinct_texts<'n>(
    node: &'n Node,
    expected: &str,
    diagnostics: &Reporter,
) -> Vec<(&'n str, Position)> {
    let mut seen = HashSet::new();
    let mut texts = texts(node, expected, diagnostics);
    texts.retain(|(text, at)| {
        let is_new = seen.insert(*text);
        if !is_new {
            let message = format!("found `{}` a second time, expected it once", shown(text));
            diagnostics.error(*at, message);
        }
        is_new
    });
    texts
}

/// The id of a name that must be declared; `otherwise` says what is wrong with any other.
pub(crate) fn declared_id(
    names: &Names,
    name: &str,
    at: Position,
    otherwise: &str,
    diagnostics: &Reporter,
) -> Option<u32> {
    let id = names.id(name);
    if id.is_none() {
        let message = format!("found `{}`, {otherwise}", shown(name));
        diagnostics.unknown_word(at, message, name, names.iter());
    }
    id
}

/// A name that can stand in headers, metrics and keys: letters, digits, `.`, `_` and `-`.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

/// Reports a text that is no name.
pub(crate) fn check_name(text: &str, at: Position, what: &str, diagnostics: &Reporter) {
    if !is_name(text) {
        let message = format!("found `{}` as the name of {what}", shown(text));
        let help = "a name is 1 to 64 letters, digits, `.`, `_` or `-`";
        diagnostics.error_with_help(at, message, help);
    }
}

/// The name of an HTTP header.
pub(crate) fn header_name(node: &Node, diagnostics: &Reporter) -> Option<String> {
    let name = text(node, "the name of a header", diagnostics)?;
    check_header_name(name, node.at, diagnostics).then(|| name.to_owned())
}

/// Reports a text that cannot be the name of an HTTP header; true if it can.
pub(crate) fn check_header_name(text: &str, at: Position, diagnostics: &Reporter) -> bool {
    let fits = is_header_name(text);
    if !fits {
        let message = format!("found `{}`, expected the name of a header", shown(text));
        diagnostics.error(at, message);
    }
    fits
}

/// True if an HTTP header may have this name.
pub(crate) fn is_header_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=128).contains(&text.len()) && text.bytes().all(fits)
}
