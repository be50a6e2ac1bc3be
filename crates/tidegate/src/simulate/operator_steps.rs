//! Steps of applications and operators: reports of events, the load, and bans.

use std::time::Duration;

use super::request;
use crate::limiter::NewMark;
use crate::policy::compile::fields::{Fields, Keys, entries, parsed, text};
use crate::policy::diagnostics::{Reporter, shown};
use crate::policy::document::{Entry, Node, Value};
use crate::policy::overlay::{Place, lay_over};
use crate::protection::events::Report;
use crate::protection::marks::Subject;
use crate::units::{Amount, parse_exact_duration};

/// Those of the admin API.
const BAN_KEYS: Keys = Keys::new("key for permanent reason policy");

/// The keys of a report that no request has.
const EVENT_KEYS: [&str; 2] = ["event", "value"];

/// Reads a report, which is laid over the test's request.
pub(super) fn read_report(
    node: &Node,
    base: &Node,
    diagnostics: &Reporter,
) -> Option<Report<'static>> {
    let written = entries(node, "`report`", diagnostics)?;
    let (of_event, of_request): (Vec<Entry>, Vec<Entry>) =
        written.iter().cloned().partition(|entry| EVENT_KEYS.contains(&entry.key.as_str()));
    let of_event = Node { at: node.at, value: Value::Map(of_event) };
    let of_request = Node { at: node.at, value: Value::Map(of_request) };
    request::check_keys(&of_request, diagnostics);
    let mut request = base.clone();
    lay_over(&mut request, &of_request, Place::Plain);
    let request = request::read(&request, diagnostics);
    let Some(event) = of_event.get("event") else {
        diagnostics.error(node.at, "found no `event` in a report, expected its name");
        return None;
    };
    let event = text(event, "the name of an event", diagnostics)?.to_owned();
    let mut report = Report::new(event, request);
    if let Some(node) = of_event.get("value") {
        let value = text(node, "a value", diagnostics)?;
        report.value = Some(parsed(Amount::parse(value), node.at, diagnostics)?);
    }
    Some(report)
}

/// Reads `0.9` as millionths.
pub(super) fn read_load_ppm(node: &Node, diagnostics: &Reporter) -> Option<u64> {
    let load = node.text().and_then(|text| Amount::parse(text).ok());
    let load = load.filter(|load| *load <= Amount::ONE);
    if load.is_none() {
        let message = format!("found {}, expected a load from 0 to 1, such as 0.9", node.kind());
        diagnostics.error(node.at, message);
    }
    load.map(Amount::micros)
}

/// Reads `{ key: { user: u1 }, for: 1h, reason: … }`, as the admin API takes it.
pub(super) fn read_ban(node: &Node, diagnostics: &Reporter) -> Option<NewMark> {
    let fields = Fields::of(node, "`ban`", &BAN_KEYS, diagnostics)?;
    let missing = "found no `key` in a ban, expected whom it is of, as `{ user: u1 }`";
    let key = fields.require("key", node.at, missing)?;
    let mut parts = Vec::new();
    for Entry { key, value, .. } in entries(key, "`key`", diagnostics)? {
        let found = text(value, "a value", diagnostics)?;
        let report =
            |detail| diagnostics.error(value.at, format!("found `{}`, {detail}", shown(found)));
        let part = Subject::parse_part(key, found).map_err(report).ok()?;
        parts.extend(part.parts().map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    if parts.is_empty() {
        diagnostics.error(key.at, "found an empty key, expected whom it is of");
        return None;
    }
    let mut ban = NewMark::new(Subject::of_parts(parts));
    ban.reason = fields.owned_text("reason", "a reason").unwrap_or_default();
    ban.policy = fields.owned_text("policy", "the name of a policy");
    match (fields.get("for"), fields.boolean("permanent").unwrap_or(false)) {
        (Some(node), false) => {
            let for_us = read_duration_us(node, "a duration such as 1h", diagnostics)?;
            ban.lasts = Some(Duration::from_micros(for_us));
        }
        (None, true) => {}
        (None, false) => {
            let message = "found no `for` in a ban, expected how long";
            let help = "say `permanent: true` for a ban without an end";
            diagnostics.error_with_help(node.at, message, help);
            return None;
        }
        (Some(node), true) => {
            diagnostics.error(node.at, "found `for` beside `permanent`, expected one of them");
            return None;
        }
    }
    Some(ban)
}

/// Reads a duration that need not be a whole number of its unit.
pub(super) fn read_duration_us(node: &Node, expected: &str, diagnostics: &Reporter) -> Option<u64> {
    parsed(parse_exact_duration(text(node, expected, diagnostics)?), node.at, diagnostics)
}
