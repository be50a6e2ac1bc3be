//! Conditions: whether a limit applies to a request, and if not, why.

use std::fmt;

use super::model::{AttributeId, OperationId, Policy, TierId};
use crate::context::Context;
use crate::identity::Networks;
use crate::identity::attribute::AttributeValue;
use crate::operation::PathPattern;

/// A conjunction of conditions; `None` means any.
#[derive(Debug, Default)]
pub(crate) struct When {
    /// Sorted, each once.
    pub(crate) operations: Option<Vec<OperationId>>,
    pub(crate) tiers: Option<Vec<TierId>>,
    pub(crate) methods: Option<Vec<String>>,
    pub(crate) paths: Option<Vec<PathPattern>>,
    pub(crate) networks: Option<Networks>,
    pub(crate) countries: Option<Vec<String>>,
    pub(crate) authenticated: Option<bool>,
    pub(crate) internal: Option<bool>,
    pub(crate) attributes: Vec<(AttributeId, Vec<String>)>,
    pub(crate) not: Option<Box<When>>,
}

/// How a condition reads a request that services may read differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The condition holds if some service could read the request so: its path in normal form, and an
    /// attribute that cannot be read as any value. What puts a request under a limit is read this way, so
    /// that no spelling escapes the limit.
    Wide,
    /// The condition holds only if every service reads the request so: its path as it is forwarded, and an
    /// attribute that cannot be read as no value. What is in a client's favour is read this way.
    Narrow,
}

impl Reading {
    /// The reading within a `not:`.
    const fn negated(self) -> Self {
        match self {
            Self::Wide => Self::Narrow,
            Self::Narrow => Self::Wide,
        }
    }
}

/// The condition that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnmetCondition {
    Operation,
    Tier,
    Method,
    Path,
    Ip,
    Country,
    Authenticated,
    Internal,
    Attribute(AttributeId),
    Not,
}

impl When {
    /// True if it names operations or paths.
    pub(crate) fn names_requests(&self) -> bool {
        self.operations.is_some() || self.paths.is_some()
    }

    /// True if it has a condition on tiers and no other.
    pub(crate) fn is_only_tiers(&self) -> bool {
        self.operations.is_none() && self.is_only_tiers_and_operations()
    }

    /// True if it has a condition on operations and no other.
    pub(crate) fn is_only_operations(&self) -> bool {
        self.tiers.is_none() && self.is_only_tiers_and_operations()
    }

    /// True if no anonymous request of its operations and paths escapes it.
    pub(crate) fn reaches_all_anonymous(&self) -> bool {
        let excludes_paths = |not: &When| {
            let others = not.operations.is_some() || not.tiers.is_some() || not.not.is_some();
            !others && not.authenticated.is_none() && !not.has_narrow_conditions()
        };
        let everyone = self.tiers.is_none() && self.not.as_deref().is_none_or(excludes_paths);
        everyone && self.authenticated != Some(true) && !self.has_narrow_conditions()
    }

    fn is_only_tiers_and_operations(&self) -> bool {
        let among = self.authenticated.is_some() || self.paths.is_some();
        !among && !self.has_narrow_conditions() && self.not.is_none()
    }

    /// Conditions on the request itself, beyond operation, path, tier and user.
    fn has_narrow_conditions(&self) -> bool {
        self.methods.is_some()
            || self.networks.is_some()
            || self.countries.is_some()
            || self.internal.is_some()
            || !self.attributes.is_empty()
    }

    /// True if its condition on operations includes this one.
    pub(crate) fn may_be_of(&self, operation: OperationId) -> bool {
        meets(self.operations.as_ref(), |ids| ids.binary_search(&operation).is_ok())
    }

    /// True if every condition holds, or would if an attribute could be read: nobody escapes a limit
    /// by sending what cannot be read.
    pub(crate) fn holds(&self, context: &Context<'_>) -> bool {
        self.first_unmet(context).is_none()
    }

    /// True if every condition holds for every service. What is in a client's favour asks this.
    pub(crate) fn surely_holds(&self, context: &Context<'_>) -> bool {
        self.first_unmet_by(context, Reading::Narrow).is_none()
    }

