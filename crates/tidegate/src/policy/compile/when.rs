//! `when:` conditions: an operation, a list of them, or a map.

use super::fields::{Fields, Keys, declared_id, one_or_many, parsed_texts, section, texts};
use super::{Compiler, Scope};
use crate::countries::CountryCode;
use crate::identity::Networks;
use crate::operation::{PathPattern, is_method};
use crate::policy::diagnostics::shown;
use crate::policy::document::{Node, Value};
use crate::policy::model::{AttributeId, OperationId, TierId};
use crate::policy::when::When;

/// The most attributes that one condition may compare.
const CONDITIONS_MAX: usize = 100;

pub(super) const KEYS: Keys =
    Keys::new("operation tier method path ip country authenticated internal attributes not");

impl Compiler<'_> {
    /// A limit's `when:`: an operation, a list of them, or a map.
    pub(super) fn when(&self, node: &Node) -> When {
        match &node.value {
            Value::Map(_) => self.when_map(node, "`when`"),
            _ => When { operations: Some(self.operation_ids(node)), ..When::default() },
        }
    }

    /// A map of conditions.
    pub(super) fn when_map(&self, node: &Node, what: &str) -> When {
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
        when.authenticated = fields.boolean("authenticated");
        when.internal = fields.boolean("internal");
        // Attributes may be captured by the operations of this very condition.
        let scope = Scope::of(when.operations.as_deref());
        when.attributes = fields
            .get("attributes")
            .map(|node| self.attribute_values(node, &scope))
            .unwrap_or_default();
        when.not = fields.get("not").map(|node| Box::new(self.when_map(node, "`not`")));
        when
    }

    fn operation_ids(&self, node: &Node) -> Vec<OperationId> {
        let otherwise = "which is not a declared operation";
        let id = |(name, at)| declared_id(&self.operations, name, at, otherwise, self.diagnostics);
        let found = texts(node, "the name of an operation", self.diagnostics);
        let mut ids: Vec<OperationId> = found.into_iter().filter_map(id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn tier_ids(&self, node: &Node) -> Vec<TierId> {
        let found = texts(node, "the name of a tier", self.diagnostics);
        found.into_iter().filter_map(|(name, at)| self.tier_id(name, at)).collect()
    }

    /// Requests' methods are read in upper case, so that `get` would never match.
    fn methods(&self, node: &Node) -> Vec<String> {
        let expected = "an upper-case method such as GET";
        let parse = |text: &str| match is_method(text) {
            true => Ok(text.to_owned()),
            false => Err(format!("found `{}`, expected {expected}", shown(text))),
        };
        parsed_texts(node, expected, parse, self.diagnostics)
    }

    /// ISO 3166 codes, in capitals.
    pub(super) fn countries(&self, node: &Node) -> Vec<String> {
        let expected = "a country code of two letters such as DE";
        let parse = |text: &str| match CountryCode::new(text) {
            Some(code) => Ok(code.to_string()),
            None => Err(format!("found `{}`, expected {expected}", shown(text))),
        };
        parsed_texts(node, expected, parse, self.diagnostics)
    }

    fn paths(&self, node: &Node) -> Vec<PathPattern> {
        for node in one_or_many(node) {
            self.warn_about_placeholders(node.text().unwrap_or_default(), node.at);
        }
        let parse =
            |text: &str| PathPattern::parse(text).map(|pattern| pattern.with_case(self.paths.case));
        parsed_texts(node, "a path such as /health", parse, self.diagnostics)
    }

    /// Addresses and networks.
    pub(super) fn networks(&self, node: &Node) -> Networks {
        let expected = "a network such as 10.0.0.0/8";
        parsed_texts(node, expected, Networks::parse_net, self.diagnostics).into_iter().collect()
    }

    fn attribute_values(&self, node: &Node, scope: &Scope<'_>) -> Vec<(AttributeId, Vec<String>)> {
        let mut conditions = Vec::new();
        for entry in section(node, "attributes", CONDITIONS_MAX, self.diagnostics) {
            let id = self.attribute_id(&entry.key, entry.key_at, scope, &[]);
            let values = texts(&entry.value, "a value", self.diagnostics);
            let values =
                values.into_iter().map(|(value, _)| self.normal_value(id, value)).collect();
            conditions.extend(id.map(|id| (id, values)));
        }
        conditions
    }
}
