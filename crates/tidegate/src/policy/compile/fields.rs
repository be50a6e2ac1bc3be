//! Reading typed values out of a document, with a diagnostic wherever one does not fit.

use std::collections::HashSet;

use crate::policy::diagnostics::{Diagnostics, Position, shown};
use crate::policy::document::{Entry, Node, Value};
use crate::policy::protection::percent_ppm;
use crate::units::{UnitError, parse_duration};

/// A map whose keys are all known.
pub(crate) struct Fields<'n> {
    entries: &'n [Entry],
    /// What misspelt keys were probably meant to be.
    meant: Vec<&'static str>,
}

/// The keys that a map may have.
pub(crate) struct Keys {
    /// Understood.
    pub(crate) known: &'static [&'static str],
    /// Part of the language, but of a later version.
    pub(crate) later: &'static [&'static str],
}

impl<'n> Fields<'n> {
    /// Takes a map apart; reports what is not a map, and every key that does not belong.
    pub(crate) fn of(
        node: &'n Node,
        what: &str,
        keys: &Keys,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        let entries = entries(node, what, diagnostics)?;
        let mut meant = Vec::new();
        for entry in entries {
            let key = entry.key.as_str();
            if keys.later.contains(&key) {
                not_yet(entry.key_at, &format!("`{key}`"), diagnostics);
            } else if !keys.known.contains(&key) {
                let message = format!("found the key `{}`, which {what} does not have", shown(key));
                let known = keys.known.iter().copied();
                meant.extend(diagnostics.unknown_word(entry.key_at, message, key, known));
            }
        }
        Some(Self { entries, meant })
    }

    /// Whether one of these keys is there under a misspelt name: then that is the error, not that
    /// the key is missing.
    pub(crate) fn is_misspelt(&self, keys: &[&str]) -> bool {
        self.meant.iter().any(|key| keys.contains(key))
    }

    /// The value under a key.
    pub(crate) fn get(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The entry under a key.
    pub(crate) fn entry(&self, key: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

/// The entries of what must be a map.
pub(crate) fn entries<'n>(
    node: &'n Node,
    what: &str,
    diagnostics: &mut Diagnostics,
) -> Option<&'n [Entry]> {
    let entries = node.entries();
    if entries.is_none() {
        let message = format!("found {}, expected a map for {what}", node.kind());
        match (&node.value, what) {
            (
                Value::List(_),
                "`limits`" | "`operations`" | "`attributes`" | "`events`" | "`penalties`",
            ) => {
                diagnostics.error_with_help(node.at, message, "write `NAME: …` instead of `- …`");
            }
            (Value::Scalar(scalar), "an exemption") if scalar.text.starts_with('/') => {
                let help = format!("write `path: {}`", shown(&scalar.text));
                diagnostics.error_with_help(node.at, message, help);
            }
            _ => diagnostics.error(node.at, message),
        }
    }
    entries
}

/// Says that something is part of the language, but not of this version.
pub(crate) fn not_yet(at: Position, what: &str, diagnostics: &mut Diagnostics) {
    diagnostics.error(at, format!("{what} is not supported yet"));
}

/// A text that must not be empty.
pub(crate) fn text<'n>(
    node: &'n Node,
    expected: &str,
    diagnostics: &mut Diagnostics,
) -> Option<&'n str> {
    match node.text() {
        Some(text) if !node.is_null() && !text.is_empty() => Some(text),
        _ => {
            diagnostics.error(node.at, format!("found {}, expected {expected}", node.kind()));
            None
        }
    }
}

/// `true` or `false`.
pub(crate) fn boolean(node: &Node, diagnostics: &mut Diagnostics) -> Option<bool> {
    match node.text() {
        Some("true") => Some(true),
        Some("false") => Some(false),
        _ => {
            diagnostics
                .error(node.at, format!("found {}, expected `true` or `false`", node.kind()));
            None
        }
    }
}

