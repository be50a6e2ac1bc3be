//! The requests of policy tests: the fields of the decision API, `peer` and `claims` besides.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::identity::Claims;
use crate::policy::compile::fields::{Fields, Keys, entries, one_or_many, parsed, text};
use crate::policy::diagnostics::Reporter;
use crate::policy::document::{Entry, Node, Scalar, Value};
use crate::request::Request;
use crate::units::Amount;

const KEYS: Keys = Keys::new(
    "method path ip peer user tier internal country operation attributes headers claims body \
     cost reserve pass",
);

/// Stands for the number of the repetition.
pub(super) const NUMBER: &str = "{n}";

/// Reports the keys that no request has. A key that a step deletes must be one of a request too.
pub(super) fn check_keys(node: &Node, diagnostics: &Reporter) {
    let _ = Fields::of(node, "a request", &KEYS, diagnostics);
}

/// Reads a request.
pub(super) fn read(node: &Node, diagnostics: &Reporter) -> Request<'static> {
    let mut request = Request::default();
    let Some(fields) = Fields::of(node, "a request", &KEYS, diagnostics) else { return request };
    let text_of = |key: &str| {
        let node = fields.get(key)?;
        text(node, &format!("a text for `{key}`"), diagnostics).map(|text| text.to_owned().into())
    };
    request.method = text_of("method");
    request.path = text_of("path");
    request.user = text_of("user");
    request.tier = text_of("tier");
    request.country = text_of("country");
    request.operation = text_of("operation");
    request.ip = address_of(&fields, "ip", diagnostics);
    request.peer = address_of(&fields, "peer", diagnostics);
    request.internal = fields.boolean("internal").unwrap_or(false);
    request.reserve = fields.boolean("reserve").unwrap_or(false);
    request.pass = fields.boolean("pass").unwrap_or(false);
    if let (Some(node), Some(cost)) = (fields.get("cost"), text_of("cost")) {
        request.cost = parsed(Amount::parse(&cost), node.at, diagnostics);
    }
    request.attributes = pairs_of(&fields, "attributes", diagnostics);
    request.headers = pairs_of(&fields, "headers", diagnostics);
    request.claims = fields.get("claims").and_then(|node| claims(node, diagnostics));
    request.body = fields.get("body").map(|node| body(node).into_bytes().into());
    request.is_json_body = fields.get("body").is_some_and(|node| node.text().is_none());
    request
}

/// An address, or what was found instead.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("found `{text}`, expected an IP address"))
}

fn address_of(fields: &Fields<'_>, key: &str, diagnostics: &Reporter) -> Option<IpAddr> {
    let node = fields.get(key)?;
    let text = text(node, "an IP address", diagnostics)?;
    address(text).map_err(|fault| diagnostics.error(node.at, fault)).ok()
}

/// The claims of a token that counts as verified.
fn claims(node: &Node, diagnostics: &Reporter) -> Option<Claims> {
    entries(node, "`claims`", diagnostics)?;
    let claims = Claims::parse(&node.to_json());
    claims.map_err(|error| diagnostics.error(node.at, error.to_string())).ok()
}

/// A name and a text.
type Pair = (Cow<'static, str>, Cow<'static, str>);

/// A map of names to texts; a list of texts is a header with several lines.
fn pairs_of(fields: &Fields<'_>, key: &str, diagnostics: &Reporter) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    let written = fields.get(key).and_then(|node| entries(node, &format!("`{key}`"), diagnostics));
    for Entry { key, value, .. } in written.unwrap_or_default() {
        for line in one_or_many(value) {
            match line.text() {
                Some(text) => pairs.push((key.clone().into(), text.to_owned().into())),
                None => {
                    diagnostics.error(line.at, format!("found {}, expected a text", line.kind()));
                }
            }
        }
    }
    pairs
}

/// A document with the repetition in place of each `{n}`.
pub(super) fn numbered(node: &Node, repetition: u32) -> Node {
    let value = match &node.value {
        Value::Scalar(Scalar { text, quoted }) => {
            let text = text.replace(NUMBER, &repetition.to_string());
            Value::Scalar(Scalar { text, quoted: *quoted })
        }
        Value::List(nodes) => {
            Value::List(nodes.iter().map(|node| numbered(node, repetition)).collect())
        }
        Value::Map(entries) => {
            let entry = |entry: &Entry| Entry {
                key: entry.key.replace(NUMBER, &repetition.to_string()),
                key_at: entry.key_at,
                value: numbered(&entry.value, repetition),
            };
            Value::Map(entries.iter().map(entry).collect())
        }
    };
    Node { at: node.at, value }
}

/// Whether a document differs from one repetition to the next.
pub(super) fn is_numbered(node: &Node) -> bool {
    match &node.value {
        Value::Scalar(scalar) => scalar.text.contains(NUMBER),
        Value::List(nodes) => nodes.iter().any(is_numbered),
        Value::Map(entries) => {
            entries.iter().any(|entry| entry.key.contains(NUMBER) || is_numbered(&entry.value))
        }
    }
}

/// A text is sent as it is, of the type that the headers say; anything else as JSON.
fn body(node: &Node) -> String {
    match &node.value {
        Value::Scalar(scalar) => scalar.text.clone(),
        Value::List(_) | Value::Map(_) => node.to_json(),
    }
}
