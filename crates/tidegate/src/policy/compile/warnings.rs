//! Warnings: what is legal, but surely not meant.

use super::Compiler;
use super::fields::is_name;
use super::operations::OperationPattern;
use crate::algorithm;
use crate::operation::{Matcher, PathPattern};
use crate::policy::diagnostics::{Position, Reporter};
use crate::policy::document::Node;
use crate::policy::model::{
    Exceed, IdentitySource, Internal, Limit, Missing, OperationId, Part, Policy, Setting, Settings,
    Spec,
};
use crate::units::Amount;

/// Words in an operation's name that say: here someone becomes a user.
const BEFORE_LOGIN: [&str; 9] = [
    "login",
    "signin",
    "sign-in",
    "sign_in",
    "signup",
    "sign-up",
    "register",
    "logon",
    "authenticate",
];

/// No bucket is lent from whose burst is smaller, for each node.
const LEASED_BURST_MIN: Amount = match Amount::from_units(4) {
    Some(four) => four,
    None => Amount::MAX,
};

/// More operations than this are not compared path by path.
const OPERATIONS_COMPARED_MAX: usize = 50;

impl Compiler<'_> {
    /// An operation that can never match because an earlier one does.
    pub(super) fn warn_about_operations(&mut self, declared: &[OperationPattern]) {
        let mut before = Matcher::new([]);
        for later in declared {
            let headers = later.headers.clone();
            let earlier = before.cover(later.operation, &later.pattern, headers);
            let Some(earlier) = earlier else { continue };
            let (name, other) =
                (self.operations.name(later.operation), self.operations.name(earlier));
            if name != other {
                let message = format!(
                    "the operation `{name}` can never match this, because `{other}` matches first"
                );
                self.diagnostics.warn(later.at, message, format!("move `{name}` before `{other}`"));
            }
        }
    }
}

/// Everything that can be said once the policy stands.
pub(super) fn warn(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    for limit in &policy.limits {
        let at = position(root, "limits", &limit.name);
        anonymous_escapes(policy, limit, at, diagnostics);
        nobody_is_a_user_yet(policy, limit, at, diagnostics);
        burst_beyond_quota(policy, limit, at, diagnostics);
        too_small_to_lease(limit, at, diagnostics);
    }
    unnamed_tiers(policy, root, diagnostics);
    nobody_is_trusted(policy, root, diagnostics);
}

/// A header that says who the client is, and no proxy that may.
fn nobody_is_trusted(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    let rules = &policy.identity;
    if !rules.trusted_proxies.is_empty() {
        return;
    }
    let internal = matches!(rules.internal, Internal::Header { .. });
    let named = [
        ("user", matches!(rules.user, Some(IdentitySource::Header(_)))),
        ("tier", matches!(rules.tier, Some(IdentitySource::Header(_)))),
        ("internal", internal),
    ];
    let Some(identity) = root.get("identity") else { return };
    for (key, _) in named.iter().filter(|(_, named)| *named) {
        let at = identity.get(key).map_or(identity.at, |node| node.at);
        let message = format!(
            "the header of `{key}` is believed only from a trusted proxy, and there is none"
        );
        diagnostics.warn(at, message, "name the proxies that set it under `trusted_proxies`");
    }
}

/// Where a named thing stands in a section.
pub(super) fn position(root: &Node, section: &str, name: &str) -> Position {
    let entries = root.get(section).and_then(Node::entries).unwrap_or_default();
    entries.iter().find(|entry| entry.key == name).map_or(root.at, |entry| entry.key_at)
}

/// A limit by user does not see anonymous requests; something else should.
fn anonymous_escapes(policy: &Policy, limit: &Limit, at: Position, diagnostics: &Reporter) {
    if !skips_anonymous(limit) || limit.when.authenticated == Some(true) {
        return;
    }
    let tiers_are_of_users = limit
        .when
        .tiers
        .as_ref()
        .is_some_and(|tiers| !tiers.contains(&policy.identity.anonymous_tier));
    let covers = |other: &Limit| {
        let acts = !other.shadow && other.exceed != Exceed::Warn;
        let each_client = acts && !skips_anonymous(other) && other.by != [Part::Global];
        each_client && other.when.reaches_all_anonymous() && covers_requests(policy, other, limit)
    };
    if tiers_are_of_users || policy.limits.iter().any(covers) {
        return;
    }
    let message =
        format!("anonymous requests escape the limit `{}`: they have no user", limit.name);
    let help = "use `by: client`, add a limit `by: ip`, or say `when: { authenticated: true }`";
    diagnostics.warn(at, message, help);
}

fn skips_anonymous(limit: &Limit) -> bool {
    limit.by.contains(&Part::User) && matches!(limit.missing, None | Some(Missing::Skip))
}

