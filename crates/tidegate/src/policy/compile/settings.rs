//! Specs for all requests, by tier or by an attribute, and which tiers can reach a limit.

use std::collections::HashMap;

use super::fields::{Fields, text};
use super::{Compiler, Scope, advice, spec};
use crate::plan::LEVELS_MAX;
use crate::policy::diagnostics::{Position, one_of};
use crate::policy::document::{Entry, Node};
use crate::policy::model::{
    Algorithm, Limit, Missing, OperationId, Part, Setting, Settings, TierId,
};
use crate::policy::when::When;
use crate::units::SECOND_US;

/// How long a place of a concurrency limit is held without being renewed.
const PLACE_TTL_DEFAULT_US: u64 = 60 * SECOND_US;

/// The requests that a limit is for, as far as the policy alone says it.
#[derive(Clone, Copy)]
pub(in crate::policy) struct Audience<'a> {
    pub(super) when: &'a When,
    pub(super) by: &'a [Part],
    pub(super) missing: Option<Missing>,
}

impl<'a> Audience<'a> {
    pub(in crate::policy) fn of(limit: &'a Limit) -> Self {
        Self { when: &limit.when, by: &limit.by, missing: limit.missing }
    }

    /// True if the limit does not apply without a user.
    fn needs_user(&self) -> bool {
        let skipped = self.by.contains(&Part::User) && self.missing != Some(Missing::Share);
        skipped || self.when.authenticated == Some(true)
    }

    /// True if a request of this tier can reach the limit.
    pub(in crate::policy) fn includes(&self, tier: TierId, defaults: DefaultTiers) -> bool {
        let named = |when: &When| when.tiers.as_ref().is_some_and(|tiers| tiers.contains(&tier));
        let listed = self.when.tiers.is_none() || named(self.when);
        let excluded = self.when.not.as_ref().is_some_and(|not| not.is_only_tiers() && named(not));
        let anonymous = tier == defaults.anonymous && tier != defaults.default;
        listed && !excluded && !(anonymous && self.needs_user())
    }
}

/// The tiers of requests that say none.
#[derive(Clone, Copy)]
pub(in crate::policy) struct DefaultTiers {
    pub(in crate::policy) anonymous: TierId,
    pub(in crate::policy) default: TierId,
}

/// The part of a key that separates the rows of a map.
///
/// Users who share a key (`by: ip`) may have different specs. Then each row of the map counts by
/// itself: otherwise the generous rows would pay back what the strict rows owe.
pub(super) fn row(by: &[Part], settings: &Settings) -> Option<Part> {
    let one_user = by.contains(&Part::User) || by.contains(&Part::Client);
    match settings {
        _ if one_user => None,
        Settings::ByTier(_) => Some(Part::Tier).filter(|part| !by.contains(part)),
        Settings::ByAttribute { attribute, settings, .. } => {
            let mut rows: Vec<String> = settings.keys().cloned().collect();
            rows.sort_unstable();
            let row = Part::Row { attribute: *attribute, rows };
            Some(row).filter(|_| !by.contains(&Part::Attribute(*attribute)))
        }
        Settings::Everyone(_) => None,
    }
}

fn is_unlimited(limit: &Limit, tier: usize) -> bool {
    let Settings::ByTier(settings) = &limit.settings else { return false };
    matches!(settings.get(tier), Some(Some(Setting::Unlimited)))
}