/// One of a few words.
pub(crate) fn word<T: Copy>(
    node: &Node,
    words: &[(&str, T)],
    diagnostics: &mut Diagnostics,
) -> Option<T> {
    let found = node.text().and_then(|text| words.iter().find(|(word, _)| *word == text));
    if found.is_none() {
        let message = format!("found {}", node.kind());
        diagnostics.unknown_word(
            node.at,
            message,
            node.text().unwrap_or_default(),
            words.iter().map(|(word, _)| *word),
        );
    }
    found.map(|(_, value)| *value)
}

/// A whole number within bounds.
pub(crate) fn integer(
    node: &Node,
    min: u64,
    max: u64,
    diagnostics: &mut Diagnostics,
) -> Option<u64> {
    let number = node.text().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let number =
        number.and_then(|text| text.parse().ok()).filter(|number| (min..=max).contains(number));
    if number.is_none() {
        let message = format!("found {}, expected a whole number from {min} to {max}", node.kind());
        diagnostics.error(node.at, message);
    }
    number
}

/// A duration longer than nothing, in microseconds.
pub(crate) fn duration_us(node: &Node, diagnostics: &mut Diagnostics) -> Option<u64> {
    let text = text(node, "a duration such as 30s", diagnostics)?;
    match parse_duration(text) {
        Ok(0) => {
            diagnostics.error(node.at, format!("found `{text}`, expected more than nothing"));
            None
        }
        other => unit(other, node.at, diagnostics),
    }
}

/// `10%`, in millionths.
pub(crate) fn percentage_ppm(
    node: &Node,
    percent_max: u64,
    diagnostics: &mut Diagnostics,
) -> Option<u64> {
    let ppm = node.text().and_then(|text| percent_ppm(text, percent_max));
    if ppm.is_none() {
        let message = format!(
            "found {}, expected a percentage such as 10%, at most {percent_max}%",
            node.kind()
        );
        diagnostics.error(node.at, message);
    }
    ppm
}

/// A number with a unit, or its error as a diagnostic.
pub(crate) fn unit<T>(
    result: Result<T, UnitError>,
    at: Position,
    diagnostics: &mut Diagnostics,
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
    diagnostics: &mut Diagnostics,
) -> Vec<(&'n str, Position)> {
    let nodes = one_or_many(node);
    if nodes.is_empty() {
        diagnostics.error(node.at, format!("found an empty list, expected {expected}"));
    }
    nodes.iter().filter_map(|node| Some((text(node, expected, diagnostics)?, node.at))).collect()
}

/// Texts of which none stands twice.
pub(crate) fn distinct_texts<'n>(
    node: &'n Node,
    expected: &str,
    diagnostics: &mut Diagnostics,
) -> Vec<(&'n str, Position)> {
    let mut distinct: Vec<(&str, Position)> = Vec::new();
    let mut seen = HashSet::new();
    for (text, at) in texts(node, expected, diagnostics) {
        if seen.insert(text) {
            distinct.push((text, at));
        } else {
            let message = format!("found `{}` a second time, expected it once", shown(text));
            diagnostics.error(at, message);
        }
    }
    distinct
}

/// A name that can stand in headers, metrics and keys: letters, digits, `.`, `_` and `-`.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

/// Reports a name that is none.
pub(crate) fn check_name(text: &str, at: Position, what: &str, diagnostics: &mut Diagnostics) {
    if !is_name(text) {
        let message = format!("found `{}` as the name of {what}", shown(text));
        diagnostics.error_with_help(
            at,
            message,
            "a name is 1 to 64 letters, digits, `.`, `_` or `-`",
        );
    }
}

/// The name of an HTTP header.
pub(crate) fn header_name(node: &Node, diagnostics: &mut Diagnostics) -> Option<String> {
    let name = text(node, "the name of a header", diagnostics)?;
    if is_header_name(name) {
        return Some(name.to_owned());
    }
    diagnostics.error(node.at, format!("found `{}`, expected the name of a header", shown(name)));
    None
}

/// Whether an HTTP header may have this name.
pub(crate) fn is_header_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=128).contains(&text.len()) && text.bytes().all(fits)
}
