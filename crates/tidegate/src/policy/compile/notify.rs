//! The `notify:` section: where notices go.

use super::fields::{Fields, Keys, check_name, entries, text};
use super::penalties::require;
use super::{Compiler, RESERVED_PARTS};
use crate::policy::diagnostics::shown;
use crate::policy::document::{Entry, Node};
use crate::policy::message::MessageTemplate;
use crate::policy::protection::Webhook;
use crate::response::{Piece, parse_text};

pub(super) const KEYS: Keys = Keys::new("webhook secret_env identities body");

const WEBHOOKS_MAX: usize = 100;
const URL_BYTES_MAX: usize = 2_048;

impl Compiler<'_> {
    pub(super) fn notify(&mut self, node: &Node) -> Vec<Webhook> {
        let written = entries(node, "`notify`", self.diagnostics).unwrap_or_default();
        if written.len() > WEBHOOKS_MAX {
            self.diagnostics.error(node.at, format!("found more than {WEBHOOKS_MAX} webhooks"));
            return Vec::new();
        }
        written.iter().filter_map(|entry| self.webhook(entry)).collect()
    }

    fn webhook(&mut self, entry: &Entry) -> Option<Webhook> {
        check_name(&entry.key, entry.key_at, "a webhook", self.diagnostics);
        self.webhook_names.add(&entry.key);
        let what = format!("`{}` under `notify`", shown(&entry.key));
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let expected = "the address that notices are sent to";
        let url = require(&fields, entry, "webhook", expected);
        let url = url.and_then(|node| self.web_address(node));
        let secret = fields.get("secret_env").and_then(|node| self.secret(node));
        let identities = fields.boolean("identities").unwrap_or(false);
        let body = fields.get("body").and_then(|node| self.message_template(node));
        Some(Webhook { name: entry.key.clone(), url: url?, secret, identities, body })
    }

    fn message_template(&self, node: &Node) -> Option<MessageTemplate> {
        self.body_of(node, &|text, node| self.message_pieces(text, node)).map(MessageTemplate)
    }

    /// The pieces of a text with placeholders: a word of every message, or a part that a key may have.
    fn message_pieces(&self, text: &str, node: &Node) -> Option<Vec<Piece<String>>> {
        let words = || {
            let fixed = MessageTemplate::WORDS.into_iter().chain(RESERVED_PARTS);
            fixed.chain(self.attribute_names.iter())
        };
        let named = |word: &str| words().find(|known| *known == word).map(str::to_owned);
        let report = |found: &str| {
            let message = format!("found the placeholder `{{{}}}`", shown(found));
            self.diagnostics.unknown_word(node.at, message, found, words());
        };
        parse_text(text, named).map_err(report).ok()
    }

    /// An HTTP address. The error does not show the address, which may hold secrets.
    pub(super) fn web_address(&self, node: &Node) -> Option<String> {
        let expected = "an address such as https://example.org/hook";
        let Some(address) = node.text().filter(|text| !text.is_empty() && !node.is_null()) else {
            self.diagnostics.error(node.at, format!("found {}, expected {expected}", node.kind()));
            return None;
        };
        let rest = ["https://", "http://"].iter().find_map(|scheme| address.strip_prefix(scheme));
        let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        let plain = address.len() <= URL_BYTES_MAX && address.bytes().all(|b| b.is_ascii_graphic());
        if !plain || host.is_none_or(|host| host.is_empty() || host.contains('@')) {
            self.diagnostics.error_with_help(
                node.at,
                format!("found no such address, expected {expected}"),
                "with http or https, a host, and no user or password",
            );
            return None;
        }
        Some(address.to_owned())
    }

    /// The value of the environment variable that is named here.
    pub(super) fn secret(&self, node: &Node) -> Option<String> {
        let variable = text(node, "the name of an environment variable", self.diagnostics)?;
        let secret = self.env.get(variable).filter(|secret| !secret.is_empty()).cloned();
        if secret.is_none() {
            let message = format!("the environment variable `{}` is not set", shown(variable));
            self.diagnostics.error_with_help(node.at, message, "set it to the secret");
        }
        secret
    }
}
