//! Warnings about limits: legal, but probably a mistake.

use super::Compiler;
use super::fields::is_name;
use super::operations::OperationPattern;
use crate::algorithm;
use crate::operation::{Matcher, PathPattern};
use crate::policy::diagnostics::{Position, Reporter};
use crate::policy::document::Node;
use crate::policy::model::{
    Exceed, IdentitySource, Internal, Limit, Missing, OperationId, Part, Policy, Spec,
};
use crate::units::Amount;

/// Words in the names of operations at which clients log in.
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

/// A bucket with a smaller burst, for each node, lends no tokens.
const LEASED_BURST_MIN: Amount = match Amount::from_units(4) {
    Some(four) => four,
    None => Amount::MAX,
};

/// More operations than this are not compared path by path.
const OPERATIONS_COMPARED_MAX: usize = 50;

impl Compiler<'_> {
    /// A segment that stands for any text in other routers, and for itself here.
    pub(super) fn warn_about_placeholders(&self, pattern: &str, at: Position) {
        for segment in pattern.split('/').filter(|segment| segment.is_ascii()) {
            let name = match segment.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) {
                // `<int:id>`
                Some(inner) => inner.rsplit(':').next(),
                None => segment.strip_prefix(':'),
            };
            let is_name = |name: &&str| PathPattern::parse(&format!("/{{{name}}}")).is_ok();
            if let Some(name) = name.filter(is_name) {
                let message =
                    format!("found `{segment}`, which matches only a path with that text");
                let help = format!("write `{{{name}}}` for a segment of any text");
                self.diagnostics.warn(at, message, help);
            }
        }
    }

    /// An operation that can never match because an earlier one does.
    pub(super) fn warn_about_operations(&mut self, declared: &[OperationPattern]) {
        let mut before = Matcher::new(self.paths.case, []);
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

/// Looks for warnings in a policy that compiles.
pub(super) struct Warnings<'w> {
    pub(super) policy: &'w Policy,
    pub(super) root: &'w Node,
    pub(super) diagnostics: &'w Reporter,
}

/// The position of a named thing in a section.
pub(super) fn position(root: &Node, section: &str, name: &str) -> Position {
    let entries = root.get(section).and_then(Node::entries).unwrap_or_default();
    entries.iter().find(|entry| entry.key == name).map_or(root.at, |entry| entry.key_at)
}

