//! The `factors:` section.

use super::Compiler;
use super::fields::{Fields, Keys, check_name, declared_id, percentage_ppm, section, text, texts};
use super::penalties::require;
use super::ratios::PERCENT_MAX;
use crate::policy::diagnostics::{Position, shown};
use crate::policy::document::{Entry, Node};
use crate::policy::model::Part;
use crate::policy::protection::{
    Behaviour, Comparison, Factor, FactorKind, LOAD_LOWER_PPM, PPM, Ratio, RatioCondition,
    percent_ppm,
};
use crate::units::{Amount, parse_duration};

pub(super) const KEYS: Keys = Keys::new("when times load_above by good step range");

const FACTORS_MAX: usize = 100;
/// The largest factor: a thousand.
const TIMES_PPM_MAX: u64 = 1_000 * PPM;

/// The keys of a factor that moves.
const MOVING: [&str; 4] = ["by", "good", "step", "range"];

/// How far, and how often.
struct Pace {
    step_ppm: u64,
    every_us: u64,
}

impl Compiler<'_> {
    pub(super) fn factors(&mut self, node: &Node, ratios: &[Ratio]) -> Vec<Factor> {
        let factors = section(node, "factors", FACTORS_MAX, self.diagnostics);
        factors.iter().filter_map(|entry| self.factor(entry, ratios)).collect()
    }

    fn factor(&mut self, entry: &Entry, ratios: &[Ratio]) -> Option<Factor> {
        check_name(&entry.key, entry.key_at, "a factor", self.diagnostics);
        let what = format!("the factor `{}`", shown(&entry.key));
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let when = fields.get("when").map(|node| self.when(node)).unwrap_or_default();
        let moves = MOVING.iter().any(|key| fields.get(key).is_some());
        let kind = if moves || fields.is_misspelt(&MOVING) {
            self.behaviour(&fields, entry, ratios).map(FactorKind::Behaviour)
        } else {
            self.steady(&fields, entry)
        };
        Some(Factor { name: entry.key.clone(), when, kind: kind? })
    }

    /// A fixed factor, or a factor of the load.
    fn steady(&self, fields: &Fields<'_>, entry: &Entry) -> Option<FactorKind> {
        let expected = "`times: 0.5`, or `by`, `good`, `step` and `range`";
        let times = require(fields, entry, "times", expected);
        let times_ppm = times.and_then(|node| self.times_ppm(node));
        let load = fields.get("load_above");
        let above_ppm = load.and_then(|node| self.load_ppm(node));
        match load {
            Some(_) => Some(FactorKind::Load { above_ppm: above_ppm?, times_ppm: times_ppm? }),
            None => Some(FactorKind::Fixed { times_ppm: times_ppm? }),
        }
    }

    /// A load that a host can exceed, and fall ten points below again.
    fn load_ppm(&self, node: &Node) -> Option<u64> {
        let above_ppm = percentage_ppm(node, 100, self.diagnostics)?;
        if above_ppm <= LOAD_LOWER_PPM {
            let message = "found a load that no host is ten points below, so that it never ends";
            let help = "write a load above 10%, such as 80%";
            self.diagnostics.error_with_help(node.at, message, help);
            return None;
        }
        if above_ppm >= PPM {
            let message = "no load is above 100%: this factor never holds";
            self.diagnostics.warn(node.at, message, "write a lower one, such as 80%");
        }
        Some(above_ppm)
    }

    fn behaviour(
        &mut self,
        fields: &Fields<'_>,
        entry: &Entry,
        ratios: &[Ratio],
    ) -> Option<Behaviour> {
        for key in ["times", "load_above"] {
            if let Some(other) = fields.entry(key) {
                let message = format!("found `{key}` on a factor that moves by itself");
                self.diagnostics.error_with_help(other.key_at, message, "write two factors");
            }
        }
        let by = self.subject_parts(fields, entry, &[]);
        let expected = "conditions such as `cancel-rate < 90%`";
        let good = require(fields, entry, "good", expected);
        let good = good.map(|node| self.conditions(node, &by, ratios));
        let pace = require(fields, entry, "step", "a pace such as `0.1 every 1h`");
        let pace = pace.and_then(|node| self.pace(node));
        let range = require(fields, entry, "range", "two numbers such as `0.5..2`");
        let range = range.and_then(|node| self.range(node));
        let (Pace { step_ppm, every_us }, (lowest_ppm, highest_ppm)) = pace.zip(range)?;
        Some(Behaviour { by, good: good?, step_ppm, every_us, lowest_ppm, highest_ppm })
    }

    fn times_ppm(&self, node: &Node) -> Option<u64> {
        let expected = "a number above 0 and up to 1000, such as 0.5";
        let times = node.text().and_then(times_ppm);
        if times.is_none() {
            let message = format!("found {}, expected {expected}", node.kind());
            self.diagnostics.error(node.at, message);
        }
        times
    }

    /// `0.1 every 1h`
    fn pace(&self, node: &Node) -> Option<Pace> {
        let text = text(node, "a pace such as `0.1 every 1h`", self.diagnostics)?;
        let pace = text.split_once(" every ").and_then(|(step, every)| {
            let every_us = parse_duration(every).ok().filter(|us| *us > 0)?;
            Some(Pace { step_ppm: times_ppm(step)?, every_us })
        });
        if pace.is_none() {
            let message =
                format!("found `{}`, expected a pace such as `0.1 every 1h`", shown(text));
            self.diagnostics.error(node.at, message);
        }
        pace
    }

    /// `0.5..2`: everyone starts at 1, which is within it.
    fn range(&self, node: &Node) -> Option<(u64, u64)> {
        let text = text(node, "two numbers such as `0.5..2`", self.diagnostics)?;
        let range = text
            .split_once("..")
            .and_then(|(lowest, highest)| Some((times_ppm(lowest)?, times_ppm(highest)?)));
        let Some((lowest, highest)) = range else {
            let message = format!("found `{}`, expected a range such as `0.5..2`", shown(text));
            self.diagnostics.error(node.at, message);
            return None;
        };
        if !(lowest..=highest).contains(&PPM) {
            let message = format!("found `{}`, expected a range around 1", shown(text));
            self.diagnostics.error_with_help(node.at, message, "everyone starts at 1");
            return None;
        }
        Some((lowest, highest))
    }

    fn conditions(&self, node: &Node, by: &[Part], ratios: &[Ratio]) -> Vec<RatioCondition> {
        let mut conditions = Vec::new();
        let expected = "a condition such as `cancel-rate < 90%`";
        for (text, at) in texts(node, expected, self.diagnostics) {
            let Some(condition) = self.condition(text, at) else { continue };
            let name = text.split_whitespace().next().unwrap_or_default();
            let ratio = ratios.iter().find(|ratio| ratio.name == name);
            let known = |ratio: &&Ratio| !ratio.by.is_empty() && !by.is_empty();
            if let Some(ratio) = ratio.filter(known).filter(|ratio| ratio.by != by) {
                let message =
                    format!("the ratio `{}` does not count by what this factor does", ratio.name);
                self.diagnostics.error_with_help(at, message, "give both the same `by`");
            }
            conditions.push(condition);
        }
        conditions
    }

    /// `cancel-rate < 90%`
    fn condition(&self, text: &str, at: Position) -> Option<RatioCondition> {
        let mut words = text.split_whitespace();
        let (name, sign, share) = (words.next(), words.next(), words.next());
        let comparison = match sign {
            Some("<") => Some(Comparison::Below),
            Some("<=") => Some(Comparison::AtMost),
            Some(">") => Some(Comparison::Above),
            Some(">=") => Some(Comparison::AtLeast),
            _ => None,
        };
        let share = share.and_then(|share| percent_ppm(share, PERCENT_MAX));
        let whole = words.next().is_none();
        let (Some(name), Some(comparison), Some(share_ppm), true) =
            (name, comparison, share, whole)
        else {
            let message = format!("found `{}`", shown(text));
            let help = "write a ratio, `<`, `<=`, `>` or `>=`, and a share: `cancel-rate < 90%`";
            self.diagnostics.error_with_help(at, message, help);
            return None;
        };
        let otherwise = "which is not a ratio";
        let ratio = declared_id(&self.ratio_names, name, at, otherwise, self.diagnostics)?;
        Some(RatioCondition { ratio: usize::try_from(ratio).ok()?, comparison, share_ppm })
    }
}

/// A factor, in millionths.
fn times_ppm(text: &str) -> Option<u64> {
    let times = Amount::parse(text).ok()?.micros();
    (1..=TIMES_PPM_MAX).contains(&times).then_some(times)
}
