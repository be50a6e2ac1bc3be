//! The `limits:` section.

use super::fields::{
    Fields, Keys, boolean, check_name, distinct_texts, entries, integer, is_header_name, text,
    unit, word,
};
use super::settings::{self, Audience};
use super::{Compiler, RESERVED_PARTS, Scope};
use crate::policy::diagnostics::{Position, one_of, shown};
use crate::policy::document::{Entry, Node};
use crate::policy::model::{
    Algorithm, AttributeId, Consistency, Cost, Counts, Exceed, Limit, Missing, OnStoreFailure,
    Part, Refusal,
};
use crate::response::Items;
use crate::units::{Amount, SECOND_US, parse_duration};

pub(in crate::policy) const KEYS: Keys = Keys {
    known: &[
        "when",
        "by",
        "token_bucket",
        "sliding_window",
        "sliding_counter",
        "fixed_window",
        "quota",
        "concurrency",
        "total",
        "ceiling",
        "tier_by",
        "lease",
        "cost",
        "value",
        "missing",
        "exceed",
        "shadow",
        "counts",
        "scaled",
        "on_store_failure",
        "consistency",
        "key",
        "message",
        "status",
        "body",
        "describe",
        "publish",
    ],
    later: &["count"],
};
pub(super) const DEFAULTS_KEYS: Keys =
    Keys { known: &["on_store_failure", "consistency", "exceed", "shadow"], later: &[] };

const LIMITS_MAX: usize = 1_000;
/// The longest that a limit may hold a request.
const WAIT_US_MAX: u64 = 3_600 * SECOND_US;
/// The most parts of a `by`.
const PARTS_MAX: usize = 16;

/// What `defaults:` sets for all limits.
#[derive(Clone, Copy)]
struct Defaults {
    on_store_failure: OnStoreFailure,
    consistency: Consistency,
    exceed: Exceed,
    shadow: bool,
}

