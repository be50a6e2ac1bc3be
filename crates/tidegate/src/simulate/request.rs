//! The requests of policy tests: the fields of the decision API, `peer` and `claims` besides.

use std::net::IpAddr;

use crate::identity::Claims;
use crate::policy::compile::fields::{Fields, Keys, boolean, entries, text, unit};
use crate::policy::diagnostics::Diagnostics;
use crate::policy::document::{Entry, Node, Scalar, Value};
use crate::request::Request;
use crate::units::Amount;

pub(super) const KEYS: Keys = Keys {
    known: &[
        "method",
        "path",
        "ip",
        "peer",
        "user",
        "tier",
        "internal",
        "country",
        "operation",
        "attributes",
        "headers",
        "claims",
        "body",
        "cost",
        "reserve",
        "pass",
    ],
    later: &[],
};

/// Stands for the number of the repetition.
pub(super) const NUMBER: &str = "{n}";

/// Reads a request.
pub(super) fn read(node: &Node, diagnostics: &mut Diagnostics) -> Request<'static> {
    let mut request = Request::default();
    let Some(fields) = Fields::of(node, "a request", &KEYS, diagnostics) else { return request };
    let mut said = |key: &str| {
        let node = fields.get(key)?;
        text(node, &format!("a text for `{key}`"), diagnostics).map(str::to_owned)
    };
    request.method = said("method").map(Into::into);
    request.path = said("path").map(Into::into);
    request.user = said("user").map(Into::into);
    request.tier = said("tier").map(Into::into);
    request.country = said("country").map(Into::into);
    request.operation = said("operation").map(Into::into);
    let cost = said("cost");
    request.ip = address_of(&fields, "ip", diagnostics);
    request.peer = address_of(&fields, "peer", diagnostics);
    let mut flag =
        |key| fields.get(key).and_then(|node| boolean(node, diagnostics)).unwrap_or(false);
    (request.internal, request.reserve) = (flag("internal"), flag("reserve"));
    request.pass = flag("pass");
    if let (Some(node), Some(cost)) = (fields.get("cost"), cost) {
        request.cost = unit(Amount::parse(&cost), node.at, diagnostics);
    }
    let pairs = |key: &str, diagnostics: &mut Diagnostics| match fields.get(key) {
        Some(node) => texts_of(node, key, diagnostics),
        None => Vec::new(),
    };
    for (name, value) in pairs("attributes", diagnostics) {
        request.attributes.push((name.into(), value.into()));
    }
    for (name, value) in pairs("headers", diagnostics) {
        request.headers.push((name.into(), value.into()));
    }
    request.claims = fields.get("claims").and_then(|node| claims(node, diagnostics));
    request.body = fields.get("body").map(|node| body(node).into_bytes().into());
    request
}

/// An address, or what was found instead.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("found `{text}`, expected an IP address"))
}

fn address_of(fields: &Fields<'_>, key: &str, diagnostics: &mut Diagnostics) -> Option<IpAddr> {
    let node = fields.get(key)?;
    let text = text(node, "an IP address", diagnostics)?;
    address(text).map_err(|fault| diagnostics.error(node.at, fault)).ok()
}

/// The claims of a token that counts as verified.
fn claims(node: &Node, diagnostics: &mut Diagnostics) -> Option<Claims> {
    entries(node, "`claims`", diagnostics)?;
    Claims::parse(&node.to_json())
        .map_err(|error| diagnostics.error(node.at, error.to_string()))
        .ok()
}

/// A map of names to texts; a list of texts is a header with several lines.
fn texts_of(node: &Node, what: &str, diagnostics: &mut Diagnostics) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for Entry { key, value, .. } in
        entries(node, &format!("`{what}`"), diagnostics).unwrap_or_default()
    {
        let lines = match &value.value {
            Value::List(lines) => lines.as_slice(),
            _ => std::slice::from_ref(value),
        };
        for line in lines {
            match line.text() {
                Some(text) => pairs.push((key.clone(), text.to_owned())),
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

/// A text is sent as it is; anything else as JSON.
fn body(node: &Node) -> String {
    match &node.value {
        Value::Scalar(scalar) => scalar.text.clone(),
        Value::List(_) | Value::Map(_) => node.to_json(),
    }
}