/// Whether one limit sees every request of another's operations, by operation and path.
fn covers_requests(policy: &Policy, broad: &Limit, narrow: &Limit) -> bool {
    let excluded = broad.when.not.as_ref().and_then(|not| not.paths.as_deref()).unwrap_or_default();
    if broad.when.paths.is_none() && excluded.is_empty() {
        return covers_operations(broad, narrow);
    }
    let paths = |operation: &OperationId| policy.operations.paths_of(*operation);
    let within = |path: &PathPattern, patterns: &[PathPattern]| {
        patterns.iter().any(|pattern| pattern.covers(path))
    };
    let seen = |path: &PathPattern| {
        let included = broad.when.paths.as_deref().is_none_or(|paths| within(path, paths));
        included && !within(path, excluded)
    };
    let operations = narrow.when.operations.as_deref().unwrap_or_default();
    // With very many operations the answer is not worth its time.
    let few = (1..=OPERATIONS_COMPARED_MAX).contains(&operations.len());
    covers_operations(broad, narrow) && few && operations.iter().all(|id| paths(id).all(seen))
}

fn covers_operations(broad: &Limit, narrow: &Limit) -> bool {
    match (&broad.when.operations, &narrow.when.operations) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(broad), Some(narrow)) => {
            narrow.iter().all(|operation| broad.binary_search(operation).is_ok())
        }
    }
}

/// Whoever logs in is no user before.
fn nobody_is_a_user_yet(policy: &Policy, limit: &Limit, at: Position, diagnostics: &Reporter) {
    let operations = limit.when.operations.as_deref().unwrap_or_default();
    let Some(name) = before_login(policy, operations).filter(|_| limit.by.contains(&Part::User))
    else {
        return;
    };
    let message =
        format!("the limit `{}` counts users, but at `{name}` nobody is one yet", limit.name);
    diagnostics.warn(
        at,
        message,
        "use `by: ip`, or an attribute such as the e-mail address in the body",
    );
}

/// The first of some operations at which nobody is a user yet, by its name.
pub(super) fn before_login<'p>(policy: &'p Policy, operations: &[OperationId]) -> Option<&'p str> {
    let mut names = operations.iter().map(|id| policy.operations.name(*id));
    let is_before = |name: &&str| {
        let name = name.to_ascii_lowercase();
        BEFORE_LOGIN.iter().any(|word| name.contains(word))
    };
    names.find(is_before)
}

/// A burst that a day's quota could never pay for.
fn burst_beyond_quota(policy: &Policy, limit: &Limit, at: Position, diagnostics: &Reporter) {
    let same_subject = |other: &&Limit| {
        other.by == limit.by && other.cost == limit.cost && covers_operations(other, limit)
    };
    let Some(burst) = largest(limit, |spec| match spec {
        Spec::Plain(algorithm::Spec::TokenBucket(spec)) => Some(spec.burst),
        _ => None,
    }) else {
        return;
    };
    for other in policy.limits.iter().filter(same_subject) {
        let quota = largest(other, |spec| match spec {
            Spec::Calendar { limit, unit: algorithm::calendar::Unit::Day } => Some(*limit),
            _ => None,
        });
        if let Some(quota) = quota.filter(|quota| *quota < burst) {
            let message = format!(
                "the burst of `{}` ({burst}) is larger than a whole day's quota in `{}` ({quota})",
                limit.name, other.name
            );
            diagnostics.warn(at, message, "lower the burst, or raise the quota");
        }
    }
}

/// A leased bucket of which no node could borrow anything.
fn too_small_to_lease(limit: &Limit, at: Position, diagnostics: &Reporter) {
    let burst = largest(limit, |spec| match spec {
        Spec::Plain(algorithm::Spec::TokenBucket(spec)) => Some(spec.burst),
        _ => None,
    });
    let too_small = |burst: &Amount| limit.is_leased() && *burst < LEASED_BURST_MIN;
    if let Some(burst) = burst.filter(too_small) {
        let message = format!(
            "the limit `{}` is leased, but never lends anything: its burst is {burst}",
            limit.name
        );
        let help =
            format!("raise the burst to {LEASED_BURST_MIN} for each node, or leave it exact");
        diagnostics.warn(at, message, help);
    }
}

fn largest(limit: &Limit, amount: impl Fn(&Spec) -> Option<Amount>) -> Option<Amount> {
    let settings: Vec<&Setting> = match &limit.settings {
        Settings::Everyone(setting) => vec![setting],
        Settings::ByTier(settings) => settings.iter().flatten().collect(),
        Settings::ByAttribute { settings, default, .. } => {
            settings.values().chain([default]).collect()
        }
    };
    let specs = settings.into_iter().filter_map(|setting| match setting {
        Setting::Limited(spec) => Some(spec),
        Setting::Unlimited => None,
    });
    specs.filter_map(amount).max()
}

/// A tier that is declared, but that no limit names.
fn unnamed_tiers(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    let Some(declared) = root.get("tiers") else { return };
    let named: Vec<&str> = super::named_tiers(root).map(|(name, _)| name).collect();
    for node in super::one_or_many(declared) {
        let unnamed = |name: &&str| is_name(name) && !named.contains(name);
        let Some(name) = node.text().filter(unnamed) else { continue };
        if policy.tiers.id(name) == Some(policy.identity.default_tier) {
            continue;
        }
        let message = format!("the tier `{name}` is declared, but no limit names it");
        diagnostics.warn(node.at, message, "name it in a limit, or take it out of `tiers`");
    }
}