impl Compiler<'_> {
    /// A spec, or a map of specs by tier or by an attribute.
    pub(super) fn settings<'n>(
        &self,
        fields: &Fields<'n>,
        algorithm: Algorithm,
        audience: Audience<'_>,
        at: Position,
    ) -> Option<Settings> {
        let node = fields.get(algorithm.name())?;
        let ttl_us = fields.duration_us("lease").unwrap_or(PLACE_TTL_DEFAULT_US);
        let tier_by = fields.get("tier_by");
        let Some(written) = node.entries() else {
            if let Some(tier_by) = tier_by {
                let message = format!(
                    "found `tier_by` beside one spec for all, expected `{}` to be a map",
                    algorithm.name()
                );
                self.diagnostics.error(tier_by.at, message);
            }
            return self.setting(node, algorithm, ttl_us).map(Settings::Everyone);
        };
        if tier_by.is_none() && !self.tiers_declared && advice::is_spec_map(written) {
            self.report_spec_map(written, algorithm, node.at);
            return None;
        }
        let setting =
            |entry: &'n Entry| Some((entry, self.setting(&entry.value, algorithm, ttl_us)?));
        let settings: Vec<Option<(&Entry, Setting)>> = written.iter().map(setting).collect();
        let settings: Vec<(&Entry, Setting)> = settings.into_iter().collect::<Option<_>>()?;
        match tier_by {
            Some(tier_by) => {
                let scope = Scope::of(audience.when.operations.as_deref());
                self.by_attribute(tier_by, node, &settings, &scope)
            }
            None => self.by_tier(&settings, audience, at),
        }
    }

    /// Reports a map that takes a spec apart.
    fn report_spec_map(&self, written: &[Entry], algorithm: Algorithm, at: Position) {
        let keys: Vec<String> = written.iter().map(|entry| format!("`{}`", entry.key)).collect();
        let keys = keys.join(" and ");
        let message = format!("found a map with {keys}, expected one spec, or one for each tier");
        let example = match algorithm {
            Algorithm::TokenBucket => "20/min burst 5",
            Algorithm::Quota => "5/day",
            Algorithm::Concurrency | Algorithm::Total | Algorithm::Ceiling => "10",
            Algorithm::SlidingWindow | Algorithm::SlidingCounter | Algorithm::FixedWindow => {
                "5/min"
            }
        };
        let joined = advice::joined_spec(written)
            .filter(|joined| spec::parse(algorithm, joined, PLACE_TTL_DEFAULT_US).is_ok());
        let spec = joined.as_deref().unwrap_or(example);
        let help = format!("write `{}: {spec}`", algorithm.name());
        self.diagnostics.error_with_help(at, message, help);
    }

    fn setting(&self, node: &Node, algorithm: Algorithm, ttl_us: u64) -> Option<Setting> {
        let text = text(node, "a spec", self.diagnostics)?;
        let setting = spec::parse(algorithm, text, ttl_us);
        setting.map_err(|error| self.diagnostics.rate_error(node.at, &error)).ok()
    }

    fn by_attribute(
        &self,
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
        let map: HashMap<String, Setting> = named
            .map(|(entry, setting)| (self.normal_value(Some(attribute), &entry.key), *setting))
            .collect();
        Some(Settings::ByAttribute { attribute, settings: map, default: *default })
    }

    /// A map must cover every tier that can reach the limit, or have a default.
    fn by_tier(
        &self,
        settings: &[(&Entry, Setting)],
        audience: Audience<'_>,
        at: Position,
    ) -> Option<Settings> {
        let find = |name: &str| settings.iter().find(|(entry, _)| entry.key == name);
        let default = find("default").map(|(_, setting)| *setting);
        for (Entry { key, key_at, .. }, _) in settings.iter().filter(|(e, _)| e.key != "default") {
            self.tier_id(key, *key_at);
        }
        let names = self.tiers.iter().enumerate();
        let missing = |(tier, name): &(usize, &str)| {
            default.is_none() && find(name).is_none() && self.can_reach(*tier, audience)
        };
        let missing: Vec<&str> = names.filter(missing).map(|(_, name)| name).collect();
        if !missing.is_empty() {
            let message = format!(
                "found no spec for the tier {}, which can reach this limit",
                one_of(&missing)
            );
            let help =
                "add it, or `default:`; who does not say a tier has `identity: default_tier`";
            self.diagnostics.error_with_help(at, message, help);
            return None;
        }
        let setting = |name| find(name).map(|(_, setting)| *setting).or(default);
        Some(Settings::ByTier(self.tiers.iter().map(setting).collect()))
    }

    /// True if a request of this tier can reach a limit.
    fn can_reach(&self, tier: usize, audience: Audience<'_>) -> bool {
        let defaults = DefaultTiers { anonymous: self.anonymous_tier, default: self.default_tier };
        u32::try_from(tier).is_ok_and(|tier| audience.includes(tier, defaults))
    }

    /// No request may meet more limits than a plan can hold.
    pub(super) fn check_levels(&self, limits: &[Limit], at: Position) {
        let mut everywhere = vec![0_usize; self.tiers.len()];
        let mut somewhere: HashMap<(OperationId, usize), usize> = HashMap::new();
        for limit in limits {
            let meets = |tier: &usize| {
                self.can_reach(*tier, Audience::of(limit)) && !is_unlimited(limit, *tier)
            };
            for tier in (0..self.tiers.len()).filter(meets) {
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