impl Warnings<'_> {
    /// Warns about limits, tiers and headers.
    pub(super) fn warn_about_limits(&self) {
        for limit in &self.policy.limits {
            self.warn_if_anonymous_escape(limit);
            self.warn_if_before_login(limit);
            self.warn_if_burst_exceeds_quota(limit);
            self.warn_if_too_small_to_lend(limit);
        }
        self.warn_about_unnamed_tiers();
        self.warn_about_untrusted_headers();
        self.warn_about_idle_limits();
    }

    pub(super) fn warn_at_limit(&self, limit: &Limit, message: String, help: impl AsRef<str>) {
        self.diagnostics.warn(position(self.root, "limits", &limit.name), message, help);
    }

    /// A header says who the client is, and no proxy is trusted to set it.
    fn warn_about_untrusted_headers(&self) {
        let rules = &self.policy.identity;
        let named = [
            ("user", matches!(rules.user, Some(IdentitySource::Header(_)))),
            ("tier", matches!(rules.tier, Some(IdentitySource::Header(_)))),
            ("internal", matches!(rules.internal, Internal::Header { .. })),
        ];
        let identity = self.root.get("identity").filter(|_| rules.trusted_proxies.is_empty());
        let Some(identity) = identity else { return };
        for (key, _) in named.iter().filter(|(_, named)| *named) {
            let at = identity.get(key).map_or(identity.at, |node| node.at);
            let message = format!(
                "the header of `{key}` is believed only from a trusted proxy, and there is none"
            );
            let help = "name the proxies that set it under `trusted_proxies`";
            self.diagnostics.warn(at, message, help);
        }
    }

    /// A limit by user does not count anonymous requests, and no other limit does.
    fn warn_if_anonymous_escape(&self, limit: &Limit) {
        if !skips_anonymous(limit) || limit.when.authenticated == Some(true) {
            return;
        }
        let anonymous = &self.policy.identity.anonymous_tier;
        let tiers_are_of_users =
            limit.when.tiers.as_ref().is_some_and(|tiers| !tiers.contains(anonymous));
        let covers = |other: &Limit| {
            let acts = !other.shadow && other.exceed != Exceed::Warn;
            let each_client = acts && !skips_anonymous(other) && other.by != [Part::Global];
            each_client && other.when.reaches_all_anonymous() && self.covers_requests(other, limit)
        };
        if tiers_are_of_users || self.policy.limits.iter().any(covers) {
            return;
        }
        let name = &limit.name;
        let message = format!("anonymous requests escape the limit `{name}`: they have no user");
        let help = "use `by: client`, add a limit `by: ip`, or say `when: { authenticated: true }`";
        self.warn_at_limit(limit, message, help);
    }

    /// True if one limit counts every request of another's operations, by operation and path.
    pub(super) fn covers_requests(&self, broad: &Limit, narrow: &Limit) -> bool {
        let excluded =
            broad.when.not.as_ref().and_then(|not| not.paths.as_deref()).unwrap_or_default();
        if broad.when.paths.is_none() && excluded.is_empty() {
            return covers_operations(broad, narrow);
        }
        let paths = |operation: &OperationId| self.policy.operations.paths_of(*operation);
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

    /// A limit by user on an operation at which clients are not logged in yet.
    fn warn_if_before_login(&self, limit: &Limit) {
        let operations = limit.when.operations.as_deref().unwrap_or_default();
        let name = before_login(self.policy, operations);
        if let Some(name) = name.filter(|_| limit.by.contains(&Part::User)) {
            let limit_name = &limit.name;
            let message =
                format!("the limit `{limit_name}` counts users, but at `{name}` nobody is one yet");
            let help = "use `by: ip`, or an attribute such as the e-mail address in the body";
            self.warn_at_limit(limit, message, help);
        }
    }

    /// A burst that a day's quota could never pay for.
    fn warn_if_burst_exceeds_quota(&self, limit: &Limit) {
        let Some(burst) = largest_burst(limit) else { return };
        let same_subject = |other: &&Limit| {
            other.by == limit.by && other.cost == limit.cost && covers_operations(other, limit)
        };
        for other in self.policy.limits.iter().filter(same_subject) {
            let quota = largest(other, |spec| match spec {
                Spec::Calendar { limit, unit: algorithm::calendar::Unit::Day } => Some(limit),
                _ => None,
            });
            if let Some(quota) = quota.filter(|quota| *quota < burst) {
                let (name, other) = (&limit.name, &other.name);
                let message = format!(
                    "the burst of `{name}` ({burst}) is larger than a whole day's quota in `{other}` ({quota})"
                );
                self.warn_at_limit(limit, message, "lower the burst, or raise the quota");
            }
        }
    }

    /// A leased bucket that is too small for any node to borrow from.
    fn warn_if_too_small_to_lend(&self, limit: &Limit) {
        let is_too_small = |burst: &Amount| limit.is_leased() && *burst < LEASED_BURST_MIN;
        if let Some(burst) = largest_burst(limit).filter(is_too_small) {
            let name = &limit.name;
            let message = format!(
                "the limit `{name}` is leased, but never lends anything: its burst is {burst}"
            );
            let help =
                format!("raise the burst to {LEASED_BURST_MIN} for each node, or leave it exact");
            self.warn_at_limit(limit, message, help);
        }
    }

    /// A tier that is declared, but that no limit names.
    fn warn_about_unnamed_tiers(&self) {
        let Some(declared) = self.root.get("tiers") else { return };
        let named: Vec<&str> = super::named_tiers(self.root).map(|(name, _)| name).collect();
        let is_default =
            |name: &str| self.policy.tiers.id(name) == Some(self.policy.identity.default_tier);
        for node in super::one_or_many(declared) {
            let unnamed = |name: &&str| is_name(name) && !named.contains(name) && !is_default(name);
            let Some(name) = node.text().filter(unnamed) else { continue };
            let message = format!("the tier `{name}` is declared, but no limit names it");
            self.diagnostics.warn(
                node.at,
                message,
                "name it in a limit, or take it out of `tiers`",
            );
        }
    }
}

pub(super) fn skips_anonymous(limit: &Limit) -> bool {
    limit.by.contains(&Part::User) && matches!(limit.missing, None | Some(Missing::Skip))
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

/// The name of the first of some operations at which clients are not logged in yet.
pub(super) fn before_login<'p>(policy: &'p Policy, operations: &[OperationId]) -> Option<&'p str> {
    let mut names = operations.iter().map(|id| policy.operations.name(*id));
    let is_before = |name: &&str| {
        let name = name.to_ascii_lowercase();
        BEFORE_LOGIN.iter().any(|word| name.contains(word))
    };
    names.find(is_before)
}

fn largest_burst(limit: &Limit) -> Option<Amount> {
    largest(limit, |spec| match spec {
        Spec::Plain(algorithm::Spec::TokenBucket(spec)) => Some(spec.burst),
        _ => None,
    })
}

fn largest(limit: &Limit, amount: impl Fn(Spec) -> Option<Amount>) -> Option<Amount> {
    limit.settings.specs().filter_map(amount).max()
}