    /// The first condition that does not hold.
    pub(crate) fn first_unmet(&self, context: &Context<'_>) -> Option<UnmetCondition> {
        self.first_unmet_by(context, Reading::Wide)
    }

    fn first_unmet_by(&self, context: &Context<'_>, reading: Reading) -> Option<UnmetCondition> {
        let within = |nets: &Networks| context.address.is_some_and(|ip| nets.contains(ip));
        if !self.may_be_of(context.operation) {
            return Some(UnmetCondition::Operation);
        }
        if reading == Reading::Narrow
            && self.operations.is_some()
            && !context.is_operation_as_forwarded()
        {
            return Some(UnmetCondition::Path);
        }
        if !meets(self.tiers.as_ref(), |ids| ids.contains(&context.tier)) {
            return Some(UnmetCondition::Tier);
        }
        if !meets(self.methods.as_ref(), |methods| has_method(methods, context.method())) {
            return Some(UnmetCondition::Method);
        }
        if !meets(self.paths.as_ref(), |paths| context.path_matches(paths, reading)) {
            return Some(UnmetCondition::Path);
        }
        if !meets(self.networks.as_ref(), within) {
            return Some(UnmetCondition::Ip);
        }
        if !meets(self.countries.as_ref(), |codes| has(codes, context.country().as_deref())) {
            return Some(UnmetCondition::Country);
        }
        if self.authenticated.is_some_and(|wanted| wanted != context.user.is_some()) {
            return Some(UnmetCondition::Authenticated);
        }
        if self.internal.is_some_and(|wanted| wanted != context.internal) {
            return Some(UnmetCondition::Internal);
        }
        self.unmet_attribute(context, reading).or_else(|| {
            let not = self.not.as_deref()?;
            let unmet = not.first_unmet_by(context, reading.negated());
            unmet.is_none().then_some(UnmetCondition::Not)
        })
    }

    fn unmet_attribute(&self, context: &Context<'_>, reading: Reading) -> Option<UnmetCondition> {
        let differs = |(id, values): &&(AttributeId, Vec<String>)| match context.find(*id) {
            AttributeValue::Absent => true,
            AttributeValue::Text(value) => !has(values, Some(&value)),
            AttributeValue::Unreadable(_) => reading == Reading::Narrow,
        };
        self.attributes.iter().find(differs).map(|(id, _)| UnmetCondition::Attribute(*id))
    }
}

fn meets<T>(condition: Option<&T>, holds: impl FnOnce(&T) -> bool) -> bool {
    condition.is_none_or(holds)
}

/// GET also means HEAD, as in operations.
fn has_method(methods: &[String], method: Option<&str>) -> bool {
    has(methods, method) || method == Some("HEAD") && has(methods, Some("GET"))
}

fn has(values: &[String], value: Option<&str>) -> bool {
    value.is_some_and(|value| values.iter().any(|one| one == value))
}

impl UnmetCondition {
    /// Explains it in words, with the value of the request.
    pub(crate) fn explain(self, policy: &Policy, context: &Context<'_>) -> String {
        match self {
            Self::Operation => {
                format!("the operation is `{}`", policy.operations.name(context.operation))
            }
            Self::Tier => format!("the tier is `{}`", policy.tiers.name(context.tier)),
            Self::Method => format!("the method is {}", or_missing(context.method())),
            Self::Path => {
                format!("the path is {}", or_missing(context.counted_path().as_deref()))
            }
            Self::Ip => match context.address {
                Some(address) => format!("the address is {address}"),
                None => "there is no address".to_owned(),
            },
            Self::Country => format!("the country is {}", or_missing(context.country().as_deref())),
            Self::Authenticated if context.user.is_some() => "there is a user".to_owned(),
            Self::Authenticated => "there is no user".to_owned(),
            Self::Internal if context.internal => "the caller is internal".to_owned(),
            Self::Internal => "the caller is not internal".to_owned(),
            Self::Attribute(id) => {
                let value = context.attribute(id);
                format!("`{}` is {}", policy.attribute_names.name(id), or_missing(value.as_deref()))
            }
            Self::Not => "what its `not:` excludes is the case".to_owned(),
        }
    }
}

fn or_missing(value: Option<&str>) -> impl fmt::Display {
    match value {
        Some(value) => format!("`{value}`"),
        None => "missing".to_owned(),
    }
}
