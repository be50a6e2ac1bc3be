//! Compiles a document into a checked policy. Every section reports all its problems; there is a
//! policy only if none of them is an error.

mod advice;
mod challenge;
mod events;
mod factors;
pub(crate) mod fields;
mod identity;
mod idle_warnings;
mod limits;
mod notify;
mod operations;
mod penalties;
mod protection_warnings;
mod ratios;
mod reach_warnings;
mod response;
pub(super) mod settings;
mod spec;
mod template;
mod warnings;
mod when;

use std::collections::{BTreeMap, HashSet};

use jiff::tz::TimeZone;

use fields::{Fields, Keys, check_name, declared_id, distinct_texts, is_name, one_or_many, text};

pub(super) use limits::KEYS as LIMIT_KEYS;
use warnings::Warnings;

use super::diagnostics::{Position, Reporter, nearest, one_of, shown};
use super::document::Node;
use super::model::{
    Algorithm, Attribute, AttributeId, Exceed, Limit, Normal, OperationId, PathRules, Policy,
    Source, TierId,
};
use super::names::Names;
use super::protection::{Challenge, Protection};
use crate::identity::Networks;
use crate::identity::attribute::AttributeValue;

const OPERATIONS_MAX: usize = 10_000;
const TIERS_MAX: usize = 100;

/// The words of `by:` that are not attributes.
pub(crate) const RESERVED_PARTS: [&str; 9] =
    ["ip", "user", "client", "tier", "operation", "method", "path", "country", "global"];

/// A further word of bans. An attribute of that name would be mistaken for it.
pub(crate) const NETWORK: &str = "network";

pub(super) const POLICY_KEYS: Keys = Keys::with_later(
    "tidegate name version timezone enabled tiers identity paths operations exempt block limits \
     defaults response events penalties ratios factors challenge notify profiles",
    "alerts notice",
);
const BLOCK_KEYS: Keys = Keys::new("ips countries");

/// A policy in the making.
struct Compiler<'c> {
    diagnostics: &'c Reporter,
    env: &'c BTreeMap<String, String>,
    tiers: Names,
    /// True if `tiers:` lists them.
    tiers_declared: bool,
    default_tier: TierId,
    anonymous_tier: TierId,
    paths: PathRules,
    operations: Names,
    attribute_names: Names,
    attributes: Vec<Attribute>,
    /// The number of declared attributes, which come first. The others are only captured.
    declared_attributes: usize,
    /// Which operation captures which attribute.
    captured: HashSet<(OperationId, AttributeId)>,
    ratio_names: Names,
    webhook_names: Names,
    protection: Protection,
}

/// The operations whose captures a limit may use; none named means any request.
struct Scope<'s> {
    operations: &'s [OperationId],
}

impl<'s> Scope<'s> {
    fn of(operations: Option<&'s [OperationId]>) -> Self {
        Self { operations: operations.unwrap_or_default() }
    }
}

/// Checks a document whose variables are substituted and whose profile is laid over it. Without a
/// policy, at least one error is reported.
pub(super) fn compile(
    root: &Node,
    env: &BTreeMap<String, String>,
    diagnostics: &Reporter,
) -> Option<Policy> {
    if root.get("tests").is_some() && root.get("tidegate").is_none() {
        let message = "found a test file, expected a policy";
        diagnostics.error_with_help(root.at, message, "run it with `tidegate test`");
        return None;
    }
    let fields = Fields::of(root, "a policy", &POLICY_KEYS, diagnostics)?;
    let mut compiler = Compiler {
        diagnostics,
        env,
        tiers: Names::default(),
        tiers_declared: root.get("tiers").is_some(),
        default_tier: 0,
        anonymous_tier: 0,
        paths: PathRules::default(),
        operations: Names::default(),
        attribute_names: Names::default(),
        attributes: Vec::new(),
        declared_attributes: 0,
        captured: HashSet::new(),
        ratio_names: Names::default(),
        webhook_names: Names::default(),
        protection: Protection::none(),
    };
    compiler.policy(root, &fields)
}

