//! The `limits:` section.

use std::collections::HashMap;

use super::fields::{
    Fields, Keys, boolean, check_name, duration_us, entries, integer, is_header_name, not_yet,
    text, texts, word,
};
use super::{Compiler, RESERVED_PARTS, Scope, spec};
use crate::key::{Piece, Template};
use crate::plan::LEVELS_MAX;
use crate::policy::diagnostics::{Position, shown};
use crate::policy::document::{Entry, Node};
use crate::policy::model::{
    Algorithm, Cost, Counts, Exceed, Limit, Missing, OnStoreFailure, OperationId, Part, Refusal,
    Setting, Settings,
};
use crate::policy::overlay::ALGORITHMS;
use crate::policy::when::When;
use crate::units::{Amount, SECOND_US};

pub(super) const KEYS: Keys = Keys {
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
        "on_store_failure",
        "consistency",
        "key",
        "message",
        "status",
        "body",
        "describe",
        "publish",
    ],
    later: &["count", "scaled"],
};
pub(super) const DEFAULTS_KEYS: Keys =
    Keys { known: &["on_store_failure", "consistency", "exceed", "shadow"], later: &[] };

const LIMITS_MAX: usize = 1_000;
const LEASE_DEFAULT_US: u64 = 60 * SECOND_US;

