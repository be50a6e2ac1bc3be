//! The `operations:` section: names, patterns, and the attributes that patterns capture.

use super::fields::{Fields, Keys, check_name, entries, header_name, text, texts};
use super::{Compiler, OPERATIONS_MAX};
use crate::operation::{Operations, Pattern};
use crate::policy::diagnostics::Position;
use crate::policy::document::{Entry, Node, Value};
use crate::policy::model::{Attribute, DEFAULT_OPERATION, OperationId, Source};

pub(super) const KEYS: Keys = Keys { known: &["match", "header"], later: &[] };

/// A pattern of an operation, with what warnings need to know of it.
pub(super) struct Declared {
    pub(super) operation: OperationId,
    pub(super) at: Position,
    pub(super) pattern: Pattern,
    pub(super) headers: Vec<(String, String)>,
}

impl Compiler<'_> {
    /// Names every operation, so that conditions can refer to them.
    pub(super) fn declare_operations(&mut self, node: Option<&Node>) -> Vec<Declared> {
        self.operations.add(DEFAULT_OPERATION);
        let mut declared = Vec::new();
        let Some(node) = node else { return declared };
        let operations = entries(node, "`operations`", self.diagnostics).unwrap_or_default();
        if operations.len() > OPERATIONS_MAX {
            self.diagnostics.error(node.at, format!("found more than {OPERATIONS_MAX} operations"));
            return declared;
        }
        for entry in operations {
            check_name(&entry.key, entry.key_at, "an operation", self.diagnostics);
            if entry.key == DEFAULT_OPERATION {
                let message = "found an operation called `default`, which is what matches no other";
                self.diagnostics.error(entry.key_at, message);
                continue;
            }
            let operation = self.operations.add(&entry.key);
            self.declare_patterns(entry, operation, &mut declared);
        }
        declared
    }

    fn declare_patterns(
        &mut self,
        entry: &Entry,
        operation: OperationId,
        declared: &mut Vec<Declared>,
    ) {
        let (patterns, headers) = match &entry.value.value {
            Value::Map(entries) if entries.is_empty() => return,
            Value::Map(_) => {
                let Some(fields) =
                    Fields::of(&entry.value, "an operation", &KEYS, self.diagnostics)
                else {
                    return;
                };
                let headers =
                    fields.get("header").map(|node| self.header_values(node)).unwrap_or_default();
                let Some(patterns) = fields.get("match") else {
                    if !fields.is_misspelt(&["match"]) {
                        let message = "found no `match`, expected a pattern, or `{}` for an operation that callers name";
                        self.diagnostics.error(entry.value.at, message);
                    }
                    return;
                };
                (patterns, headers)
            }
            _ => (&entry.value, Vec::new()),
        };
        for (text, at) in texts(patterns, "a pattern such as `POST /auth/login`", self.diagnostics)
        {
            match Pattern::parse(text) {
                Ok(pattern) => {
                    self.declare_captures(&pattern, operation, at);
                    declared.push(Declared { operation, at, pattern, headers: headers.clone() });
                }
                Err(error) => self.diagnostics.error(at, error.to_string()),
            }
        }
    }

    /// What a pattern captures is an attribute, for limits on that operation.
    fn declare_captures(&mut self, pattern: &Pattern, operation: OperationId, at: Position) {
        for name in pattern.path().names() {
            if self.attribute_names.id(name).is_none() {
                self.check_attribute_name(name, at);
                self.attributes.push(Attribute { source: Source::Given, fold: false });
            }
            let id = self.attribute_names.add(name);
            self.captured.insert((operation, id));
        }
    }

    fn header_values(&mut self, node: &Node) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        for entry in entries(node, "`header`", self.diagnostics).unwrap_or_default() {
            let key = Node {
                at: entry.key_at,
                value: Value::Scalar(crate::policy::document::Scalar {
                    text: entry.key.clone(),
                    quoted: true,
                }),
            };
            let name = header_name(&key, self.diagnostics);
            let value = text(&entry.value, "the header's value", self.diagnostics);
            headers.extend(
                name.zip(value).map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())),
            );
        }
        headers
    }

    /// The compiled operations.
    pub(super) fn operations(&self, declared: Vec<Declared>) -> Operations {
        let patterns = declared.into_iter().map(|one| (one.operation, one.pattern, one.headers));
        Operations::new(self.operations.clone(), patterns, &self.attribute_names)
    }
}
