//! Whether one condition holds wherever another does, and whether a condition can hold at all. A yes
//! is certain; a no may be overcautious.

use super::model::{OperationId, Policy};
use super::when::When;
use crate::operation::{PathPattern, Pattern};

/// With more operations, the answer is not worth its time.
const OPERATIONS_COMPARED_MAX: usize = 50;

/// True if every request that meets `narrow` meets `broad` too. Requests that name their operation
/// without a path are left out of account where `broad` is about paths.
pub(crate) fn implies(policy: &Policy, narrow: &When, broad: &When) -> bool {
    let patterns = Patterns { policy, when: narrow };
    let attributes = broad.attributes.iter().all(|(id, values)| {
        let narrow = narrow.attributes.iter().find(|(other, _)| other == id);
        narrow.is_some_and(|(_, narrow)| narrow.iter().all(|value| values.contains(value)))
    });
    is_subset(narrow.operations.as_deref(), broad.operations.as_deref())
        && is_subset(narrow.tiers.as_deref(), broad.tiers.as_deref())
        && is_subset(narrow.countries.as_deref(), broad.countries.as_deref())
        && broad.authenticated.is_none_or(|wanted| narrow.authenticated == Some(wanted))
        && broad.internal.is_none_or(|wanted| narrow.internal == Some(wanted))
        && broad.networks.is_none()
        && broad.not.is_none()
        && attributes
        && broad.methods.as_ref().is_none_or(|methods| patterns.have_methods(methods))
        && broad.paths.as_ref().is_none_or(|paths| patterns.are_within(paths))
}

/// Why no request meets a condition, if none does. `needs_user` is true if only requests of users are
/// meant.
pub(crate) fn contradiction(
    policy: &Policy,
    when: &When,
    needs_user: bool,
) -> Option<&'static str> {
    let patterns = Patterns { policy, when };
    let rules = &policy.identity;
    let anonymous = |tiers: &Vec<u32>| tiers.iter().all(|tier| *tier == rules.anonymous_tier);
    let tier_has_no_users = rules.anonymous_tier != rules.default_tier
        && (needs_user || when.authenticated == Some(true))
        && when.tiers.as_ref().is_some_and(anonymous);
    if tier_has_no_users {
        return Some("no user has the anonymous tier");
    }
    if when.not.as_ref().is_some_and(|not| implies(policy, when, not)) {
        return Some("its `not` excludes all that it includes");
    }
    if when.paths.as_ref().is_some_and(|paths| patterns.are_apart_from(paths)) {
        return Some("no path of its operations is one of its paths");
    }
    if when.methods.as_ref().is_some_and(|methods| patterns.lack_methods(methods)) {
        return Some("its operations have other methods");
    }
    None
}

fn is_subset<T: PartialEq>(narrow: Option<&[T]>, broad: Option<&[T]>) -> bool {
    let within =
        |broad: &[T]| narrow.is_some_and(|narrow| narrow.iter().all(|one| broad.contains(one)));
    broad.is_none_or(within)
}

/// The patterns that a request must match to meet a condition.
struct Patterns<'p> {
    policy: &'p Policy,
    when: &'p When,
}

impl<'p> Patterns<'p> {
    /// The patterns of all its operations; `None` if one of its operations has no pattern.
    fn of_operations(&self) -> Option<Vec<&'p Pattern>> {
        let operations = self.when.operations.as_deref()?;
        if operations.len() > OPERATIONS_COMPARED_MAX {
            return None;
        }
        let mut all = Vec::new();
        for id in operations {
            let of_one = |id: OperationId| self.policy.operations.patterns_of(id);
            of_one(*id).next()?;
            all.extend(of_one(*id));
        }
        Some(all)
    }

    /// True if every path is one of these.
    fn are_within(&self, paths: &[PathPattern]) -> bool {
        let within = |path: &PathPattern| paths.iter().any(|broad| broad.covers(path));
        let own = self.when.paths.as_ref().is_some_and(|own| own.iter().all(within));
        let all_within =
            |patterns: Vec<&Pattern>| patterns.iter().all(|pattern| within(pattern.path()));
        own || self.of_operations().is_some_and(all_within)
    }

    /// True if no path is one of these.
    fn are_apart_from(&self, paths: &[PathPattern]) -> bool {
        let apart =
            |pattern: &&Pattern| paths.iter().all(|path| path.is_apart_from(pattern.path()));
        self.of_operations().is_some_and(|patterns| patterns.iter().all(apart))
    }

    /// True if every method is one of these.
    fn have_methods(&self, methods: &[String]) -> bool {
        // A GET may be a HEAD.
        let has = |method: &str| {
            methods.iter().any(|one| one == method || one == "GET" && method == "HEAD")
        };
        let own = self.when.methods.as_ref().is_some_and(|own| own.iter().all(|one| has(one)));
        let all_have = |pattern: &&Pattern| {
            pattern.methods().names().next().is_some() && pattern.methods().names().all(has)
        };
        own || self.of_operations().is_some_and(|patterns| patterns.iter().all(all_have))
    }

    /// True if no method is one of these.
    fn lack_methods(&self, methods: &[String]) -> bool {
        let lacks = |pattern: &&Pattern| {
            let own = pattern.methods();
            // `GET` includes `HEAD` on either side.
            let has = |method: &String| {
                own.contains(method) || method == "GET" && own.names().any(|one| one == "HEAD")
            };
            own.names().next().is_some() && !methods.iter().any(has)
        };
        self.of_operations().is_some_and(|patterns| patterns.iter().all(lacks))
    }
}