impl Compiler<'_> {
    fn policy(&mut self, root: &Node, fields: &Fields<'_>) -> Option<Policy> {
        self.check_language_version(root, fields);
        let name = self.name(root, fields);
        let version = fields.owned_text("version", "a version");
        let zone = fields.get("timezone").and_then(|node| self.time_zone(node));
        let enabled = fields.boolean("enabled").unwrap_or(true);
        self.declare_tiers(root, fields)?;
        if let Some(node) = fields.get("identity").and_then(|node| node.get("attributes")) {
            self.declare_attributes(node);
        }
        if let Some(node) = fields.get("paths") {
            self.declare_paths(node);
        }
        let (patterns, sound_operations) =
            self.is_sound(|compiler| compiler.declare_operations(fields.get("operations")));
        let identity = self.identity(fields.get("identity"));
        let exempt = fields.get("exempt").map(one_or_many).unwrap_or_default();
        let exempt = exempt.iter().map(|node| self.when_map(node, "an exemption")).collect();
        let (blocked, blocked_countries) =
            fields.get("block").map(|node| self.block(node)).unwrap_or_default();
        let (limits, sound_limits) = self.is_sound(|compiler| compiler.limits(fields));
        let (protection, sound_protection) =
            self.is_sound(|compiler| compiler.protection(fields, &limits));
        let response = self.response(fields.get("response"));
        if sound_operations {
            self.warn_about_operations(&patterns);
        }
        let mut policy = Policy {
            name: name?.to_owned(),
            version,
            zone: zone.unwrap_or(TimeZone::UTC),
            enabled,
            identity,
            paths: self.paths,
            operations: self.operations(patterns),
            exempt,
            blocked,
            blocked_countries,
            limits,
            protection,
            response,
            tiers: std::mem::take(&mut self.tiers),
            attribute_names: std::mem::take(&mut self.attribute_names),
            reads_query: self.reads(|source| matches!(source, Source::Query(_))),
            reads_body: self.reads(|source| matches!(source, Source::Body(_))),
            reads_cookies: self.reads(|source| matches!(source, Source::Cookie(_))),
            attributes: std::mem::take(&mut self.attributes),
            headers_read: Vec::new(),
            headers_kept: Vec::new(),
            limits_by_operation: Vec::new(),
        };
        let forwarded = policy.identity.forwarded.header_name();
        policy.headers_kept = lower_case(policy.fact_headers().chain([forwarded]));
        let parsed = policy.parsed_headers().chain(policy.headers_kept.iter().map(|name| &**name));
        policy.headers_read = lower_case(parsed);
        policy.limits_by_operation = limits_by_operation(&policy);
        if sound_operations && sound_limits {
            let warnings = Warnings { policy: &policy, root, diagnostics: self.diagnostics };
            warnings.warn_about_limits();
            if sound_protection {
                protection_warnings::warn(&policy, root, self.diagnostics);
                warnings.warn_about_reach();
            }
        }
        Some(policy)
    }

    /// Reads a section; false if it has an error. Warnings about such a section would mislead: they
    /// would be about values that are not in the file.
    fn is_sound<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> (T, bool) {
        let errors = self.diagnostics.errors();
        (read(self), self.diagnostics.errors() == errors)
    }

    fn check_language_version(&self, root: &Node, fields: &Fields<'_>) {
        let missing = "found no `tidegate`, expected `tidegate: 1` (the language version)";
        let node = fields.require("tidegate", root.at, missing);
        if let Some(node) = node.filter(|node| node.text() != Some("1")) {
            let message = format!("found {}, expected language version `1`", node.kind());
            self.diagnostics.error(node.at, message);
        }
    }

    fn name<'n>(&self, root: &Node, fields: &Fields<'n>) -> Option<&'n str> {
        let missing = "found no `name`, expected a name for the policy";
        let node = fields.require("name", root.at, missing)?;
        let name = text(node, "a name for the policy", self.diagnostics)?;
        check_name(name, node.at, "a policy", self.diagnostics);
        Some(name)
    }

    fn time_zone(&self, node: &Node) -> Option<TimeZone> {
        let name = text(node, "a time zone such as Europe/Berlin", self.diagnostics)?;
        let zone = TimeZone::get(name);
        let report = |_| {
            let known: Vec<String> =
                jiff::tz::db().available().map(|zone| zone.to_string()).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let message = format!("found `{}`, expected the IANA name of a time zone", shown(name));
            let help = match nearest(name, &known) {
                Some(zone) => format!("did you mean `{zone}`?"),
                None => "such as `UTC` or `Europe/Berlin`".to_owned(),
            };
            self.diagnostics.error_with_help(node.at, message, help);
        };
        zone.map_err(report).ok()
    }

    fn block(&mut self, node: &Node) -> (Networks, Vec<String>) {
        let fields = Fields::of(node, "`block`", &BLOCK_KEYS, self.diagnostics);
        let Some(fields) = fields else { return Default::default() };
        let ips = fields.get("ips").map(|node| self.networks(node));
        let countries = fields.get("countries").map(|node| self.countries(node));
        (ips.unwrap_or_default(), countries.unwrap_or_default())
    }

    /// The sections that protect, each after those that it refers to.
    fn protection(&mut self, fields: &Fields<'_>, limits: &[Limit]) -> Protection {
        let written = fields.get("limits").and_then(Node::entries).unwrap_or_default();
        let names: Names = written.iter().map(|entry| entry.key.as_str()).collect();
        let webhooks = fields.get("notify").map(|node| self.notify(node));
        if let Some(node) = fields.get("events") {
            self.events(node, &names);
        }
        let ratios = fields.get("ratios").map(|node| self.ratios(node)).unwrap_or_default();
        let penalties = fields.get("penalties").map(|node| self.penalties(node));
        let factors = fields.get("factors").map(|node| self.factors(node, &ratios));
        let challenge = fields.get("challenge").and_then(|node| self.challenge(node));
        let mut protection = Protection {
            webhooks: webhooks.unwrap_or_default(),
            penalties: penalties.unwrap_or_default(),
            factors: factors.unwrap_or_default(),
            ratios,
            challenge,
            ..std::mem::take(&mut self.protection)
        };
        self.check_templates(fields, limits, &protection.penalties);
        let challenges = limits.iter().any(|limit| limit.exceed == Exceed::Challenge)
            || protection.steps().any(|step| step.challenge);
        if challenges {
            protection.challenge.get_or_insert(Challenge::DEFAULT);
        }
        protection
    }

    /// Declares the tiers under `tiers`, or else all that the policy names.
    fn declare_tiers(&mut self, root: &Node, fields: &Fields<'_>) -> Option<()> {
        let declared = fields.get("tiers");
        let named = match declared {
            Some(node) => distinct_texts(node, "the name of a tier", self.diagnostics),
            None => named_tiers(root).collect(),
        };
        for (name, at) in named {
            self.add_tier(name, at);
        }
        if self.tiers.len() > TIERS_MAX {
            self.diagnostics.error(root.at, format!("found more than {TIERS_MAX} tiers"));
            // What follows works through tier after tier, for every limit.
            return None;
        }
        let identity = fields.get("identity");
        let stated = |key| identity.and_then(|node| node.get(key));
        self.anonymous_tier = self.declare_anonymous_tier(stated("anonymous_tier"));
        self.default_tier = match stated("default_tier") {
            None => self.tiers.add("default"),
            Some(node) => match text(node, "the name of a tier", self.diagnostics) {
                Some(name) if declared.is_some() => self.tier_id(name, node.at).unwrap_or_default(),
                Some(name) => self.add_tier(name, node.at),
                None => 0,
            },
        };
        Some(())
    }

    /// The anonymous tier is a tier of its own, declared or not.
    fn declare_anonymous_tier(&mut self, said: Option<&Node>) -> TierId {
        let said = said
            .and_then(|node| Some((node.at, text(node, "the name of a tier", self.diagnostics)?)));
        match said {
            Some((at, name)) => self.add_tier(name, at),
            None => self.tiers.add("anonymous"),
        }
    }

    fn add_tier(&mut self, name: &str, at: Position) -> TierId {
        check_name(name, at, "a tier", self.diagnostics);
        self.tiers.add(name)
    }

    fn tier_id(&self, name: &str, at: Position) -> Option<TierId> {
        declared_id(&self.tiers, name, at, "which is not a declared tier", self.diagnostics)
    }

    /// A value as the attribute would have it.
    fn normal_value(&self, id: Option<AttributeId>, value: &str) -> String {
        let attribute =
            id.and_then(|id| usize::try_from(id).ok()).and_then(|id| self.attributes.get(id));
        let normal = attribute.map_or(Normal::AsIs, |attribute| attribute.normal);
        match AttributeValue::Text(value.into()).normalised(normal) {
            AttributeValue::Text(value) => value.into_owned(),
            AttributeValue::Absent | AttributeValue::Unreadable(_) => value.to_owned(),
        }
    }

    fn reads(&self, is_read: impl Fn(&Source) -> bool) -> bool {
        self.attributes.iter().any(|one| is_read(&one.source))
    }

    /// An attribute that is declared, or captured by an operation in scope. `others` are further
    /// words that would have been valid, for the advice.
    fn attribute_id(
        &self,
        name: &str,
        at: Position,
        scope: &Scope<'_>,
        others: &[&str],
    ) -> Option<AttributeId> {
        let id = self.attribute_names.id(name);
        let declared =
            |id: AttributeId| usize::try_from(id).is_ok_and(|id| id < self.declared_attributes);
        let captured =
            |id| scope.operations.iter().any(|operation| self.captured.contains(&(*operation, id)));
        match id {
            Some(id) if declared(id) || captured(id) => Some(id),
            Some(_) => {
                let message =
                    format!("found `{name}`, which none of the operations in `when` captures");
                let help = format!("declare it under `identity.attributes` as `{name}: given`");
                self.diagnostics.error_with_help(at, message, help);
                None
            }
            None => {
                let message = format!("found `{}`, which is not a declared attribute", shown(name));
                let valid: Vec<&str> =
                    self.attribute_names.iter().chain(others.iter().copied()).collect();
                let can_be_declared = is_name(name) && !RESERVED_PARTS.contains(&name);
                if nearest(name, &valid).is_some() || !can_be_declared {
                    self.diagnostics.unknown_word(at, message, name, valid);
                } else {
                    let or = if others.is_empty() {
                        String::new()
                    } else {
                        format!(", or use {}", one_of(others))
                    };
                    let help = format!(
                        "declare it under `identity.attributes`, such as `{name}: {{ body: /{name} }}`{or}"
                    );
                    self.diagnostics.error_with_help(at, message, help);
                }
                None
            }
        }
    }
}

