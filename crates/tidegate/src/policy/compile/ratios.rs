//! The `ratios:` section.

use super::Compiler;
use super::fields::{Fields, Keys, check_name, duration_us, section, text};
use super::penalties::{THEN_KEYS, require};
use crate::policy::diagnostics::shown;
use crate::policy::document::{Entry, Node};
use crate::policy::protection::{EventId, Ratio};

pub(super) const KEYS: Keys = Keys::new("of to by within at_least above then");

const RATIOS_MAX: usize = 100;
const AT_LEAST_MAX: u64 = 1_000_000;
/// One event may well have more than the other.
pub(super) const PERCENT_MAX: u64 = 100_000;

impl Compiler<'_> {
    pub(super) fn ratios(&mut self, node: &Node) -> Vec<Ratio> {
        let ratios = section(node, "ratios", RATIOS_MAX, self.diagnostics);
        ratios.iter().filter_map(|entry| self.ratio(entry)).collect()
    }

    fn ratio(&mut self, entry: &Entry) -> Option<Ratio> {
        check_name(&entry.key, entry.key_at, "a ratio", self.diagnostics);
        self.ratio_names.add(&entry.key);
        let what = format!("the ratio `{}`", shown(&entry.key));
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let of = self.one_event(&fields, entry, "of");
        let to = self.one_event(&fields, entry, "to");
        if let Some(node) = fields.get("to").filter(|_| of.is_some() && of == to) {
            self.diagnostics.error(node.at, "found the same event in `of` and `to`");
        }
        let events: Vec<EventId> = of.into_iter().chain(to).collect();
        let by = self.subject_parts(&fields, entry, &events);
        let within = require(&fields, entry, "within", "a span such as `1day`");
        let within_us = within.and_then(|node| duration_us(node, self.diagnostics));
        let at_least = fields.integer("at_least", 1..=AT_LEAST_MAX);
        let above_ppm = fields.percentage_ppm("above", PERCENT_MAX);
        let then = fields.get("then").and_then(|node| self.step(node, "`then`", &THEN_KEYS));
        self.check_consequence(&fields);
        Some(Ratio {
            name: entry.key.clone(),
            of: of?,
            to: to?,
            by,
            within_us: within_us?,
            at_least: at_least.unwrap_or(1),
            above_ppm,
            then,
        })
    }

    fn one_event(&self, fields: &Fields<'_>, entry: &Entry, key: &str) -> Option<EventId> {
        let node = require(fields, entry, key, "the name of an event")?;
        let name = text(node, "the name of an event", self.diagnostics)?;
        self.event_id(name, node.at)
    }

    /// `above` and `then` come together, or not at all.
    fn check_consequence(&mut self, fields: &Fields<'_>) {
        for (one, other, example) in
            [("above", "then", "{ flag: review }"), ("then", "above", "10%")]
        {
            let alone = fields.get(other).is_none() && !fields.is_misspelt(&[other]);
            if let Some(entry) = fields.entry(one).filter(|_| alone) {
                let message = format!("found `{one}` without `{other}`");
                let help = format!("add it, as in `{other}: {example}`");
                self.diagnostics.error_with_help(entry.key_at, message, help);
            }
        }
    }
}
