//! Steps that are no request: what an application reports, the load, and an operator's ban.

use super::request;
use crate::policy::compile::fields::{Fields, Keys, entries, text, unit};
use crate::policy::diagnostics::Diagnostics;
use crate::policy::document::{Entry, Node, Value};
use crate::policy::overlay::{Place, lay_over};
use crate::protection::events::Report;
use crate::protection::marks::Subject;
use crate::units::{Amount, parse_exact_duration};

const BAN_KEYS: Keys = Keys { known: &["key", "for", "reason"], later: &[] };

/// What an event is told with, beside what a request has.
const OF_EVENTS: [&str; 2] = ["event", "value"];

/// The load is a share of one.
const LOAD_PPM_MAX: u64 = 1_000_000;

/// A ban, as the admin API takes it.
#[derive(Debug)]
pub(super) struct Ban {
    pub(super) subject: Subject,
    /// Without it, until somebody takes it away.
    pub(super) for_us: Option<u64>,
    pub(super) reason: String,
}

/// Reads a report, which is laid over the test's request.
pub(super) fn report(
    node: &Node,
    base: &Node,
    diagnostics: &mut Diagnostics,
) -> Option<Report<'static>> {
    let written = entries(node, "`report`", diagnostics)?;
    let (of_event, of_request): (Vec<Entry>, Vec<Entry>) =
        written.iter().cloned().partition(|entry| OF_EVENTS.contains(&entry.key.as_str()));
    let of_event = Node { at: node.at, value: Value::Map(of_event) };
    let of_request = Node { at: node.at, value: Value::Map(of_request) };
    // A word that no request has is none to delete either.
    let _ = Fields::of(&of_request, "a request", &request::KEYS, diagnostics);
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
        report.value = Some(unit(Amount::parse(value), node.at, diagnostics)?);
    }
    Some(report)
}

/// `0.9`, in millionths.
pub(super) fn load_ppm(node: &Node, diagnostics: &mut Diagnostics) -> Option<u64> {
    let load = node.text().and_then(|text| Amount::parse(text).ok()).map(Amount::micros);
    let load = load.filter(|ppm| *ppm <= LOAD_PPM_MAX);
    if load.is_none() {
        let message = format!("found {}, expected a load from 0 to 1, such as 0.9", node.kind());
        diagnostics.error(node.at, message);
    }
    load
}

/// `{ key: { user: u1 }, for: 1h, reason: … }`
pub(super) fn ban(node: &Node, diagnostics: &mut Diagnostics) -> Option<Ban> {
    let fields = Fields::of(node, "`ban`", &BAN_KEYS, diagnostics)?;
    let Some(key) = fields.get("key") else {
        if !fields.is_misspelt(&["key"]) {
            let message = "found no `key` in a ban, expected whom it is of, as `{ user: u1 }`";
            diagnostics.error(node.at, message);
        }
        return None;
    };
    let mut parts = Vec::new();
    for Entry { key, value, .. } in entries(key, "`key`", diagnostics)? {
        parts.push((key.clone(), text(value, "a value", diagnostics)?.to_owned()));
    }
    if parts.is_empty() {
        diagnostics.error(key.at, "found an empty key, expected whom it is of");
        return None;
    }
    let for_us = match fields.get("for") {
        Some(node) => {
            let text = text(node, "a duration such as 1h", diagnostics)?;
            Some(unit(parse_exact_duration(text), node.at, diagnostics)?)
        }
        None => None,
    };
    let reason = fields.get("reason").and_then(|node| text(node, "a reason", diagnostics));
    let reason = reason.unwrap_or_default().to_owned();
    Some(Ban { subject: Subject::of_parts(parts), for_us, reason })
}
