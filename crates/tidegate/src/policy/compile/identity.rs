//! The `identity:` section, and the attributes it declares.

use super::fields::{Fields, Keys, check_name, header_name, section, text};
use super::{Compiler, NETWORK, RESERVED_PARTS};
use crate::identity::{ForwardingHeader, Networks};
use crate::policy::diagnostics::{Position, shown};
use crate::policy::document::Node;
use crate::policy::model::{Attribute, IdentityRules, IdentitySource, Internal, Source};

pub(super) const KEYS: Keys = Keys::new(
    "trusted_proxies forwarded ipv6_prefix user tier default_tier anonymous_tier internal \
     attributes",
);
pub(super) const SOURCE_KEYS: Keys = Keys::new("header jwt");
pub(super) const INTERNAL_KEYS: Keys = Keys::new("cidrs header secret_env");
pub(super) const ATTRIBUTE_KEYS: Keys = Keys::new("header query body jwt fold trusted");

const ATTRIBUTES_MAX: usize = 100;

impl Compiler<'_> {
    /// The rules, once tiers and attributes are known.
    pub(super) fn identity(&self, node: Option<&Node>) -> IdentityRules {
        let mut rules = IdentityRules {
            trusted_proxies: Networks::default(),
            forwarded: ForwardingHeader::XForwardedFor,
            ipv6_prefix: 64,
            user: None,
            tier: None,
            default_tier: self.default_tier,
            anonymous_tier: self.anonymous_tier,
            internal: Internal::Never,
        };
        let fields = node.and_then(|node| Fields::of(node, "`identity`", &KEYS, self.diagnostics));
        let Some(fields) = fields else { return rules };
        if let Some(node) = fields.get("trusted_proxies") {
            rules.trusted_proxies = self.networks(node);
        }
        let headers = ForwardingHeader::ALL.map(|header| (header.header_name(), header));
        rules.forwarded = fields.word("forwarded", &headers).unwrap_or(rules.forwarded);
        rules.ipv6_prefix = fields.integer("ipv6_prefix", 1..=128).unwrap_or(rules.ipv6_prefix);
        rules.user = fields.get("user").and_then(|node| self.identity_source(node, "`user`"));
        rules.tier = fields.get("tier").and_then(|node| self.identity_source(node, "`tier`"));
        if let Some(internal) = fields.get("internal").and_then(|node| self.internal(node)) {
            rules.internal = internal;
        }
        rules
    }

    fn identity_source(&self, node: &Node, what: &str) -> Option<IdentitySource> {
        let fields = Fields::of(node, what, &SOURCE_KEYS, self.diagnostics)?;
        let found = match (fields.get("header"), fields.get("jwt")) {
            (Some(header), None) => {
                return header_name(header, self.diagnostics).map(IdentitySource::Header);
            }
            (None, Some(claim)) => return self.claim(claim).map(IdentitySource::Jwt),
            (None, None) if fields.is_misspelt(&["header", "jwt"]) => return None,
            (None, None) => "no source",
            (Some(_), Some(_)) => "two sources",
        };
        let message = format!(
            "found {found}, expected `{{ header: NAME }}` or `{{ jwt: CLAIM }}` for {what}"
        );
        self.diagnostics.error(node.at, message);
        None
    }

    fn claim(&self, node: &Node) -> Option<String> {
        text(node, "a claim such as `sub`", self.diagnostics).map(str::to_owned)
    }

    fn internal(&self, node: &Node) -> Option<Internal> {
        let fields = Fields::of(node, "`internal`", &INTERNAL_KEYS, self.diagnostics)?;
        match (fields.get("cidrs"), fields.get("header"), fields.get("secret_env")) {
            (Some(cidrs), None, None) => Some(Internal::Cidrs(self.networks(cidrs))),
            (None, Some(header), Some(secret_env)) => {
                let name = header_name(header, self.diagnostics)?;
                let variable =
                    text(secret_env, "the name of an environment variable", self.diagnostics)?;
                let secret = self.env.get(variable).filter(|secret| !secret.is_empty());
                if secret.is_none() {
                    let message = format!("the environment variable `{variable}` is not set");
                    self.diagnostics.error_with_help(
                        secret_env.at,
                        message,
                        "set it to the secret that callers send",
                    );
                }
                secret.map(|secret| Internal::Header { name, secret: secret.clone() })
            }
            _ => {
                let message =
                    "expected either `{ cidrs: […] }` or `{ header: NAME, secret_env: NAME }`";
                self.diagnostics.error(node.at, message);
                None
            }
        }
    }

    /// Declares the attributes, before anything can use them.
    pub(super) fn declare_attributes(&mut self, node: &Node) {
        for entry in section(node, "attributes", ATTRIBUTES_MAX, self.diagnostics) {
            self.check_attribute_name(&entry.key, entry.key_at);
            // A malformed attribute is declared too, so that its uses are no errors.
            let given = Attribute { source: Source::Given, fold: false };
            let attribute = self.attribute(&entry.value).unwrap_or(given);
            self.attribute_names.add(&entry.key);
            self.attributes.push(attribute);
            self.declared_attributes += 1;
        }
    }

    pub(super) fn check_attribute_name(&self, name: &str, at: Position) {
        check_name(name, at, "an attribute", self.diagnostics);
        if name.starts_with(|first: char| !first.is_ascii_alphabetic() && first != '_') {
            let message = format!("found `{}` as the name of an attribute", shown(name));
            self.diagnostics.error_with_help(at, message, "it starts with a letter or `_`");
        }
        if name == NETWORK {
            let message = "found `network` as the name of an attribute, but bans have that word";
            self.diagnostics.error(at, message);
        }
        if RESERVED_PARTS.contains(&name) || name.starts_with("header.") {
            self.diagnostics.error(
                at,
                format!(
                    "found `{name}` as the name of an attribute, but `by:` has that word already"
                ),
            );
        }
    }

    fn attribute(&self, node: &Node) -> Option<Attribute> {
        match node.text() {
            Some("given") => return Some(Attribute { source: Source::Given, fold: false }),
            Some(_) => {
                let expected = "`given` or a source such as `{ header: NAME }`";
                let message = format!("found {}, expected {expected}", node.kind());
                self.diagnostics.error(node.at, message);
                return None;
            }
            None => {}
        }
        let fields = Fields::of(node, "an attribute", &ATTRIBUTE_KEYS, self.diagnostics)?;
        let fold = fields.boolean("fold").unwrap_or(false);
        let trusted = fields.boolean("trusted").unwrap_or(false);
        let sources = ["header", "query", "body", "jwt"];
        let named: Vec<_> =
            sources.iter().filter_map(|key| Some((*key, fields.get(key)?))).collect();
        let source = match *named.as_slice() {
            [("header", node)] => {
                Source::Header { name: header_name(node, self.diagnostics)?, trusted }
            }
            [("query", node)] => {
                Source::Query(text(node, "a query parameter", self.diagnostics)?.to_owned())
            }
            [("body", node)] => Source::Body(self.json_pointer(node)?),
            [("jwt", node)] => Source::Jwt(self.claim(node)?),
            _ if fields.is_misspelt(&sources) => return None,
            _ => {
                let message = "expected exactly one source: `header`, `query`, `body` or `jwt`; \
                               or the word `given`";
                self.diagnostics.error(node.at, message);
                return None;
            }
        };
        if trusted && !matches!(source, Source::Header { .. }) {
            let message = "found `trusted: true`, which only a `header` can have";
            self.diagnostics.error(node.at, message);
        }
        Some(Attribute { source, fold })
    }

    fn json_pointer(&self, node: &Node) -> Option<String> {
        let pointer = text(node, "a JSON pointer such as /email", self.diagnostics)?;
        if !pointer.starts_with('/') {
            self.diagnostics.error(
                node.at,
                format!("found `{pointer}`, expected a JSON pointer such as /{pointer}"),
            );
            return None;
        }
        Some(pointer.to_owned())
    }
}
