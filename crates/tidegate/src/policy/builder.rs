//! Policies from Rust instead of YAML. A builder writes the same document that a file would hold,
//! so that everything is checked in the same way.

use std::collections::BTreeMap;

use super::compile;
use super::compile::fields::entries;
use super::diagnostics::{Diagnostics, Position, Reporter};
use super::document::{self, Entry, Node, Scalar, Value};
use super::model::Policy;

/// Puts a policy together. What it has no method for (exemptions, blocks, penalties, responses) is
/// given as [`yaml`](Self::yaml).
#[derive(Clone, Debug)]
pub struct PolicyBuilder {
    name: String,
    timezone: Option<String>,
    identity: Vec<Entry>,
    attributes: Vec<Entry>,
    operations: Vec<Entry>,
    limits: Vec<Entry>,
    sections: Vec<String>,
}

impl PolicyBuilder {
    pub(super) fn new(name: &str) -> Self {
        let name = name.to_owned();
        let (identity, attributes, operations, limits) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let sections = Vec::new();
        Self { name, timezone: None, identity, attributes, operations, limits, sections }
    }

    /// Where quota days, weeks and months turn over.
    #[must_use]
    pub fn timezone(mut self, name: &str) -> Self {
        self.timezone = Some(name.to_owned());
        self
    }

    /// A network whose hosts may speak for a client, such as `127.0.0.0/8`. May be called again.
    #[must_use]
    pub fn trusted_proxy(mut self, network: &str) -> Self {
        append(&mut self.identity, "trusted_proxies", network);
        self
    }

    /// The tier of a user whose tier is not said, or not known.
    #[must_use]
    pub fn default_tier(mut self, tier: &str) -> Self {
        self.identity.push(entry("default_tier", scalar(tier)));
        self
    }

    /// Declares an attribute that the caller gives.
    #[must_use]
    pub fn attribute(mut self, name: &str) -> Self {
        self.attributes.push(entry(name, scalar("given")));
        self
    }

    /// Declares an operation by its pattern, such as `POST /rooms/{room}/bookings`.
    #[must_use]
    pub fn operation(mut self, name: &str, pattern: &str) -> Self {
        self.operations.push(entry(name, scalar(pattern)));
        self
    }

    /// Adds a limit.
    #[must_use]
    pub fn limit(mut self, limit: LimitBuilder) -> Self {
        self.limits.push(entry(&limit.name, map(limit.fields)));
        self
    }

    /// Adds whole sections as a policy file has them. May be called again.
    ///
    /// ```
    /// use tidegate::Policy;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::builder("api")
    ///     .operation("login", "POST /auth/login")
    ///     .yaml("events: { failure: { when: login, status: 401 } }")
    ///     .yaml("penalties:
    ///   brute-force: { event: failure, by: ip, within: 15min, ladder: { 10: { ban: 15min } } }")
    ///     .build()?;
    /// assert!(policy.events().any(|event| event == "failure"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn yaml(mut self, sections: &str) -> Self {
        self.sections.push(sections.to_owned());
        self
    }

    /// The checked policy.
    ///
    /// # Errors
    /// Everything that is wrong with it, all at once.
    pub fn build(mut self) -> Result<Policy, Diagnostics> {
        let mut root = vec![entry("tidegate", scalar("1")), entry("name", scalar(&self.name))];
        root.extend(self.timezone.map(|zone| entry("timezone", scalar(&zone))));
        if !self.attributes.is_empty() {
            self.identity.push(entry("attributes", map(self.attributes)));
        }
        for (key, entries) in
            [("identity", self.identity), ("operations", self.operations), ("limits", self.limits)]
        {
            if !entries.is_empty() {
                root.push(entry(key, map(entries)));
            }
        }
        let diagnostics = Reporter::default();
        for text in &self.sections {
            let read = document::parse(text, &diagnostics);
            let what = "the sections of a policy";
            let entries = read.as_ref().and_then(|node| entries(node, what, &diagnostics));
            root.extend(entries.unwrap_or_default().iter().cloned());
        }
        repeated(&root, &diagnostics);
        let policy = compile::compile(&map(root), &BTreeMap::new(), &diagnostics);
        diagnostics.conclude(&self.name, policy).map(|(policy, _)| policy)
    }
}

/// Puts a limit together: its name and algorithm first, then for whom. Tier maps and bodies are for
/// YAML.
#[derive(Clone, Debug)]
pub struct LimitBuilder {
    name: String,
    fields: Vec<Entry>,
}

impl LimitBuilder {
    fn new(name: &str, algorithm: &str, spec: &str) -> Self {
        Self { name: name.to_owned(), fields: vec![entry(algorithm, scalar(spec))] }
    }

    /// `20/min burst 5`: refilled evenly, starts full.
    #[must_use]
    pub fn token_bucket(name: &str, spec: &str) -> Self {
        Self::new(name, "token_bucket", spec)
    }