/// Every tier that the policy names, in its tier maps and conditions, and where.
fn named_tiers(root: &Node) -> impl Iterator<Item = (&str, Position)> {
    let limits = root.get("limits").and_then(Node::entries).unwrap_or_default();
    let maps =
        limits.iter().filter(|entry| entry.value.get("tier_by").is_none()).flat_map(|entry| {
            let specs =
                Algorithm::ALL.iter().filter_map(|algorithm| entry.value.get(algorithm.name()));
            specs
                .filter_map(Node::entries)
                .filter(|entries| !advice::is_spec_map(entries))
                .flatten()
                .map(|entry| (entry.key.as_str(), entry.key_at))
                .filter(|(key, _)| *key != "default")
        });
    let exempt = root.get("exempt").map(one_or_many).unwrap_or_default();
    let named = ["limits", "events", "factors"].into_iter().filter_map(|section| root.get(section));
    let named = named.filter_map(Node::entries).flatten();
    let conditions = named.filter_map(|entry| entry.value.get("when")).chain(exempt);
    let conditions = conditions.flat_map(|when| [Some(when), when.get("not")]).flatten();
    let conditions = conditions.filter_map(|when| when.get("tier")).flat_map(one_or_many);
    let conditions = conditions.filter_map(|node| Some((node.text()?, node.at)));
    maps.chain(conditions)
}

