//! The `events:` section.

use super::fields::{Fields, Keys, check_name, distinct_texts, entries, text, texts, word};
use super::{Compiler, Scope};
use crate::decision::Outcome;
use crate::policy::diagnostics::{Position, shown};
use crate::policy::document::{Entry, Node};
use crate::policy::model::OperationId;
use crate::policy::protection::{BUILT_IN_EVENTS, Event, EventId, Statuses};

pub(super) const KEYS: Keys =
    Keys { known: &["when", "status", "outcome", "limit", "value"], later: &[] };

const EVENTS_MAX: usize = 1_000;

/// The outcomes that events are made of: all that keep a request out.
const OUTCOMES: [(&str, Outcome); 4] = [
    ("limited", Outcome::Limited),
    ("blocked", Outcome::Blocked),
    ("banned", Outcome::Banned),
    ("challenged", Outcome::Challenged),
];

impl Compiler<'_> {
    /// Declares the events. `limits` are the names of all limits, in their order.
    pub(super) fn events(&mut self, node: &Node, limits: &[&str]) {
        let written = entries(node, "`events`", self.diagnostics).unwrap_or_default();
        if written.len() > EVENTS_MAX {
            self.diagnostics.error(node.at, format!("found more than {EVENTS_MAX} events"));
            return;
        }
        for entry in written {
            check_name(&entry.key, entry.key_at, "an event", self.diagnostics);
            if BUILT_IN_EVENTS.contains(&entry.key.as_str()) {
                let message = format!("found an event called `{}`, which is built in", entry.key);
                self.diagnostics.error(entry.key_at, message);
                continue;
            }
            // One that is not well-formed is declared all the same, so that its uses are no errors.
            let event = self.event(entry, limits).unwrap_or_default();
            self.protection.event_names.add(&entry.key);
            self.protection.events.push(event);
        }
    }

    fn event(&mut self, entry: &Entry, limits: &[&str]) -> Option<Event> {
        let what = format!("the event `{}`", shown(&entry.key));
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let when = fields.get("when").map(|node| self.when(node)).unwrap_or_default();
        let statuses = fields.get("status").map(|node| self.statuses(node)).unwrap_or_default();
        let outcome =
            fields.get("outcome").and_then(|node| word(node, &OUTCOMES, self.diagnostics));
        let of_limits = fields.get("limit").map(|node| self.limit_places(node, limits));
        let scope = Scope::of(when.operations.as_deref());
        let value = fields.get("value").and_then(|node| {
            let name = text(node, "an attribute", self.diagnostics)?;
            self.attribute_id(name, node.at, &scope, &[])
        });
        self.check_event(&fields, outcome);
        Some(Event { when, statuses, outcome, limits: of_limits, value })
    }

    /// Reports keys that mean nothing beside each other.
    fn check_event(&mut self, fields: &Fields<'_>, outcome: Option<Outcome>) {
        let status = fields.get("status").is_some();
        if let Some(entry) = fields.entry("outcome").filter(|_| status) {
            let message = "found `outcome` beside `status`, expected one of them";
            let help = "write two events: a penalty may count both";
            self.diagnostics.error_with_help(entry.key_at, message, help);
        }
        let seen = status || fields.get("outcome").is_some();
        if let Some(entry) = fields.entry("when").filter(|_| !seen) {
            let message = "found `when` on an event that is only reported";
            let help = "add `status:` or `outcome:`, or leave `when` to whoever reports it";
            if !fields.is_misspelt(&["status", "outcome"]) {
                self.diagnostics.error_with_help(entry.key_at, message, help);
            }
        }
        let of_limits = matches!(outcome, Some(Outcome::Limited | Outcome::Challenged));
        if let Some(entry) = fields.entry("limit").filter(|_| !of_limits) {
            let message = "found `limit`, expected it beside `outcome: limited` or `challenged`";
            self.diagnostics.error(entry.key_at, message);
        }
    }

    /// `401`, `2xx`, or a list of them.
    fn statuses(&mut self, node: &Node) -> Vec<Statuses> {
        let expected = "a status such as 401 or 2xx";
        let found = texts(node, expected, self.diagnostics);
        let statuses = |(text, at): (&str, Position)| {
            let statuses = Statuses::parse(text);
            if statuses.is_none() {
                self.diagnostics.error(at, format!("found `{}`, expected {expected}", shown(text)));
            }
            statuses
        };
        found.into_iter().filter_map(statuses).collect()
    }

    /// The places of limits in the policy.
    fn limit_places(&mut self, node: &Node, limits: &[&str]) -> Vec<u16> {
        let found = distinct_texts(node, "the name of a limit", self.diagnostics);
        let place = |(name, at): (&str, Position)| {
            let place = limits.iter().position(|limit| *limit == name);
            if place.is_none() {
                let message = format!("found `{}`, which is not a limit", shown(name));
                self.diagnostics.unknown_word(at, message, name, limits.iter().copied());
            }
            place.and_then(|place| u16::try_from(place).ok())
        };
        found.into_iter().filter_map(place).collect()
    }

    /// One event, or a list of them.
    pub(super) fn event_ids(&mut self, node: &Node) -> Vec<EventId> {
        let found = distinct_texts(node, "the name of an event", self.diagnostics);
        found.into_iter().filter_map(|(name, at)| self.event_id(name, at)).collect()
    }

    /// An event that is built in, or declared.
    pub(super) fn event_id(&mut self, name: &str, at: Position) -> Option<EventId> {
        let id = self.protection.event_names.id(name);
        if id.is_none() {
            let message = format!("found `{}`, which is not a declared event", shown(name));
            let names = self.protection.event_names.iter();
            self.diagnostics.unknown_word(at, message, name, names);
        }
        id.and_then(|id| EventId::try_from(id).ok())
    }

    /// The operations in whose requests events are seen: what these capture, a key may use.
    pub(super) fn operations_of(&self, events: &[EventId]) -> Vec<OperationId> {
        let events = events.iter().filter_map(|id| self.protection.events.get(usize::from(*id)));
        events.flat_map(|event| event.when.operations.iter().flatten().copied()).collect()
    }
}

impl Statuses {
    /// `401` or `4xx`.
    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| -> Option<u16> {
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        };
        match text.strip_suffix("xx").map(number) {
            Some(hundreds) => {
                let first = hundreds.filter(|hundreds| (1..=5).contains(hundreds))? * 100;
                Some(Self { first, last: first + 99 })
            }
            None => {
                let status = number(text).filter(|status| (100..600).contains(status))?;
                Some(Self { first: status, last: status })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_number_or_a_whole_hundred() {
        assert_eq!(Statuses::parse("401"), Some(Statuses { first: 401, last: 401 }));
        assert_eq!(Statuses::parse("2xx"), Some(Statuses { first: 200, last: 299 }));
        for wrong in ["xx", "+2xx", "0xx", "6xx", "22xx", "99999xx", "99", "600", "4x", "+401", ""]
        {
            assert_eq!(Statuses::parse(wrong), None, "{wrong}");
        }
    }
}
