//! The `penalties:` section: ladders and their steps.

use super::fields::{
    Fields, Keys, check_name, declared_id, duration_us, entries, section, text, texts,
};
use super::limits::MISSING_WORDS;
use super::{Compiler, Scope};
use crate::policy::diagnostics::{Position, shown};
use crate::policy::document::{Entry, Node, Value};
use crate::policy::model::Part;
use crate::policy::protection::{Ban, BanBy, EventId, Penalty, Step};
use crate::units::SECOND_US;

pub(super) const KEYS: Keys = Keys::new("event by within forgive ladder missing key");
pub(super) const STEP_KEYS: Keys = Keys::new("allow delay warn challenge ban flag notify");
/// Grace is a matter of ladders alone.
pub(super) const THEN_KEYS: Keys = Keys::new("delay warn challenge ban flag notify");
pub(super) const BAN_KEYS: Keys = Keys::new("for by ipv4_prefix ipv6_prefix");

const PENALTIES_MAX: usize = 100;
const STEPS_MAX: usize = 100;
/// The highest count of a step: each event up to it is remembered.
const COUNT_MAX: u32 = 10_000;
/// The longest that an answer may be held.
const DELAY_US_MAX: u64 = 600 * SECOND_US;
const WARNING_BYTES_MAX: usize = 200;

/// The network of an address, where a ban does not say it.
const NETWORK: BanBy = BanBy::Network { v4_bits: 24, v6_bits: 64 };

