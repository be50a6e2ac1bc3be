//! The `events:` section.

use super::fields::{Fields, Keys, check_name, declared_id, distinct_texts, parsed_texts, section};
use super::{Compiler, Scope};
use crate::decision::Outcome;
use crate::policy::diagnostics::{Position, shown};
use crate::policy::document::{Entry, Node};
use crate::policy::model::OperationId;
use crate::policy::names::Names;
use crate::policy::protection::{BUILT_IN_EVENTS, Event, EventId, Statuses};

pub(super) const KEYS: Keys = Keys::new("when status outcome limit value");

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
    pub(super) fn events(&mut self, node: &Node, limits: &Names) {
        for entry in section(node, "events", EVENTS_MAX, self.diagnostics) {
            check_name(&entry.key, entry.key_at, "an event", self.diagnostics);
            if BUILT_IN_EVENTS.contains(&entry.key.as_str()) {
                let message = format!("found an event called `{}`, which is built in", entry.key);
                self.diagnostics.error(entry.key_at, message);
                continue;
            }
            // A malformed event is declared too, so that its uses are no errors.
            let event = self.event(entry, limits).unwrap_or_default();
            self.protection.event_names.add(&entry.key);
            self.protection.events.push(event);
        }
    }

    fn event(&mut self, entry: &Entry, limits: &Names) -> Option<Event> {
        let what = format!("the event `{}`", shown(&entry.key));
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let when = fields.get("when").map(|node| self.when(node)).unwrap_or_default();
        let statuses = fields.get("status").map(|node| self.statuses(node)).unwrap_or_default();
        let outcome = fields.word("outcome", &OUTCOMES);
        let of_limits = fields.get("limit").map(|node| self.limit_indices(node, limits));
        let scope = Scope::of(when.operations.as_deref());
        let value = fields.get("value").and_then(|node| {
            let name = fields.text("value", "an attribute")?;
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
    fn statuses(&self, node: &Node) -> Vec<Statuses> {
        let expected = "a status such as 401 or 2xx";
        let parse = |text: &str| {
            let error = || format!("found `{}`, expected {expected}", shown(text));
            Statuses::parse(text).ok_or_else(error)
        };
        parsed_texts(node, expected, parse, self.diagnostics)
    }

    /// The indices of limits in the policy.
    fn limit_indices(&self, node: &Node, limits: &Names) -> Vec<u16> {
        let names = distinct_texts(node, "the name of a limit", self.diagnostics);
        let index = |(name, at): (&str, Position)| {
            let id = declared_id(limits, name, at, "which is not a limit", self.diagnostics)?;
            u16::try_from(id).ok()
        };
        names.into_iter().filter_map(index).collect()
    }

    /// One event, or a list of them.
    pub(super) fn event_ids(&self, node: &Node) -> Vec<EventId> {
        let names = distinct_texts(node, "the name of an event", self.diagnostics);
        names.into_iter().filter_map(|(name, at)| self.event_id(name, at)).collect()
    }

    /// An event that is built in, or declared.
    pub(super) fn event_id(&self, name: &str, at: Position) -> Option<EventId> {
        let (names, otherwise) = (&self.protection.event_names, "which is not a declared event");
        let id = declared_id(names, name, at, otherwise, self.diagnostics)?;
        EventId::try_from(id).ok()
    }

    /// The operations whose requests make these events. A key may use what they capture.
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