impl Compiler<'_> {
    pub(super) fn limits(&mut self, fields: &Fields<'_>) -> Vec<Limit> {
        let defaults = self.defaults(fields.get("defaults"));
        let Some(node) = fields.get("limits") else { return Vec::new() };
        let written = entries(node, "`limits`", self.diagnostics).unwrap_or_default();
        if written.len() > LIMITS_MAX {
            self.diagnostics.error(node.at, format!("found more than {LIMITS_MAX} limits"));
            return Vec::new();
        }
        let limits: Vec<Limit> =
            written.iter().filter_map(|entry| self.limit(entry, defaults)).collect();
        self.check_templates(&limits, written);
        self.check_levels(&limits, node.at);
        limits
    }

    fn defaults(&mut self, node: Option<&Node>) -> Defaults {
        let mut defaults = Defaults {
            on_store_failure: OnStoreFailure::Local,
            consistency: Consistency::Exact,
            exceed: Exceed::Reject,
            shadow: false,
        };
        let fields =
            node.and_then(|node| Fields::of(node, "`defaults`", &DEFAULTS_KEYS, self.diagnostics));
        if let Some(fields) = fields {
            defaults = self.overridden(&fields, defaults);
        }
        defaults
    }

    /// What a limit, or `defaults:`, says of the keys that both have.
    fn overridden(&mut self, fields: &Fields<'_>, defaults: Defaults) -> Defaults {
        let consistency = [("exact", Consistency::Exact), ("leased", Consistency::Leased)];
        let consistency =
            fields.get("consistency").and_then(|node| word(node, &consistency, self.diagnostics));
        let failure = [
            ("local", OnStoreFailure::Local),
            ("allow", OnStoreFailure::Allow),
            ("deny", OnStoreFailure::Deny),
        ];
        let on_store_failure =
            fields.get("on_store_failure").and_then(|node| word(node, &failure, self.diagnostics));
        let shadow = fields.get("shadow").and_then(|node| boolean(node, self.diagnostics));
        Defaults {
            on_store_failure: on_store_failure.unwrap_or(defaults.on_store_failure),
            consistency: consistency.unwrap_or(defaults.consistency),
            exceed: fields
                .get("exceed")
                .and_then(|node| self.exceed(node))
                .unwrap_or(defaults.exceed),
            shadow: shadow.unwrap_or(defaults.shadow),
        }
    }

    fn exceed(&mut self, node: &Node) -> Option<Exceed> {
        let text = node.text().unwrap_or_default();
        if text == "wait" || text.starts_with("wait ") {
            return self.wait(text, node.at);
        }
        // The last is there to be suggested.
        let example = Exceed::Wait { max_us: 2 * SECOND_US };
        let words = [
            ("reject", Exceed::Reject),
            ("warn", Exceed::Warn),
            ("challenge", Exceed::Challenge),
            ("wait 2s", example),
        ];
        word(node, &words, self.diagnostics)
    }

    /// `wait 2s`
    fn wait(&mut self, text: &str, at: Position) -> Option<Exceed> {
        let duration = text.strip_prefix("wait ").unwrap_or_default();
        match parse_duration(duration) {
            Ok(max_us) if (1..=WAIT_US_MAX).contains(&max_us) => Some(Exceed::Wait { max_us }),
            Ok(_) => {
                let message = format!("found `{}`, expected from 1ms to 1h", shown(text));
                self.diagnostics.error(at, message);
                None
            }
            Err(_) => {
                let message = format!("found `{}`, expected for how long", shown(text));
                self.diagnostics.error_with_help(at, message, "write it as `wait 2s`");
                None
            }
        }
    }

    fn limit(&mut self, entry: &Entry, defaults: Defaults) -> Option<Limit> {
        check_name(&entry.key, entry.key_at, "a limit", self.diagnostics);
        let what = format!("the limit `{}`", shown(&entry.key));
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let when = fields.get("when").map(|node| self.when(node)).unwrap_or_default();
        let scope = Scope::of(when.operations.as_deref());
        let algorithm = self.algorithm(&fields, entry);
        let by = self.by(&fields, entry, algorithm, &scope);
        let missing =
            [("skip", Missing::Skip), ("share", Missing::Share), ("refuse", Missing::Refuse)];
        let missing = fields.get("missing").and_then(|node| word(node, &missing, self.diagnostics));
        let audience = Audience { when: &when, by: &by, missing };
        let settings = algorithm
            .and_then(|algorithm| self.settings(&fields, algorithm, audience, entry.key_at));
        let Defaults { on_store_failure, consistency, exceed, shadow } =
            self.overridden(&fields, defaults);
        let cost = self.cost(&fields, algorithm, &scope);
        let value = self.value(&fields, algorithm, entry.key_at, &scope);
        let counts = [
            ("all", Counts::All),
            ("failures", Counts::Failures),
            ("successes", Counts::Successes),
        ];
        let counts = fields.get("counts").and_then(|node| word(node, &counts, self.diagnostics));
        self.check_fit(&fields, algorithm);
        let refusal = self.refusal(&fields);
        let describe =
            fields.get("describe").and_then(|node| text(node, "a sentence", self.diagnostics));
        let key = fields.get("key").and_then(|node| self.template(node, &by, &scope));
        let scaled = fields.get("scaled").and_then(|node| boolean(node, self.diagnostics));
        let settings = settings?;
        Some(Limit {
            name: entry.key.clone(),
            items: Items::new(&entry.key, algorithm?),
            key,
            when,
            row: settings::row(&by, &settings),
            by,
            algorithm: algorithm?,
            settings,
            cost,
            value,
            missing,
            exceed,
            shadow,
            counts: counts.unwrap_or(Counts::All),
            scaled: scaled.unwrap_or_else(|| scales(algorithm, cost)),
            on_store_failure,
            // A default is for those limits that can be leased.
            consistency: match algorithm? {
                Algorithm::TokenBucket => consistency,
                _ => Consistency::Exact,
            },
            refusal,
            describe: describe.map(str::to_owned),
            publish: fields
                .get("publish")
                .and_then(|node| boolean(node, self.diagnostics))
                .unwrap_or(true),
        })
    }

    fn algorithm(&mut self, fields: &Fields<'_>, entry: &Entry) -> Option<Algorithm> {
        let named: Vec<Algorithm> = Algorithm::ALL
            .into_iter()
            .filter(|algorithm| fields.get(algorithm.name()).is_some())
            .collect();
        match named.as_slice() {
            [algorithm] => Some(*algorithm),
            [] => {
                if fields.get("count").is_none()
                    && !fields.is_misspelt(&Algorithm::ALL.map(Algorithm::name))
                {
                    let message =
                        format!("found no algorithm in the limit `{}`", shown(&entry.key));
                    let help = format!("expected {}", one_of(&Algorithm::ALL.map(Algorithm::name)));
                    self.diagnostics.error_with_help(entry.key_at, message, help);
                }
                None
            }
            [first, second, ..] => {
                let at = fields.entry(second.name()).map_or(entry.key_at, |entry| entry.key_at);
                let message = format!(
                    "found `{}` beside `{}`, expected exactly one algorithm",
                    second.name(),
                    first.name()
                );
                self.diagnostics.error_with_help(
                    at,
                    message,
                    "write two limits: a request must pass both",
                );
                None
            }
        }
    }

    /// `by:`; only a ceiling, which keeps no state, can do without.
    fn by(
        &mut self,
        fields: &Fields<'_>,
        entry: &Entry,
        algorithm: Option<Algorithm>,
        scope: &Scope<'_>,
    ) -> Vec<Part> {
        match fields.get("by") {
            Some(node) => self.parts(node, scope),
            None if algorithm == Some(Algorithm::Ceiling) => vec![Part::Global],
            None if fields.is_misspelt(&["by"]) => Vec::new(),
            None => {
                let message = format!("found no `by` in the limit `{}`", shown(&entry.key));
                self.diagnostics.error_with_help(
                    entry.key_at,
                    message,
                    "expected whom it counts: `ip`, `user`, `client`, an attribute or `global`",
                );
                Vec::new()
            }
        }
    }

    /// One part of a key, or a list of them.
    pub(super) fn parts(&mut self, node: &Node, scope: &Scope<'_>) -> Vec<Part> {
        let words = distinct_texts(node, "a part such as `ip` or `user`", self.diagnostics);
        if words.len() > PARTS_MAX {
            self.diagnostics.error(node.at, format!("found more than {PARTS_MAX} parts"));
            return Vec::new();
        }
        words.into_iter().filter_map(|(name, at)| self.part(name, at, scope)).collect()
    }

    pub(super) fn part(&mut self, name: &str, at: Position, scope: &Scope<'_>) -> Option<Part> {
        Some(match name {
            "ip" => Part::Ip,
            "user" => Part::User,
            "client" => Part::Client,
            "tier" => Part::Tier,
            "operation" => Part::Operation,
            "method" => Part::Method,
            "path" => Part::Path,
            "country" => Part::Country,
            "global" => Part::Global,
            _ => match name.strip_prefix("header.") {
                Some(header) if is_header_name(header) => Part::Header(header.to_ascii_lowercase()),
                Some(_) => {
                    self.diagnostics
                        .error(at, format!("found `{}`, expected `header.NAME`", shown(name)));
                    return None;
                }
                None => Part::Attribute(self.attribute_id(name, at, scope, &RESERVED_PARTS)?),
            },
        })
    }

    fn cost(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Option<Algorithm>,
        scope: &Scope<'_>,
    ) -> Cost {
        let Some(node) = fields.get("cost") else { return Cost::Requested };
        if algorithm == Some(Algorithm::Ceiling) {
            self.diagnostics.error(node.at, "found `cost` on a ceiling, expected `value`");
        }
        let Some(text) = text(node, "a number or an attribute", self.diagnostics) else {
            return Cost::Requested;
        };
        if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')) {
            let amount = Amount::parse(text);
            let parts = amount.as_ref().is_ok_and(|amount| *amount != amount.whole_up());
            if parts && algorithm == Some(Algorithm::Concurrency) {
                let message = format!("found `{text}`, expected whole places");
                self.diagnostics.error(node.at, message);
            }
            return unit(amount, node.at, self.diagnostics).map_or(Cost::Requested, Cost::Fixed);
        }
        self.attribute_id(text, node.at, scope, &[]).map_or(Cost::Requested, Cost::Attribute)
    }

    fn value(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Option<Algorithm>,
        at: Position,
        scope: &Scope<'_>,
    ) -> Option<AttributeId> {
        match (fields.get("value"), algorithm) {
            (Some(node), Some(Algorithm::Ceiling)) => {
                let name = text(node, "an attribute", self.diagnostics)?;
                self.attribute_id(name, node.at, scope, &[])
            }
            (Some(node), Some(_)) => {
                self.diagnostics.error(node.at, "found `value`, which only a `ceiling` compares");
                None
            }
            (None, Some(Algorithm::Ceiling)) => {
                self.diagnostics.error(
                    at,
                    "found a `ceiling` without `value`, expected the attribute that it compares",
                );
                None
            }
            (_, _) => None,
        }
    }

    /// Reports keys that mean nothing beside this algorithm.
    fn check_fit(&mut self, fields: &Fields<'_>, algorithm: Option<Algorithm>) {
        let Some(algorithm) = algorithm else { return };
        let mut only = |key: &str, fits: bool, whose: &str| {
            if let Some(entry) = fields.entry(key).filter(|_| !fits) {
                let message = format!("found `{key}` beside `{}`, but {whose}", algorithm.name());
                self.diagnostics.error(entry.key_at, message);
            }
        };
        let stateless = algorithm == Algorithm::Ceiling;
        let place = algorithm == Algorithm::Concurrency;
        only("lease", place, "only a `concurrency` place is leased");
        let leased = fields.get("consistency").is_some_and(|node| node.text() == Some("leased"));
        let bucket = algorithm == Algorithm::TokenBucket;
        only("consistency", bucket || !leased, "only a `token_bucket` can be leased");
        only("counts", !stateless && !place, "it counts nothing by status");
        only("key", !stateless, "a ceiling keeps no state");
        let waits = fields
            .get("exceed")
            .is_some_and(|node| node.text().is_some_and(|text| text.starts_with("wait ")));
        let timeless = stateless || algorithm == Algorithm::Total;
        only("exceed", !(waits && timeless), "no waiting helps there");
    }

    fn refusal(&mut self, fields: &Fields<'_>) -> Refusal {
        let message = fields.get("message").and_then(|node| self.message(node));
        let status =
            fields.get("status").and_then(|node| integer(node, 400, 599, self.diagnostics));
        Refusal {
            message,
            status: status.and_then(|status| u16::try_from(status).ok()),
            body: fields.get("body").and_then(|node| self.body(node)),
        }
    }
}

/// Whether factors apply to a limit that does not say so: not to money, and not to what is held.
fn scales(algorithm: Option<Algorithm>, cost: Cost) -> bool {
    let held = matches!(
        algorithm,
        Some(Algorithm::Concurrency | Algorithm::Total | Algorithm::Ceiling) | None
    );
    !held && !matches!(cost, Cost::Attribute(_))
}