    /// `5/min`: never more in any window.
    #[must_use]
    pub fn sliding_window(name: &str, spec: &str) -> Self {
        Self::new(name, "sliding_window", spec)
    }

    /// `1000/min`: constant memory for high limits.
    #[must_use]
    pub fn sliding_counter(name: &str, spec: &str) -> Self {
        Self::new(name, "sliding_counter", spec)
    }

    /// `100/min`: windows aligned to the epoch.
    #[must_use]
    pub fn fixed_window(name: &str, spec: &str) -> Self {
        Self::new(name, "fixed_window", spec)
    }

    /// `5/day`, `3/week`, `1000/month`: calendar windows.
    #[must_use]
    pub fn quota(name: &str, spec: &str) -> Self {
        Self::new(name, "quota", spec)
    }

    /// At most so many held at once.
    #[must_use]
    pub fn concurrency(name: &str, places: u32) -> Self {
        Self::new(name, "concurrency", &places.to_string())
    }

    /// At most so many, ever.
    #[must_use]
    pub fn total(name: &str, limit: u32) -> Self {
        Self::new(name, "total", &limit.to_string())
    }

    /// An operation that it applies to. May be called again; never called, it applies to all.
    #[must_use]
    pub fn when(mut self, operation: &str) -> Self {
        append(&mut self.fields, "when", operation);
        self
    }

    /// A part of its key: `ip`, `user`, `client`, an attribute, `global`. May be called again.
    #[must_use]
    pub fn by(mut self, part: &str) -> Self {
        append(&mut self.fields, "by", part);
        self
    }

    /// What a request costs: a number or the name of an attribute.
    #[must_use]
    pub fn cost(self, cost: &str) -> Self {
        self.field("cost", cost)
    }

    /// What the client reads when it refuses.
    #[must_use]
    pub fn message(self, message: &str) -> Self {
        self.field("message", message)
    }

    /// Sets any other key of a limit to a word or number: `.set("counts", "failures")`.
    #[must_use]
    pub fn set(self, key: &str, value: &str) -> Self {
        self.field(key, value)
    }

    /// Counts and reports, and never acts.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.field("shadow", "true")
    }

    fn field(mut self, key: &str, value: &str) -> Self {
        self.fields.retain(|entry| entry.key != key);
        self.fields.push(entry(key, scalar(value)));
        self
    }
}

fn scalar(text: &str) -> Node {
    Node::made(Value::Scalar(Scalar { text: text.to_owned(), quoted: false }))
}

fn map(entries: Vec<Entry>) -> Node {
    Node::made(Value::Map(entries))
}

fn entry(key: &str, value: Node) -> Entry {
    Entry { key: key.to_owned(), key_at: value.at, value }
}

/// Adds a value to a list.
fn append(entries: &mut Vec<Entry>, key: &str, value: &str) {
    let existing = entries.iter_mut().find(|entry| entry.key == key);
    match existing.map(|entry| &mut entry.value.value) {
        Some(Value::List(nodes)) => nodes.push(scalar(value)),
        _ => entries.push(entry(key, Node::made(Value::List(vec![scalar(value)])))),
    }
}

/// A file cannot hold a name twice; nor can a builder.
fn repeated(root: &[Entry], diagnostics: &Reporter) {
    for (index, section) in root.iter().enumerate() {
        if root[..index].iter().any(|earlier| earlier.key == section.key) {
            let message = format!("found `{}` twice, expected it once", section.key);
            diagnostics.error(section.key_at, message);
        }
    }
    for section in root {
        let entries = section.value.entries().unwrap_or_default();
        for (index, entry) in entries.iter().enumerate() {
            if entries[..index].iter().any(|earlier| earlier.key == entry.key) {
                let message =
                    format!("found `{}` twice in `{}`, expected it once", entry.key, section.key);
                diagnostics.error(Position { line: 1, column: 1 }, message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_from_rust_is_checked_like_one_from_a_file() {
        let wrong = Policy::builder("api")
            .limit(LimitBuilder::sliding_window("a", "5/mn").by("ip"))
            .limit(LimitBuilder::total("a", 3).by("nobody"))
            .build();
        let message = wrong.unwrap_err().to_string();
        assert!(message.contains("5/mn") || message.contains("`mn`"), "{message}");
        assert!(message.contains("`a` twice"), "{message}");
        assert!(message.contains("`nobody`"), "{message}");
    }

    #[test]
    fn sections_in_yaml_are_part_of_the_policy_and_cannot_be_said_twice() {
        let builder = || {
            let limit = LimitBuilder::sliding_window("a", "5/min").by("ip");
            Policy::builder("api").limit(limit).yaml("block: { countries: [kp] }")
        };
        assert_eq!(builder().build().unwrap().blocked_countries, ["KP"]);
        for wrong in ["limits: {}", "block: {}", "[block]", "block: {", "blok: {}"] {
            assert!(builder().yaml(wrong).build().is_err(), "{wrong}");
        }
    }
}
