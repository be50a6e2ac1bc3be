//! Policies from Rust instead of YAML. A builder writes the document that a file would hold, so that
//! everything is checked in the same way.

use std::collections::BTreeMap;

use super::compile;
use super::compile::fields::entries;
use super::diagnostics::{Diagnostics, Position, Reporter};
use super::document::{self, Entry, Node, Scalar, Value};
use super::model::Policy;
use crate::rate::{BurstRate, Quota, Rate, RateError};

/// Where everything stands that code has written.
const START: Position = Position { line: 1, column: 1 };

/// Builds a policy. Sections without a method (exemptions, blocks, penalties, responses) are given as
/// [`yaml`](Self::yaml).
#[derive(Clone, Debug, Default)]
pub struct PolicyBuilder {
    name: String,
    timezone: Option<String>,
    identity: Vec<Entry>,
    attributes: Vec<Entry>,
    operations: Vec<Entry>,
    limits: Vec<Entry>,
    errors: Vec<RateError>,
    sections: Vec<String>,
}

impl PolicyBuilder {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
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

    /// The tier of a user who has no tier, or an unknown one.
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
        self.errors.extend(limit.error);
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
        for error in &self.errors {
            diagnostics.rate_error(START, error);
        }
        for text in &self.sections {
            let read = document::parse(text, &diagnostics);
            let what = "the sections of a policy";
            let entries = read.as_ref().and_then(|node| entries(node, what, &diagnostics));
            root.extend(entries.unwrap_or_default().iter().cloned());
        }
        check_names(&root, &diagnostics);
        let policy = compile::compile(&map(root), &BTreeMap::new(), &diagnostics);
        diagnostics.conclude(&self.name, policy).map(|(policy, _)| policy)
    }
}

/// Builds a limit: its name and algorithm first, then its subject. Tier maps and bodies are
/// for YAML.
///
/// Rates are typed or texts of the policy language. [`PolicyBuilder::build`] reports a text that
/// cannot be read.
///
/// ```
/// use std::num::NonZeroU32;
/// use tidegate::{LimitBuilder, Rate};
///
/// const FIVE: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// let typed = LimitBuilder::sliding_window("logins", Rate::per_minute(FIVE)).by("ip");
/// let text = LimitBuilder::sliding_window("logins", "5/min").by("ip");
/// ```
#[derive(Clone, Debug)]
pub struct LimitBuilder {
    name: String,
    fields: Vec<Entry>,
    /// What is wrong with its rate.
    error: Option<RateError>,
}

impl LimitBuilder {
    fn new(name: &str, algorithm: &str, spec: Result<String, RateError>) -> Self {
        let (spec, error) = match spec {
            Ok(spec) => (spec, None),
            // Stands in for the spec, so that the error is reported once.
            Err(error) => ("unlimited".to_owned(), Some(error)),
        };
        Self { name: name.to_owned(), fields: vec![entry(algorithm, scalar(&spec))], error }
    }

    /// `20/min burst 5`: refilled evenly, starts full.
    #[must_use]
    pub fn token_bucket(name: &str, rate: impl TryInto<BurstRate, Error: Into<RateError>>) -> Self {
        let spec = rate.try_into().map_err(Into::into);
        Self::new(name, "token_bucket", spec.map(|rate| rate.token_bucket().to_string()))
    }

    /// `5/min`: never more in any window.
    #[must_use]
    pub fn sliding_window(name: &str, rate: impl TryInto<Rate, Error: Into<RateError>>) -> Self {
        let spec = rate.try_into().map_err(Into::into).and_then(Rate::sliding_window);
        Self::new(name, "sliding_window", spec.map(|spec| spec.to_string()))
    }

    /// `1000/min`: constant memory for high limits.
    #[must_use]
    pub fn sliding_counter(name: &str, rate: impl TryInto<Rate, Error: Into<RateError>>) -> Self {
        let spec = rate.try_into().map_err(Into::into);
        Self::new(name, "sliding_counter", spec.map(|rate| rate.sliding_counter().to_string()))
    }

    /// `100/min`: windows aligned to the epoch.
    #[must_use]
    pub fn fixed_window(name: &str, rate: impl TryInto<Rate, Error: Into<RateError>>) -> Self {
        let spec = rate.try_into().map_err(Into::into);
        Self::new(name, "fixed_window", spec.map(|rate| rate.fixed_window().to_string()))
    }

