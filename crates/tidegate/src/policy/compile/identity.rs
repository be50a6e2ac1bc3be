//! The `identity:` section, and the attributes it declares.

use super::fields::{Fields, Keys, check_name, header_name, section, text};
use super::{Compiler, NETWORK, RESERVED_PARTS};
use crate::identity::{ForwardingHeader, Networks};
use crate::policy::diagnostics::{Position, shown};
use crate::policy::document::Node;
use crate::policy::model::{
    Attribute, BodyFormat, BodySource, IdentityRules, IdentitySource, Internal, Normal, Source,
};

pub(super) const KEYS: Keys = Keys::new(
    "trusted_proxies forwarded ipv6_prefix user tier default_tier anonymous_tier internal \
     attributes",
);
pub(super) const SOURCE_KEYS: Keys = Keys::new("header jwt");
pub(super) const INTERNAL_KEYS: Keys = Keys::new("cidrs header secret_env");
pub(super) const ATTRIBUTE_KEYS: Keys =
    Keys::new("header cookie query body jwt type fold as count trusted");

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
            let attribute = self.attribute(&entry.value).unwrap_or(Attribute::GIVEN);
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
            Some("given") => return Some(Attribute::GIVEN),
            Some(_) => {
                let expected = "`given` or a source such as `{ header: NAME }`";
                let message = format!("found {}, expected {expected}", node.kind());
                self.diagnostics.error(node.at, message);
                return None;
            }
            None => {}
        }
        let fields = Fields::of(node, "an attribute", &ATTRIBUTE_KEYS, self.diagnostics)?;
        let source = self.source(node, &fields)?;
        let number = fields.word("as", &[("number", Normal::Number)]);
        let fold = fields.boolean("fold").unwrap_or(false);
        let counts = matches!(&source, Source::Body(source) if source.count);
        if number.is_some() && fold {
            let message = "found `fold: true`, which changes nothing of a number";
            self.diagnostics.error(node.at, message);
        }
        if counts && (number.is_some() || fold) {
            let message = "found `count: true` with `as` or `fold`, but a count is a number";
            self.diagnostics.error(node.at, message);
        }
        let folded = if fold { Normal::Folded } else { Normal::AsIs };
        Some(Attribute { source, normal: number.unwrap_or(folded) })
    }

    /// Where an attribute comes from.
    fn source(&self, node: &Node, fields: &Fields<'_>) -> Option<Source> {
        let trusted = fields.boolean("trusted").unwrap_or(false);
        let sources = ["header", "cookie", "query", "body", "jwt"];
        let named: Vec<_> =
            sources.iter().filter_map(|key| Some((*key, fields.get(key)?))).collect();
        let source = match *named.as_slice() {
            [("header", node)] => {
                Source::Header { name: header_name(node, self.diagnostics)?, trusted }
            }
            [("cookie", node)] => Source::Cookie(self.cookie_name(node)?),
            [("query", node)] => {
                Source::Query(text(node, "a query parameter", self.diagnostics)?.to_owned())
            }
            [("body", node)] => Source::Body(self.body_source(node, fields)?),
            [("jwt", node)] => Source::Jwt(self.claim(node)?),
            _ if fields.is_misspelt(&sources) => return None,
            _ => {
                let message = "expected exactly one source: `header`, `cookie`, `query`, `body` or \
                               `jwt`; or the word `given`";
                self.diagnostics.error(node.at, message);
                return None;
            }
        };
        if trusted && !matches!(source, Source::Header { .. }) {
            let message = "found `trusted: true`, which only a `header` can have";
            self.diagnostics.error(node.at, message);
        }
        for key in ["type", "count"] {
            let entry = fields.entry(key).filter(|_| !matches!(source, Source::Body(_)));
            if let Some(entry) = entry {
                let message = format!("found `{key}`, which only a `body` can have");
                self.diagnostics.error(entry.key_at, message);
            }
        }
        Some(source)
    }

    fn body_source(&self, node: &Node, fields: &Fields<'_>) -> Option<BodySource> {
        let formats = [("json", BodyFormat::Json), ("form", BodyFormat::Form)];
        let format = fields.word("type", &formats);
        let count = fields.boolean("count").unwrap_or(false);
        let source = BodySource::new(self.json_pointer(node)?, format, count);
        if format == Some(BodyFormat::Form) && (count || source.field.is_none()) {
            let message = "found `type: form`, but a form has no lists and no pointers of several \
                           steps, only fields such as /email";
            self.diagnostics.error(node.at, message);
        }
        Some(source)
    }

    fn cookie_name(&self, node: &Node) -> Option<String> {
        let name = text(node, "the name of a cookie", self.diagnostics)?;
        if name.is_empty() || name.contains([';', '=', ',', ' ', '\t', '"']) {
            let message = format!("found `{}`, expected the name of a cookie", shown(name));
            self.diagnostics.error(node.at, message);
            return None;
        }
        Some(name.to_owned())
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
