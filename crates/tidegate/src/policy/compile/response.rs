//! The `response:` section, and bodies wherever they stand.

use super::Compiler;
use super::fields::{Fields, Keys, check_header_name, entries, text};
use crate::policy::diagnostics::shown;
use crate::policy::document::{Entry, Node, Value};
use crate::response::{
    Body, HeaderStyle, Piece, Placeholder, RefusalRules, ResponseRules, parse_text,
};

pub(super) const KEYS: Keys =
    Keys::new("headers message body content_type add jitter blocked banned challenged");
pub(super) const BLOCKED_KEYS: Keys = Keys::new("status body");

/// Headers of a refusal that say what happened or frame it: nothing else may.
const OWN_HEADERS: [&str; 11] = [
    "connection",
    "content-length",
    "content-type",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "transfer-encoding",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-warning",
];

impl Compiler<'_> {
    pub(super) fn response(&self, node: Option<&Node>) -> ResponseRules {
        let mut rules = ResponseRules {
            headers: HeaderStyle::Both,
            message: vec![Piece::Literal("Too many requests".to_owned())],
            body: None,
            content_type: None,
            add: Vec::new(),
            jitter_ppm: 0,
            blocked: RefusalRules::FORBIDDEN,
            banned: RefusalRules::FORBIDDEN,
            challenged: RefusalRules::FORBIDDEN,
        };
        let fields = node.and_then(|node| Fields::of(node, "`response`", &KEYS, self.diagnostics));
        let Some(fields) = fields else { return rules };
        let styles =
            [("x", HeaderStyle::X), ("ietf", HeaderStyle::Ietf), ("both", HeaderStyle::Both)];
        rules.headers = fields.word("headers", &styles).unwrap_or(rules.headers);
        if let Some(message) = fields.get("message").and_then(|node| self.message(node)) {
            rules.message = message;
        }
        rules.body = fields.get("body").and_then(|node| self.body(node));
        rules.content_type = fields.get("content_type").and_then(|node| self.header_value(node));
        rules.add = fields.get("add").map(|node| self.added_headers(node)).unwrap_or_default();
        let jitter_ppm = fields.percentage_ppm("jitter", 100);
        rules.jitter_ppm = jitter_ppm.and_then(|ppm| u32::try_from(ppm).ok()).unwrap_or(0);
        for (key, rules) in [
            ("blocked", &mut rules.blocked),
            ("banned", &mut rules.banned),
            ("challenged", &mut rules.challenged),
        ] {
            if let Some(node) = fields.get(key) {
                *rules = self.refusal_rules(node, &format!("`{key}`"));
            }
        }
        rules
    }

    fn refusal_rules(&self, node: &Node, what: &str) -> RefusalRules {
        let standard = RefusalRules::FORBIDDEN;
        let fields = Fields::of(node, what, &BLOCKED_KEYS, self.diagnostics);
        let Some(fields) = fields else { return standard };
        let status = fields.integer("status", 400..=599).unwrap_or(standard.status);
        RefusalRules { status, body: fields.get("body").and_then(|node| self.body(node)) }
    }

    fn added_headers(&self, node: &Node) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        for Entry { key, key_at, value } in
            entries(node, "`add`", self.diagnostics).unwrap_or_default()
        {
            check_header_name(key, *key_at, self.diagnostics);
            if OWN_HEADERS.contains(&key.to_ascii_lowercase().as_str()) {
                let message = format!("found `{}`, which Tidegate sets itself", shown(key));
                self.diagnostics.error(*key_at, message);
            }
            headers.extend(self.header_value(value).map(|value| (key.clone(), value)));
        }
        headers
    }

    fn header_value(&self, node: &Node) -> Option<String> {
        let value = text(node, "a header's value", self.diagnostics)?;
        if value.bytes().any(|b| b < b' ' || b == 0x7f) {
            self.diagnostics.error(
                node.at,
                format!("found `{}`, expected no control characters", shown(value)),
            );
            return None;
        }
        Some(value.to_owned())
    }

    pub(super) fn body(&self, node: &Node) -> Option<Body> {
        self.body_of(node, &|text, node| self.pieces(text, node))
    }

    /// Any JSON value, its strings in pieces. A null is nearly always `{limit}` without its quotes.
    pub(super) fn body_of<P>(
        &self,
        node: &Node,
        pieces: &impl Fn(&str, &Node) -> Option<Vec<Piece<P>>>,
    ) -> Option<Body<P>> {
        match &node.value {
            Value::Scalar(scalar) if scalar.is_null() => {
                let message = "found nothing (null) in a body, expected a value";
                self.diagnostics.error_with_help(node.at, message, "quote the braces: \"{limit}\"");
                None
            }
            Value::Scalar(scalar) if scalar.is_json_literal() => {
                Some(Body::Literal(scalar.text.clone()))
            }
            Value::Scalar(scalar) => pieces(&scalar.text, node).map(Body::Text),
            Value::List(nodes) => {
                let items: Vec<_> = nodes.iter().map(|node| self.body_of(node, pieces)).collect();
                items.into_iter().collect::<Option<_>>().map(Body::List)
            }
            Value::Map(written) => {
                let item =
                    |entry: &Entry| Some((entry.key.clone(), self.body_of(&entry.value, pieces)?));
                let items: Vec<Option<_>> = written.iter().map(item).collect();
                items.into_iter().collect::<Option<_>>().map(Body::Map)
            }
        }
    }

    /// A message, which may have placeholders too.
    pub(super) fn message(&self, node: &Node) -> Option<Vec<Piece>> {
        let text = text(node, "a message", self.diagnostics)?;
        let pieces = self.pieces(text, node)?;
        if pieces.contains(&Piece::Placeholder(Placeholder::Message)) {
            self.diagnostics
                .error(node.at, "found `{message}` in a message, which cannot hold itself");
            return None;
        }
        Some(pieces)
    }

    fn pieces(&self, text: &str, node: &Node) -> Option<Vec<Piece>> {
        let report = |found: &str| {
            let message = format!("found the placeholder `{{{}}}`", shown(found));
            let words = Placeholder::ALL.iter().map(|(word, _)| *word);
            self.diagnostics.unknown_word(node.at, message, found, words);
        };
        parse_text(text, Placeholder::named).map_err(report).ok()
    }
}