    /// `5/day`, `3/week`, `1000/month`: calendar windows.
    #[must_use]
    pub fn quota(name: &str, quota: impl TryInto<Quota, Error: Into<RateError>>) -> Self {
        let quota = quota.try_into().map_err(Into::into);
        Self::new(name, "quota", quota.map(|quota| quota.to_string()))
    }

    /// At most this many held at once.
    #[must_use]
    pub fn concurrency(name: &str, places: u32) -> Self {
        Self::new(name, "concurrency", Ok(places.to_string()))
    }

    /// At most this many, ever.
    #[must_use]
    pub fn total(name: &str, limit: u32) -> Self {
        Self::new(name, "total", Ok(limit.to_string()))
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
        self.set("cost", cost)
    }

    /// What the client reads when it refuses.
    #[must_use]
    pub fn message(self, message: &str) -> Self {
        self.set("message", message)
    }

    /// Counts and reports, and never acts.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.set("shadow", "true")
    }

    /// Sets any other key of a limit to a word or number: `.set("counts", "failures")`.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.fields.retain(|entry| entry.key != key);
        self.fields.push(entry(key, scalar(value)));
        self
    }
}

fn node(value: Value) -> Node {
    Node { at: START, value }
}

fn scalar(text: &str) -> Node {
    node(Value::Scalar(Scalar { text: text.to_owned(), quoted: false }))
}

fn map(entries: Vec<Entry>) -> Node {
    node(Value::Map(entries))
}

fn entry(key: &str, value: Node) -> Entry {
    Entry { key: key.to_owned(), key_at: value.at, value }
}

/// Adds a value to a list.
fn append(entries: &mut Vec<Entry>, key: &str, value: &str) {
    let existing = entries.iter_mut().find(|entry| entry.key == key);
    match existing.map(|entry| &mut entry.value.value) {
        Some(Value::List(nodes)) => nodes.push(scalar(value)),
        _ => entries.push(entry(key, node(Value::List(vec![scalar(value)])))),
    }
}

/// Reports a section, or a name in a section, that is there twice: a file cannot hold it either.
fn check_names(root: &[Entry], diagnostics: &Reporter) {
    let repeated = |entries: &[Entry], index: usize| {
        entries[..index].iter().any(|earlier| earlier.key == entries[index].key)
    };
    for (index, section) in root.iter().enumerate() {
        if repeated(root, index) {
            let message = format!("found `{}` twice, expected it once", section.key);
            diagnostics.error(section.key_at, message);
        }
        let entries = section.value.entries().unwrap_or_default();
        for index in (0..entries.len()).filter(|index| repeated(entries, *index)) {
            let (name, section) = (&entries[index].key, &section.key);
            let message = format!("found `{name}` twice in `{section}`, expected it once");
            diagnostics.error(START, message);
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
        assert!(message.contains("found `mn`, expected a period"), "{message}");
        assert!(message.contains("write `min` for minutes"), "{message}");
        assert!(message.contains("`a` twice"), "{message}");
        assert!(message.contains("`nobody`"), "{message}");
    }

    #[test]
    fn a_typed_rate_is_the_rate_of_its_text() {
        let three = std::num::NonZeroU32::new(3).unwrap();
        let typed = Policy::builder("api")
            .limit(LimitBuilder::token_bucket("a", Rate::per_minute(three).burst(three)).by("ip"))
            .limit(LimitBuilder::sliding_window("b", Rate::per_hour(three)).by("ip"))
            .limit(LimitBuilder::quota("c", Quota::per_week(three)).by("ip"));
        let text = Policy::builder("api")
            .limit(LimitBuilder::token_bucket("a", "3/min burst 3").by("ip"))
            .limit(LimitBuilder::sliding_window("b", "3/h").by("ip"))
            .limit(LimitBuilder::quota("c", "3/week").by("ip"));
        let settings = |builder: PolicyBuilder| {
            let policy = builder.build().unwrap();
            policy.limits.iter().map(|limit| limit.settings.first_spec()).collect::<Vec<_>>()
        };
        assert_eq!(settings(typed), settings(text));
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
