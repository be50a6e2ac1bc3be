//! The sections `paths:` and `operations:`: how methods and paths are read, names, patterns, and the
//! attributes that patterns capture.

use super::fields::{Fields, Keys, check_header_name, check_name, entries, section, text, texts};
use super::{Compiler, OPERATIONS_MAX};
use crate::operation::{LetterCase, Operations, Pattern};
use crate::policy::diagnostics::Position;
use crate::policy::document::{Entry, Node, Value};
use crate::policy::model::{Attribute, DEFAULT_OPERATION, OperationId};

pub(super) const KEYS: Keys = Keys::new("match header");
pub(super) const PATHS_KEYS: Keys = Keys::new("ignore_case method_override");

/// One pattern of an operation, and where the policy has it.
pub(super) struct OperationPattern {
    pub(super) operation: OperationId,
    pub(super) at: Position,
    pub(super) pattern: Pattern,
    pub(super) headers: Vec<(String, String)>,
}

impl Compiler<'_> {
    /// Says how methods and paths are read, before any pattern is.
    pub(super) fn declare_paths(&mut self, node: &Node) {
        let fields = Fields::of(node, "`paths`", &PATHS_KEYS, self.diagnostics);
        let Some(fields) = fields else { return };
        if fields.boolean("ignore_case") == Some(true) {
            self.paths.case = LetterCase::Ignored;
        }
        self.paths.method_override = fields.boolean("method_override").unwrap_or_default();
    }

    /// Names every operation, so that conditions can refer to them.
    pub(super) fn declare_operations(&mut self, node: Option<&Node>) -> Vec<OperationPattern> {
        self.operations.add(DEFAULT_OPERATION);
        let mut patterns = Vec::new();
        let Some(node) = node else { return patterns };
        for entry in section(node, "operations", OPERATIONS_MAX, self.diagnostics) {
            check_name(&entry.key, entry.key_at, "an operation", self.diagnostics);
            if entry.key == DEFAULT_OPERATION {
                let message = "found an operation called `default`, which is what matches no other";
                self.diagnostics.error(entry.key_at, message);
                continue;
            }
            let operation = self.operations.add(&entry.key);
            self.declare_patterns(entry, operation, &mut patterns);
        }
        patterns
    }

    fn declare_patterns(
        &mut self,
        entry: &Entry,
        operation: OperationId,
        patterns: &mut Vec<OperationPattern>,
    ) {
        let Some((written, headers)) = self.patterns_and_headers(&entry.value) else { return };
        for (text, at) in texts(written, "a pattern such as `POST /auth/login`", self.diagnostics) {
            match Pattern::parse(text) {
                Ok(pattern) => {
                    self.warn_about_placeholders(text, at);
                    self.declare_captures(&pattern, operation, at);
                    let headers = headers.clone();
                    patterns.push(OperationPattern { operation, at, pattern, headers });
                }
                Err(error) => self.diagnostics.error(at, error.to_string()),
            }
        }
    }

    /// Where the patterns of an operation stand, and the headers that it needs.
    fn patterns_and_headers<'n>(
        &self,
        node: &'n Node,
    ) -> Option<(&'n Node, Vec<(String, String)>)> {
        match &node.value {
            Value::Map(entries) if entries.is_empty() => None,
            Value::Map(_) => {
                let fields = Fields::of(node, "an operation", &KEYS, self.diagnostics)?;
                let headers = fields.get("header").map(|node| self.header_values(node));
                let missing = "found no `match`, expected a pattern, or `{}` for an operation that callers name";
                fields.require("match", node.at, missing)?;
                Some((node.get("match")?, headers.unwrap_or_default()))
            }
            _ => Some((node, Vec::new())),
        }
    }

    /// What a pattern captures is an attribute, for limits on that operation.
    fn declare_captures(&mut self, pattern: &Pattern, operation: OperationId, at: Position) {
        for name in pattern.path().names() {
            if self.attribute_names.id(name).is_none() {
                self.check_attribute_name(name, at);
                self.attributes.push(Attribute::GIVEN);
            }
            let id = self.attribute_names.add(name);
            self.captured.insert((operation, id));
        }
    }

    fn header_values(&self, node: &Node) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        for Entry { key, key_at, value } in
            entries(node, "`header`", self.diagnostics).unwrap_or_default()
        {
            let fits = check_header_name(key, *key_at, self.diagnostics);
            let value = text(value, "the header's value", self.diagnostics).filter(|_| fits);
            headers.extend(value.map(|value| (key.to_ascii_lowercase(), value.to_owned())));
        }
        headers
    }

    /// The compiled operations.
    pub(super) fn operations(&self, patterns: Vec<OperationPattern>) -> Operations {
        let patterns = patterns.into_iter().map(|one| (one.operation, one.pattern, one.headers));
        Operations::new(self.operations.clone(), self.paths.case, patterns, &self.attribute_names)
    }
}