/// What `defaults:` sets for all limits.
#[derive(Clone, Copy)]
struct Defaults {
    on_store_failure: OnStoreFailure,
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
        if let Some(node) = fields.get("consistency") {
            match node.text() {
                Some("leased") => not_yet(node.at, "`consistency: leased`", self.diagnostics),
                _ => drop(word(node, &[("exact", ())], self.diagnostics)),
            }
        }
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
            exceed: fields
                .get("exceed")
                .and_then(|node| self.exceed(node))
                .unwrap_or(defaults.exceed),
            shadow: shadow.unwrap_or(defaults.shadow),
        }
    }

    fn exceed(&mut self, node: &Node) -> Option<Exceed> {
        let text = node.text().unwrap_or_default();
        if text == "challenge" || text == "wait" || text.starts_with("wait ") {
            not_yet(node.at, &format!("`exceed: {}`", shown(text)), self.diagnostics);
            return None;
        }
        word(node, &[("reject", Exceed::Reject), ("warn", Exceed::Warn)], self.diagnostics)
    }

    fn limit(&mut self, entry: &Entry, defaults: Defaults) -> Option<Limit> {
        check_name(&entry.key, entry.key_at, "a limit", self.diagnostics);
        let what = format!("the limit `{}`", shown(&entry.key));
        let fields = Fields::of(&entry.value, &what, &KEYS, self.diagnostics)?;
        let when = fields.get("when").map(|node| self.when(node)).unwrap_or_default();
        let scope = Scope::of(when.operations.as_deref());
        let algorithm = self.algorithm(&fields, entry);
        let by = self.by(&fields, entry, algorithm, &scope);
        let settings = algorithm.and_then(|algorithm| {
            self.settings(&fields, algorithm, &when, &by, entry.key_at, &scope)
        });
        let Defaults { on_store_failure, exceed, shadow } = self.overridden(&fields, defaults);
        let cost = self.cost(&fields, algorithm, &scope);
        let value = self.value(&fields, algorithm, entry.key_at, &scope);
        let counts = [
            ("all", Counts::All),
            ("failures", Counts::Failures),
            ("successes", Counts::Successes),
        ];
        let counts = fields.get("counts").and_then(|node| word(node, &counts, self.diagnostics));
        let missing =
            [("skip", Missing::Skip), ("share", Missing::Share), ("refuse", Missing::Refuse)];
        let missing = fields.get("missing").and_then(|node| word(node, &missing, self.diagnostics));
        self.check_fit(&fields, algorithm);
        let refusal = self.refusal(&fields);
        let describe =
            fields.get("describe").and_then(|node| text(node, "a sentence", self.diagnostics));
        Some(Limit {
            name: entry.key.clone(),
            key: fields.get("key").and_then(|node| self.template(node, &by, &scope)),
            when,
            by,
            algorithm: algorithm?,
            settings: settings?,
            cost,
            value,
            missing,
            exceed,
            shadow,
            counts: counts.unwrap_or(Counts::All),
            on_store_failure,
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
                if fields.get("count").is_none() && !fields.is_misspelt(&ALGORITHMS) {
                    let message =
                        format!("found no algorithm in the limit `{}`", shown(&entry.key));
                    let help =
                        format!("expected {}", crate::policy::diagnostics::one_of(&ALGORITHMS));
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
            Some(node) => {
                let words = texts(node, "a part such as `ip` or `user`", self.diagnostics);
                words.into_iter().filter_map(|(name, at)| self.part(name, at, scope)).collect()
            }
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

    fn part(&mut self, name: &str, at: Position, scope: &Scope<'_>) -> Option<Part> {
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
            return super::fields::unit(amount, node.at, self.diagnostics)
                .map_or(Cost::Requested, Cost::Fixed);
        }
        self.attribute_id(text, node.at, scope, &[]).map_or(Cost::Requested, Cost::Attribute)
    }

    fn value(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Option<Algorithm>,
        at: Position,
        scope: &Scope<'_>,
    ) -> Option<u32> {
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
        only("counts", !stateless && !place, "it counts nothing by status");
        only("key", !stateless, "a ceiling keeps no state");
    }

    /// A spec, or a map of specs by tier or by an attribute.
    fn settings(
        &mut self,
        fields: &Fields<'_>,
        algorithm: Algorithm,
        when: &When,
        by: &[Part],
        at: Position,
        scope: &Scope<'_>,
    ) -> Option<Settings> {
        let node = fields.get(algorithm.name())?;
        let lease_us = fields.get("lease").and_then(|node| duration_us(node, self.diagnostics));
        let lease_us = lease_us.unwrap_or(LEASE_DEFAULT_US);
        let tier_by = fields.get("tier_by");
        let Some(written) = node.entries() else {
            if let Some(tier_by) = tier_by {
                let message = format!(
                    "found `tier_by` beside one spec for all, expected `{}` to be a map",
                    algorithm.name()
                );
                self.diagnostics.error(tier_by.at, message);
            }
            return self.setting(node, algorithm, lease_us).map(Settings::Everyone);
        };
        let mut settings = Vec::new();
        for entry in written {
            settings.extend(
                self.setting(&entry.value, algorithm, lease_us).map(|setting| (entry, setting)),
            );
        }
        if settings.len() < written.len() {
            return None;
        }
        match tier_by {
            Some(tier_by) => self.by_attribute(tier_by, node, &settings, scope),
            None => self.by_tier(&settings, when, by, at),
        }
    }

    fn setting(&mut self, node: &Node, algorithm: Algorithm, lease_us: u64) -> Option<Setting> {
        let text = text(node, "a spec", self.diagnostics)?;
        match spec::parse(algorithm, text, lease_us) {
            Ok(setting) => Some(setting),
            Err(error) => {
                match error.help {
                    Some(help) => self.diagnostics.error_with_help(node.at, error.message, help),
                    None => self.diagnostics.error(node.at, error.message),
                }
                None
            }
        }
    }

    fn by_attribute(
        &mut self,
        tier_by: &Node,
        node: &Node,
        settings: &[(&Entry, Setting)],
        scope: &Scope<'_>,
    ) -> Option<Settings> {
        let name = text(tier_by, "an attribute", self.diagnostics)?;
        let attribute = self.attribute_id(name, tier_by.at, scope, &[])?;
        let default = settings.iter().find(|(entry, _)| entry.key == "default");
        let Some((_, default)) = default else {
            self.diagnostics
                .error(node.at, "found no `default:`, which a map with `tier_by` needs");
            return None;
        };
        let named = settings.iter().filter(|(entry, _)| entry.key != "default");
        let map: HashMap<String, Setting> =
            named.map(|(entry, setting)| (entry.key.clone(), *setting)).collect();
        Some(Settings::ByAttribute { attribute, settings: map, default: *default })
    }

    /// A map must cover every tier that can reach the limit, or have a default.
    fn by_tier(
        &mut self,
        settings: &[(&Entry, Setting)],
        when: &When,
        by: &[Part],
        at: Position,
    ) -> Option<Settings> {
        let mut by_tier: Vec<Option<Setting>> = vec![None; self.tiers.len()];
        let mut default = None;
        for (entry, setting) in settings {
            if entry.key == "default" {
                default = Some(*setting);
            }
            let known = entry.key == "default" && self.tiers.id("default").is_none();
            let id = if known { None } else { self.tier_id(&entry.key, entry.key_at) };
            if let Some(slot) =
                id.and_then(|id| usize::try_from(id).ok()).and_then(|id| by_tier.get_mut(id))
            {
                *slot = Some(*setting);
            }
        }
        let reaches: Vec<bool> =
            (0..self.tiers.len()).map(|tier| self.can_reach(tier, when, by)).collect();
        let uncovered =
            |tier: &usize| by_tier[*tier].is_none() && default.is_none() && reaches[*tier];
        let missing: Vec<&str> = (0..by_tier.len())
            .filter(uncovered)
            .map(|tier| self.tiers.name(u32::try_from(tier).unwrap_or(u32::MAX)))
            .collect();
        if !missing.is_empty() {
            let message = format!(
                "found no spec for the tier {}, which can reach this limit",
                crate::policy::diagnostics::one_of(&missing)
            );
            self.diagnostics.error_with_help(
                at,
                message,
                "add it, or `default:` (which may be `unlimited`)",
            );
            return None;
        }
        by_tier.iter_mut().for_each(|slot| *slot = slot.or(default));
        Some(Settings::ByTier(by_tier))
    }

    /// Whether a request of this tier can get as far as a limit.
    fn can_reach(&self, tier: usize, when: &When, by: &[Part]) -> bool {
        let Ok(tier) = u32::try_from(tier) else { return false };
        let listed = when.tiers.as_ref().is_none_or(|tiers| tiers.contains(&tier));
        let excluded = when.not.as_ref().is_some_and(|not| {
            not.is_only_tiers() && not.tiers.as_ref().is_some_and(|tiers| tiers.contains(&tier))
        });
        let anonymous = tier == self.anonymous_tier && tier != self.default_tier;
        let needs_user = by.contains(&Part::User) || when.authenticated == Some(true);
        let kept_out = anonymous && needs_user;
        let needs_nobody = when.authenticated == Some(false) && tier != self.anonymous_tier;
        listed && !excluded && !kept_out && !needs_nobody
    }

    fn refusal(&mut self, fields: &Fields<'_>) -> Refusal {
        let message =
            fields.get("message").and_then(|node| text(node, "a message", self.diagnostics));
        let status =
            fields.get("status").and_then(|node| integer(node, 400, 599, self.diagnostics));
        Refusal {
            message: message.map(str::to_owned),
            status: status.and_then(|status| u16::try_from(status).ok()),
            body: fields.get("body").and_then(|node| self.body(node)),
        }
    }

    /// `rl:deals:w:{user}`: every part of `by`, and no other.
    fn template(&mut self, node: &Node, by: &[Part], scope: &Scope<'_>) -> Option<Template> {
        let text = text(node, "a key template such as `rl:deals:{user}`", self.diagnostics)?;
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((literal, from)) = rest.split_once('{') {
            let Some((reference, after)) = from.split_once('}') else {
                self.diagnostics
                    .error(node.at, format!("found `{}`, expected a closing `}}`", shown(text)));
                return None;
            };
            let (name, raw) =
                reference.strip_suffix(":raw").map_or((reference, false), |name| (name, true));
            let part = self.part(name, node.at, scope)?;
            if !by.contains(&part) {
                self.diagnostics.error(
                    node.at,
                    format!("found `{{{}}}`, which is not a part of `by`", shown(name)),
                );
                return None;
            }
            pieces.push(Piece::Literal(literal.to_owned()));
            pieces.push(Piece::Part { part, raw });
            rest = after;
        }
        pieces.push(Piece::Literal(rest.to_owned()));
        let names = |part: &&Part| {
            !matches!(part, Part::Global) && !pieces.iter().any(|piece| piece.is(part))
        };
        if by.iter().any(|part| names(&part)) {
            let help = "two subjects would share one key; add `{…}` for each part";
            self.diagnostics.error_with_help(
                node.at,
                format!("found `{}`, which leaves out a part of `by`", shown(text)),
                help,
            );
            return None;
        }
        Some(Template { text: text.to_owned(), pieces })
    }

    fn check_templates(&mut self, limits: &[Limit], written: &[Entry]) {
        let mut seen: HashMap<&str, &str> = HashMap::new();
        for limit in limits {
            let Some(template) = &limit.key else { continue };
            let Some(earlier) = seen.insert(&template.text, &limit.name) else { continue };
            let node = written
                .iter()
                .find(|entry| entry.key == limit.name)
                .and_then(|entry| entry.value.get("key"));
            let message = format!(
                "found the key template `{}` of the limit `{earlier}` again",
                shown(&template.text)
            );
            if let Some(node) = node {
                self.diagnostics.error(node.at, message);
            }
        }
    }

    /// No request may meet more limits than a plan can hold.
    fn check_levels(&mut self, limits: &[Limit], at: Position) {
        let mut everywhere = vec![0_usize; self.tiers.len()];
        let mut somewhere: HashMap<(OperationId, usize), usize> = HashMap::new();
        for limit in limits {
            for tier in
                (0..self.tiers.len()).filter(|tier| self.can_reach(*tier, &limit.when, &limit.by))
            {
                match &limit.when.operations {
                    None => everywhere[tier] += 1,
                    Some(operations) => {
                        operations
                            .iter()
                            .for_each(|id| *somewhere.entry((*id, tier)).or_default() += 1);
                    }
                }
            }
        }
        let worst = somewhere
            .iter()
            .map(|((operation, tier), count)| (count + everywhere[*tier], *operation));
        let anywhere = everywhere.iter().map(|count| (*count, 0));
        let Some((count, operation)) = worst.chain(anywhere).max() else { return };
        if count > LEVELS_MAX {
            let name = self.operations.name(operation).to_owned();
            let message = format!(
                "found {count} limits that can meet in one request (`{name}`), expected at most {LEVELS_MAX}"
            );
            self.diagnostics.error(at, message);
        }
    }
}

impl Piece {
    fn is(&self, wanted: &Part) -> bool {
        matches!(self, Self::Part { part, .. } if part == wanted)
    }
}
