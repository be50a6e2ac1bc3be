//! The `limits:` section.

use super::fields::{
    Fields, Keys, check_name, distinct_texts, is_header_name, parsed, section, text, word,
};
use super::settings::{self, Audience};
use super::{Compiler, RESERVED_PARTS, Scope, advice};
use crate::policy::diagnostics::{Position, one_of, shown};
use crate::policy::document::{Entry, Node};
use crate::policy::model::{
    Algorithm, AttributeId, Consistency, Cost, Counts, Exceed, Limit, Missing, OnStoreFailure,
    Part, Refusal,
};
use crate::response::HeaderItems;
use crate::units::{Amount, SECOND_US, meant_duration, parse_duration};

pub(in crate::policy) const KEYS: Keys = Keys::with_later(
    "when by token_bucket sliding_window sliding_counter fixed_window quota concurrency total \
     ceiling tier_by lease cost value missing exceed shadow counts scaled on_store_failure \
     consistency key message status body describe publish",
    "count",
)
.with_advice(advice::on_limit_key);
pub(super) const DEFAULTS_KEYS: Keys = Keys::new("on_store_failure consistency exceed shadow");

/// What becomes of a request without a part of `by`.
pub(super) const MISSING_WORDS: [(&str, Missing); 3] =
    [("skip", Missing::Skip), ("share", Missing::Share), ("refuse", Missing::Refuse)];

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
    pub(super) fn limits(&self, fields: &Fields<'_>) -> Vec<Limit> {
        let defaults = self.defaults(fields.get("defaults"));
        let Some(node) = fields.get("limits") else { return Vec::new() };
        let written = section(node, "limits", LIMITS_MAX, self.diagnostics);
        let limits: Vec<Limit> =
            written.iter().filter_map(|entry| self.limit(entry, defaults)).collect();
        self.check_levels(&limits, node.at);
        limits
    }

    fn defaults(&self, node: Option<&Node>) -> Defaults {
        let defaults = Defaults {
            on_store_failure: OnStoreFailure::Local,
            consistency: Consistency::Exact,
            exceed: Exceed::Reject,
            shadow: false,
        };
        let fields =
            node.and_then(|node| Fields::of(node, "`defaults`", &DEFAULTS_KEYS, self.diagnostics));
        fields.map_or(defaults, |fields| self.override_defaults(&fields, defaults))
    }

    /// The defaults with what a limit, or `defaults:`, says instead.
    fn override_defaults(&self, fields: &Fields<'_>, defaults: Defaults) -> Defaults {
        let consistency = [("exact", Consistency::Exact), ("leased", Consistency::Leased)];
        let failure = [
            ("local", OnStoreFailure::Local),
            ("allow", OnStoreFailure::Allow),
            ("deny", OnStoreFailure::Deny),
        ];
        let exceed = fields.get("exceed").and_then(|node| self.exceed(node));
        Defaults {
            on_store_failure: fields
                .word("on_store_failure", &failure)
                .unwrap_or(defaults.on_store_failure),
            consistency: fields.word("consistency", &consistency).unwrap_or(defaults.consistency),
            exceed: exceed.unwrap_or(defaults.exceed),
            shadow: fields.boolean("shadow").unwrap_or(defaults.shadow),
        }
    }

    fn exceed(&self, node: &Node) -> Option<Exceed> {
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
    fn wait(&self, text: &str, at: Position) -> Option<Exceed> {
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
                let meant = meant_duration(duration);
                let help = meant.map_or("write it as `wait 2s`".to_owned(), |meant| {
                    format!("did you mean `wait {meant}`?")
                });
                self.diagnostics.error_with_help(at, message, help);
                None
            }
        }
    }

    fn limit(&self, entry: &Entry, defaults: Defaults) -> Option<Limit> {
        check_name(&entry.key, entry.key_at, "a limit", self.diagnostics);
        let what = format!("the limit `{}`", shown(&entry.key));
        if entry.value.entries().is_none() && KEYS.known().any(|key| key == entry.key) {
            let message = format!("found `{}` among the names of limits", entry.key);
            let help = "indent it further, below the name of its limit";
            self.diagnostics.error_with_help(entry.key_at, message, help);
            return None;
        }
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let when = fields.get("when").map(|node| self.when(node)).unwrap_or_default();
        let scope = Scope::of(when.operations.as_deref());
        let algorithm = self.algorithm(&fields, entry);
        let by = self.by(&fields, entry, algorithm, &scope);
        let missing = fields.word("missing", &MISSING_WORDS);
        let audience = Audience { when: &when, by: &by, missing };
        self.check_users(&fields, audience)?;
        let settings = algorithm
            .and_then(|algorithm| self.settings(&fields, algorithm, audience, entry.key_at));
        let Defaults { on_store_failure, consistency, exceed, shadow } =
            self.override_defaults(&fields, defaults);
        let cost = self.cost(&fields, algorithm, &scope);
        let value = self.value(&fields, algorithm, entry.key_at, &scope);
        let counts = [
            ("all", Counts::All),
            ("failures", Counts::Failures),
            ("successes", Counts::Successes),
        ];
        let counts = fields.word("counts", &counts).unwrap_or(Counts::All);
        self.check_fit(&fields, algorithm);
        let refusal = self.refusal(&fields);
        let describe = fields.owned_text("describe", "a sentence");
        let key = fields.get("key").and_then(|node| self.template(node, &by, &scope));
        let scaled = fields.boolean("scaled").unwrap_or_else(|| scales(algorithm, cost));
        let publish = fields.boolean("publish").unwrap_or(true);
        let (algorithm, settings) = algorithm.zip(settings)?;
        Some(Limit {
            name: entry.key.clone(),
            items: HeaderItems::new(&entry.key, algorithm),
            key,
            when,
            row: settings::row(&by, &settings),
            by,
            algorithm,
            settings,
            cost,
            value,
            missing,
            exceed,
            shadow,
            counts,
            scaled,
            on_store_failure,
            // The default applies to those limits that can be leased.
            consistency: match algorithm {
                Algorithm::TokenBucket => consistency,
                _ => Consistency::Exact,
            },
            refusal,
            describe,
            publish,
        })
    }

    /// Reports a limit by user that is only for requests without one.
    fn check_users(&self, fields: &Fields<'_>, audience: Audience<'_>) -> Option<()> {
        let Audience { when, by, missing } = audience;
        let skips = by.contains(&Part::User) && missing != Some(Missing::Share);
        let by = fields.get("by").filter(|_| skips && when.authenticated == Some(false));
        let Some(by) = by else { return Some(()) };
        let message = "found `by: user` beside `authenticated: false`: such requests have no user";
        let help = "use `by: ip`, or take `authenticated: false` out";
        self.diagnostics.error_with_help(by.at, message, help);
        None
    }

    fn algorithm(&self, fields: &Fields<'_>, entry: &Entry) -> Option<Algorithm> {
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
                let (first, second) = (first.name(), second.name());
                let message =
                    format!("found `{second}` beside `{first}`, expected exactly one algorithm");
                let help = "write two limits: a request must pass both";
                self.diagnostics.error_with_help(at, message, help);
                None
            }
        }
    }

    /// `by:`; only a ceiling, which keeps no state, can do without.
    fn by(
        &self,
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
                let help =
                    "expected whom it counts: `ip`, `user`, `client`, an attribute or `global`";
                self.diagnostics.error_with_help(entry.key_at, message, help);
                Vec::new()
            }
        }
    }

    /// One part of a key, or a list of them.
    pub(super) fn parts(&self, node: &Node, scope: &Scope<'_>) -> Vec<Part> {
        let words = distinct_texts(node, "a part such as `ip` or `user`", self.diagnostics);
        if words.len() > PARTS_MAX {
            self.diagnostics.error(node.at, format!("found more than {PARTS_MAX} parts"));
            return Vec::new();
        }
        words.into_iter().filter_map(|(name, at)| self.part(name, at, scope)).collect()
    }

    pub(super) fn part(&self, name: &str, at: Position, scope: &Scope<'_>) -> Option<Part> {
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
                None => Part::Attribute(self.attribute_part(name, at, scope)?),
            },
        })
    }

    fn attribute_part(&self, name: &str, at: Position, scope: &Scope<'_>) -> Option<AttributeId> {
        let advice = advice::on_part(name).filter(|_| self.attribute_names.id(name).is_none());
        let Some(help) = advice else {
            return self.attribute_id(name, at, scope, &RESERVED_PARTS);
        };
        let message = format!("found `{}`, which is not a declared attribute", shown(name));
        self.diagnostics.error_with_help(at, message, help);
        None
    }

    fn cost(&self, fields: &Fields<'_>, algorithm: Option<Algorithm>, scope: &Scope<'_>) -> Cost {
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
            return parsed(amount, node.at, self.diagnostics).map_or(Cost::Requested, Cost::Fixed);
        }
        self.attribute_id(text, node.at, scope, &[]).map_or(Cost::Requested, Cost::Attribute)
    }

    fn value(
        &self,
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
    fn check_fit(&self, fields: &Fields<'_>, algorithm: Option<Algorithm>) {
        let Some(algorithm) = algorithm else { return };
        let only = |key: &str, fits: bool, whose: &str| {
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

    fn refusal(&self, fields: &Fields<'_>) -> Refusal {
        Refusal {
            message: fields.get("message").and_then(|node| self.message(node)),
            status: fields.integer("status", 400..=599),
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