impl Compiler<'_> {
    pub(super) fn penalties(&mut self, node: &Node) -> Vec<Penalty> {
        let penalties = section(node, "penalties", PENALTIES_MAX, self.diagnostics);
        penalties.iter().filter_map(|entry| self.penalty(entry)).collect()
    }

    fn penalty(&mut self, entry: &Entry) -> Option<Penalty> {
        check_name(&entry.key, entry.key_at, "a penalty", self.diagnostics);
        let what = format!("the penalty `{}`", shown(&entry.key));
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let events = require(&fields, entry, "event", "the name of an event");
        let events = events.map(|node| self.event_ids(node)).unwrap_or_default();
        let by = self.subject_parts(&fields, entry, &events);
        let key = fields.get("key").and_then(|node| {
            let operations = self.operations_of(&events);
            self.template(node, &by, &Scope { operations: &operations })
        });
        let within = require(&fields, entry, "within", "a span such as `15min`");
        let within_us = within.and_then(|node| duration_us(node, self.diagnostics));
        let forgive = fields.get("forgive").map(|node| self.forgiven_events(node, &events));
        let ladder = require(&fields, entry, "ladder", "steps such as `5: { ban: 15min }`");
        let ladder = ladder.map(|node| self.ladder(node));
        Some(Penalty {
            name: entry.key.clone(),
            events,
            by,
            within_us: within_us?,
            forgive: forgive.unwrap_or_default(),
            ladder: ladder?,
            missing: fields.word("missing", &MISSING_WORDS),
            key,
        })
    }

    /// The parts of the subjects whose events are counted: `by`, which may use what the events'
    /// operations capture.
    pub(super) fn subject_parts(
        &mut self,
        fields: &Fields<'_>,
        entry: &Entry,
        events: &[EventId],
    ) -> Vec<Part> {
        let operations = self.operations_of(events);
        let expected = "whom it counts: `ip`, `user`, `client`, an attribute or `global`";
        let node = require(fields, entry, "by", expected);
        node.map(|node| self.parts(node, &Scope { operations: &operations })).unwrap_or_default()
    }

    fn forgiven_events(&self, node: &Node, counted: &[EventId]) -> Vec<EventId> {
        let forgive = self.event_ids(node);
        if let Some(both) = forgive.iter().find(|event| counted.contains(event)) {
            let name = self.protection.event_names.name((*both).into());
            let message = format!("found `{name}`, which this very penalty counts");
            self.diagnostics.error(node.at, message);
        }
        forgive
    }

    fn ladder(&self, node: &Node) -> Vec<Step> {
        let written = entries(node, "`ladder`", self.diagnostics).unwrap_or_default();
        if written.is_empty() && node.entries().is_some() {
            let message = "found an empty ladder, expected steps such as `5: { ban: 15min }`";
            self.diagnostics.error(node.at, message);
        }
        if written.len() > STEPS_MAX {
            self.diagnostics.error(node.at, format!("found more than {STEPS_MAX} steps"));
            return Vec::new();
        }
        let mut ladder: Vec<Step> = Vec::new();
        for entry in written {
            let from = self.count(&entry.key, entry.key_at);
            let step = self.step(&entry.value, "a step", &STEP_KEYS);
            if from.is_some_and(|from| ladder.iter().any(|step| step.from == from)) {
                let message = format!("found the step {} twice", shown(&entry.key));
                self.diagnostics.error(entry.key_at, message);
            }
            ladder.extend(from.zip(step).map(|(from, step)| Step { from, ..step }));
        }
        ladder.sort_by_key(|step| step.from);
        ladder
    }

    fn count(&self, text: &str, at: Position) -> Option<u32> {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let count = text.parse().ok().filter(|count| digits && (1..=COUNT_MAX).contains(count));
        if count.is_none() {
            let message = format!(
                "found the step `{}`, expected a whole number from 1 to {COUNT_MAX}",
                shown(text)
            );
            self.diagnostics.error(at, message);
        }
        count
    }

    /// A step of a ladder, or the `then` of a ratio.
    pub(super) fn step(&self, node: &Node, what: &str, keys: &Keys) -> Option<Step> {
        let fields = Fields::of(node, what, keys, self.diagnostics)?;
        let allow = fields.boolean("allow").unwrap_or(false);
        for key in ["ban", "challenge"] {
            if let Some(entry) = fields.entry(key).filter(|_| allow) {
                let message = format!("found `{key}` beside `allow: true`, expected one of them");
                self.diagnostics.error(entry.key_at, message);
            }
        }
        Some(Step {
            from: 0,
            allow,
            delay_us: fields.get("delay").and_then(|node| self.delay_us(node)).unwrap_or(0),
            warn: fields.get("warn").and_then(|node| self.warning(node)),
            challenge: fields.boolean("challenge").unwrap_or(false),
            ban: fields.get("ban").and_then(|node| self.ban(node)),
            flag: fields.get("flag").and_then(|node| self.flag(node)),
            notify: fields.get("notify").map(|node| self.webhooks(node)).unwrap_or_default(),
        })
    }

    fn delay_us(&self, node: &Node) -> Option<u64> {
        let delay_us = duration_us(node, self.diagnostics)?;
        if delay_us > DELAY_US_MAX {
            let message = format!("found {}, expected at most 10min", node.kind());
            self.diagnostics.error(node.at, message);
            return None;
        }
        Some(delay_us)
    }

    /// A word or a short sentence, for a header.
    fn warning(&self, node: &Node) -> Option<String> {
        let text = text(node, "a warning such as `captcha`", self.diagnostics)?;
        let printable = text.bytes().all(|b| (b' '..=b'~').contains(&b));
        if !printable || text.len() > WARNING_BYTES_MAX {
            let message = format!(
                "found `{}`, expected at most {WARNING_BYTES_MAX} plain letters",
                shown(text)
            );
            self.diagnostics.error_with_help(node.at, message, "it stands in a header");
            return None;
        }
        Some(text.to_owned())
    }

    fn flag(&self, node: &Node) -> Option<String> {
        let name = text(node, "a flag such as `review`", self.diagnostics)?;
        check_name(name, node.at, "a flag", self.diagnostics);
        Some(name.to_owned())
    }

    /// `15min`, or `{ for: 15min, by: network }`.
    fn ban(&self, node: &Node) -> Option<Ban> {
        let Value::Map(_) = node.value else {
            return duration_us(node, self.diagnostics).map(|for_us| Ban { for_us, by: None });
        };
        let fields = Fields::of(node, "a ban", &BAN_KEYS, self.diagnostics)?;
        let message = "found no `for` in a ban, expected a span such as `15min`";
        let span = fields.require("for", node.at, message);
        let for_us = span.and_then(|node| duration_us(node, self.diagnostics));
        let words = [
            ("user", BanBy::User),
            ("client", BanBy::Client),
            ("ip", BanBy::Ip),
            ("network", NETWORK),
        ];
        let by = self.with_prefix_lengths(&fields, fields.word("by", &words));
        Some(Ban { for_us: for_us?, by })
    }

    /// The prefix lengths of a banned network, if the ban has them.
    fn with_prefix_lengths(&self, fields: &Fields<'_>, by: Option<BanBy>) -> Option<BanBy> {
        let ipv4 = fields.integer("ipv4_prefix", 1..=32);
        let ipv6 = fields.integer("ipv6_prefix", 1..=128);
        if let Some(BanBy::Network { v4_bits, v6_bits }) = by {
            let (v4_bits, v6_bits) = (ipv4.unwrap_or(v4_bits), ipv6.unwrap_or(v6_bits));
            return Some(BanBy::Network { v4_bits, v6_bits });
        }
        for key in ["ipv4_prefix", "ipv6_prefix"] {
            if let Some(entry) = fields.entry(key) {
                let message = format!("found `{key}`, expected it beside `by: network`");
                self.diagnostics.error(entry.key_at, message);
            }
        }
        by
    }

    /// The indices of webhooks under `notify`.
    fn webhooks(&self, node: &Node) -> Vec<usize> {
        let index = |(name, at): (&str, Position)| {
            let otherwise = "which `notify` does not have";
            let id = declared_id(&self.webhook_names, name, at, otherwise, self.diagnostics)?;
            usize::try_from(id).ok()
        };
        let names = texts(node, "a name under `notify`", self.diagnostics);
        names.into_iter().filter_map(index).collect()
    }
}

/// The value of a key that an entry must have.
pub(super) fn require<'n>(
    fields: &Fields<'n>,
    entry: &Entry,
    key: &str,
    expected: &str,
) -> Option<&'n Node> {
    let message = format!("found no `{key}` in `{}`, expected {expected}", shown(&entry.key));
    fields.require(key, entry.key_at, message)
}
