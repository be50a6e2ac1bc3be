//! `when:` conditions: an operation, a list of them, or a map.

use super::fields::{Fields, Keys, boolean, entries, texts};
use super::{Compiler, Scope};
use crate::identity::Networks;
use crate::operation::{PathPattern, is_method};
use crate::policy::diagnostics::{Position, shown};
use crate::policy::document::{Node, Value};
use crate::policy::model::{AttributeId, OperationId, TierId};
use crate::policy::when::When;

/// The most attributes that one condition may compare.
const CONDITIONS_MAX: usize = 100;

pub(super) const KEYS: Keys = Keys {
    known: &[
        "operation",
        "tier",
        "method",
        "path",
        "ip",
        "country",
        "authenticated",
        "internal",
        "attributes",
        "not",
    ],
    later: &[],
};

impl Compiler<'_> {
    /// A limit's `when:`: an operation, a list of them, or a map.
    pub(super) fn when(&mut self, node: &Node) -> When {
        match &node.value {
            Value::Map(_) => self.when_map(node, "`when`"),
            _ => When { operations: Some(self.operation_ids(node)), ..When::default() },
        }
    }

    /// A map of conditions.
    pub(super) fn when_map(&mut self, node: &Node, what: &str) -> When {
        let mut when = When::default();
        let Some(fields) = Fields::of(node, what, &KEYS, self.diagnostics) else { return when };
        if node.entries().is_some_and(<[_]>::is_empty) {
            let message = format!("found an empty map for {what}, expected at least one condition");
            self.diagnostics.error(node.at, message);
        }
        when.operations = fields.get("operation").map(|node| self.operation_ids(node));
        when.tiers = fields.get("tier").map(|node| self.tier_ids(node));
        when.methods = fields.get("method").map(|node| self.methods(node));
        when.paths = fields.get("path").map(|node| self.paths(node));
        when.networks = fields.get("ip").map(|node| self.networks(node));
        when.countries = fields.get("country").map(|node| self.countries(node));
        when.authenticated =
            fields.get("authenticated").and_then(|node| boolean(node, self.diagnostics));
        when.internal = fields.get("internal").and_then(|node| boolean(node, self.diagnostics));
        // Attributes may be captured by the operations of this very condition.
        let scope = Scope::of(when.operations.as_deref());
        when.attributes = fields
            .get("attributes")
            .map(|node| self.attribute_values(node, &scope))
            .unwrap_or_default();
        when.not = fields.get("not").map(|node| Box::new(self.when_map(node, "`not`")));
        when
    }

    fn operation_ids(&mut self, node: &Node) -> Vec<OperationId> {
        let found = texts(node, "the name of an operation", self.diagnostics);
        let id = |(name, at)| {
            let id = self.operations.id(name);
            if id.is_none() {
                let message = format!("found `{name}`, which is not a declared operation");
                self.diagnostics.unknown_word(at, message, name, self.operations.iter());
            }
            id
        };
        let mut ids: Vec<OperationId> = found.into_iter().filter_map(id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    pub(super) fn tier_ids(&mut self, node: &Node) -> Vec<TierId> {
        let found = texts(node, "the name of a tier", self.diagnostics);
        found.into_iter().filter_map(|(name, at)| self.tier_id(name, at)).collect()
    }

    /// Requests' methods are read in upper case, so that `get` would never be met.
    fn methods(&mut self, node: &Node) -> Vec<String> {
        let expected = "an upper-case method such as GET";
        let found = texts(node, expected, self.diagnostics);
        for (word, at) in found.iter().filter(|(word, _)| !is_method(word)) {
            let message = format!("found `{}`, expected {expected}", shown(word));
            self.diagnostics.error(*at, message);
        }
        found.into_iter().map(|(word, _)| word.to_owned()).collect()
    }

    /// ISO 3166 codes, in capitals whichever way they are written.
    pub(super) fn countries(&mut self, node: &Node) -> Vec<String> {
        let expected = "a country code of two letters such as DE";
        let found = texts(node, expected, self.diagnostics);
        let code = |(text, at): (&str, Position)| {
            let fits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_alphabetic());
            if !fits {
                self.diagnostics.error(at, format!("found `{}`, expected {expected}", shown(text)));
            }
            fits.then(|| text.to_ascii_uppercase())
        };
        found.into_iter().filter_map(code).collect()
    }

    fn paths(&mut self, node: &Node) -> Vec<PathPattern> {
        let found = texts(node, "a path such as /health", self.diagnostics);
        let parse = |(text, at)| {
            let pattern = PathPattern::parse(text);
            pattern.map_err(|error| self.diagnostics.error(at, error.to_string())).ok()
        };
        found.into_iter().filter_map(parse).collect()
    }

    /// Addresses and networks.
    pub(super) fn networks(&mut self, node: &Node) -> Networks {
        let found = texts(node, "a network such as 10.0.0.0/8", self.diagnostics);
        let parse = |(text, at)| {
            let network = Networks::parse_net(text);
            network.map_err(|error| self.diagnostics.error(at, error.to_string())).ok()
        };
        found.into_iter().filter_map(parse).collect()
    }

    fn attribute_values(
        &mut self,
        node: &Node,
        scope: &Scope<'_>,
    ) -> Vec<(AttributeId, Vec<String>)> {
        let mut conditions = Vec::new();
        let written = entries(node, "`attributes`", self.diagnostics).unwrap_or_default();
        if written.len() > CONDITIONS_MAX {
            self.diagnostics.error(node.at, format!("found more than {CONDITIONS_MAX} attributes"));
            return conditions;
        }
        for entry in written {
            let id = self.attribute_id(&entry.key, entry.key_at, scope, &[]);
            let values = texts(&entry.value, "a value", self.diagnostics);
            let values = values.into_iter().map(|(value, _)| self.folded(id, value)).collect();
            conditions.extend(id.map(|id| (id, values)));
        }
        conditions
    }
}