/// Which limits are considered for each operation: no other can apply.
fn limits_by_operation(policy: &Policy) -> Vec<Vec<u16>> {
    let considered = |operation: OperationId| {
        let limits = (0..).zip(&policy.limits);
        let may_apply = |limit: &Limit| limit.when.may_be_of(operation);
        limits.filter(|(_, limit)| may_apply(limit)).map(|(index, _)| index).collect()
    };
    (0..).take(policy.operations.names().len()).map(considered).collect()
}

/// Names in lower case, each once.
fn lower_case<'n>(names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_ascii_lowercase).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The keys of each kind of map, for the JSON Schema's own test.
#[cfg(test)]
pub(crate) fn known_keys() -> Vec<(&'static str, &'static Keys)> {
    vec![
        ("policy", &POLICY_KEYS),
        ("block", &BLOCK_KEYS),
        ("identity", &identity::KEYS),
        ("source", &identity::SOURCE_KEYS),
        ("internal", &identity::INTERNAL_KEYS),
        ("attribute", &identity::ATTRIBUTE_KEYS),
        ("paths", &operations::PATHS_KEYS),
        ("operation", &operations::KEYS),
        ("when", &when::KEYS),
        ("limit", &limits::KEYS),
        ("defaults", &limits::DEFAULTS_KEYS),
        ("response", &response::KEYS),
        ("blocked", &response::BLOCKED_KEYS),
        ("event", &events::KEYS),
        ("penalty", &penalties::KEYS),
        ("step", &penalties::STEP_KEYS),
        ("then", &penalties::THEN_KEYS),
        ("ban", &penalties::BAN_KEYS),
        ("ratio", &ratios::KEYS),
        ("factor", &factors::KEYS),
        ("challenge", &challenge::KEYS),
        ("webhook", &notify::KEYS),
    ]
}
