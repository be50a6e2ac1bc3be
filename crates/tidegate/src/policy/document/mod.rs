//! A document as written: a tree of scalars, lists and maps, each with its place in the file.
//!
//! Scalars keep their source text (`1.10` stays `1.10`); their reader decides what they mean.
//! Refused here: more than 1 MiB, more than 64 levels, more than 100,000 nodes once aliases
//! are followed, tags, merge keys, several documents, and keys that are not scalars or stand twice.

mod build;
mod yaml_advice;

pub(crate) use build::parse;

use super::diagnostics::{Diagnostics, Position, Reporter, shown};

/// The largest document that is read.
pub const BYTES_MAX: usize = 1 << 20;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it starts.
    pub at: Position,
    /// What it is.
    pub value: Value,
}

/// A value as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A word, a number, a sentence.
    Scalar(Scalar),
    /// `[a, b]`
    List(Vec<Node>),
    /// `{a: b}`, in the order of the file.
    Map(Vec<Entry>),
}

/// The text of a scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// As written, without quotes.
    pub text: String,
    /// Quoted, so that it is a string even if it looks like a number.
    pub quoted: bool,
}

/// One entry of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key's text.
    pub key: String,
    /// Where the key stands.
    pub key_at: Position,
    /// Its value.
    pub value: Node,
}

impl Node {
    /// Reads one document of any kind. `file` is what diagnostics call it.
    ///
    /// # Errors
    /// It is not a document: see [`Policy::check`](crate::Policy::check) for what it may hold.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let diagnostics = Reporter::default();
        let root = parse(text, &diagnostics);
        diagnostics.conclude(file, root).map(|(root, _)| root)
    }

    /// The document as JSON text, as editors see it: plain `true`, `false`, null and numbers are
    /// what they look like, and keep every digit.
    #[must_use]
    pub fn to_json(&self) -> String {
        let joined = |items: Vec<String>| items.join(",");
        match &self.value {
            Value::Scalar(scalar) if scalar.is_null() => "null".to_owned(),
            Value::Scalar(scalar) if scalar.is_json_literal() => scalar.text.clone(),
            Value::Scalar(scalar) => json_string(&scalar.text),
            Value::List(nodes) => {
                format!("[{}]", joined(nodes.iter().map(Self::to_json).collect()))
            }
            Value::Map(entries) => {
                let entry = |entry: &Entry| {
                    format!("{}:{}", json_string(&entry.key), entry.value.to_json())
                };
                format!("{{{}}}", joined(entries.iter().map(entry).collect()))
            }
        }
    }

    /// The text, if this is a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// True if nothing was written here: `null`, `~` or empty.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.is_null())
    }

    /// The entries, if this is a map.
    #[must_use]
    pub fn entries(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The value under a key, if this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries()?.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// What it is, for messages.
    pub(crate) fn kind(&self) -> String {
        match &self.value {
            Value::Scalar(scalar) if scalar.is_null() => "nothing".to_owned(),
            Value::Scalar(scalar) if scalar.text.is_empty() => "an empty text".to_owned(),
            Value::Scalar(scalar) => format!("`{}`", shown(&scalar.text)),
            Value::List(nodes) if nodes.is_empty() => "an empty list".to_owned(),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

impl Scalar {
    /// True for `null`, `~` or an empty text without quotes.
    #[must_use]
    pub fn is_null(&self) -> bool {
        !self.quoted && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// True for `true`, `false` or a JSON number; everything else but null is a string.
    #[must_use]
    pub fn is_json_literal(&self) -> bool {
        let text = self.text.as_str();
        let number = || {
            text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
                && serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
        };
        !self.quoted && (matches!(text, "true" | "false") || number())
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
