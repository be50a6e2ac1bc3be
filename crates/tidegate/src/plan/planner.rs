//! Making the levels of a request: which limits apply to it, and with which numbers.

use std::sync::Arc;

use super::{LEVELS_MAX, Level, Outline, PerLevel};
use crate::context::Context;
use crate::identity::Unreadable;
use crate::identity::attribute::AttributeValue;
use crate::key::{self, HashKey, Key, Raw};
use crate::policy::model::{
    Algorithm, AttributeId, Cost, Limit, Missing, Part, Policy, Setting, Settings, Source, Spec,
};
use crate::policy::when::UnmetCondition;
use crate::protection::factors::Multiplier;
use crate::request::RequestError;
use crate::units::Amount;

/// Whether a limit applies to a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Applicability {
    Yes(Level),
    No(Inapplicability),
}

/// Why a limit does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inapplicability {
    /// A condition of its `when`.
    Unmet(UnmetCondition),
    /// This part of its key is not there.
    Missing { part: usize },
    /// The tier, or attribute, is `unlimited`.
    Unlimited,
    /// A ceiling without a value to compare.
    NoValue,
    /// A shadow limit whose cost, value or key the request does not have.
    Lacking,
}

/// What a limit asks of a request.
struct Numbers<'l> {
    spec: &'l Spec,
    cost: Amount,
    key: Key,
}

/// Why there are no such numbers.
enum Otherwise {
    Not(Inapplicability),
    Wrong(Box<RequestError>),
}

impl Otherwise {
    #[cold]
    fn wrong(error: RequestError) -> Self {
        Self::Wrong(Box::new(error))
    }
}

/// Makes the levels of a request.
pub(crate) struct Planner<'p> {
    context: &'p Context<'p>,
    /// The factors that apply, multiplied.
    pub(crate) factor: Multiplier,
}

impl<'p> Planner<'p> {
    /// Without factors.
    pub(crate) const fn new(context: &'p Context<'p>) -> Self {
        Self { context, factor: Multiplier::ONE }
    }
}

impl Planner<'_> {
    /// Appends the levels of all limits that apply. Each that is considered is one of the policy.
    pub(crate) fn levels(&self, levels: &mut PerLevel<Level>) -> Result<(), RequestError> {
        let policy = self.context.policy();
        let considered = usize::try_from(self.context.operation).ok();
        let considered = considered.and_then(|at| policy.limits_by_operation.get(at));
        for index in considered.map_or(&[][..], |limits| limits) {
            let index = usize::from(*index);
            let limit = &policy.limits[index];
            // What is considered for an operation meets what the limit says of operations.
            if !self.outline(index).whole_operations && !limit.when.holds(self.context) {
                continue;
            }
            match self.consider(index, limit) {
                Ok(numbers) => levels.push(self.level(index, limit, &numbers)),
                Err(Otherwise::Wrong(error)) if !limit.shadow => return Err(*error),
                Err(_) => {}
            }
        }
        // Compiling proved that no request meets more; the bound holds whatever happens.
        if levels.len() > LEVELS_MAX {
            let detail = format!("meets more than {LEVELS_MAX} limits");
            return Err(RequestError::new("operation", detail));
        }
        Ok(())
    }

    /// What the levels of a limit have in common. The index is that of a limit.
    fn outline(&self, index: usize) -> &Outline {
        &self.context.active.outlines[index]
    }

    /// Whether one limit applies, and with which numbers.
    pub(crate) fn applies(
        &self,
        index: usize,
        limit: &Limit,
    ) -> Result<Applicability, RequestError> {
        if let Some(unmet) = limit.when.first_unmet(self.context) {
            return Ok(Applicability::No(Inapplicability::Unmet(unmet)));
        }
        match self.consider(index, limit) {
            Ok(numbers) => Ok(Applicability::Yes(self.level(index, limit, &numbers))),
            Err(Otherwise::Not(why)) => Ok(Applicability::No(why)),
            // A limit on trial never acts, not even where the request lacks what it would need.
            Err(Otherwise::Wrong(_)) if limit.shadow => {
                Ok(Applicability::No(Inapplicability::Lacking))
            }
            Err(Otherwise::Wrong(error)) => Err(*error),
        }
    }

    /// The numbers of a limit whose conditions are met.
    #[inline(always)]
    fn consider<'l>(&self, index: usize, limit: &'l Limit) -> Result<Numbers<'l>, Otherwise> {
        let spec = effective(limit, self.context)?;
        let lacks = |at: usize, part: &Part| match missing(limit, part, self.context.policy()) {
            Missing::Share => Ok(()),
            // Only what is absent is left out: the service may read what Tidegate cannot.
            Missing::Skip if self.context.is_unreadable(part) => Ok(()),
            Missing::Skip => Err(Otherwise::Not(Inapplicability::Missing { part: at })),
            Missing::Refuse => Err(Otherwise::wrong(refused(limit, part, self.context))),
        };
        let Some(spec) = spec else {
            self.missing_parts(limit).try_for_each(|(at, part)| lacks(at, part))?;
            return Err(Otherwise::Not(Inapplicability::Unlimited));
        };
        let key = self.outline(index).keys.key_unless(limit, self.context, lacks)?;
        let cost = match self.outline(index).cost(self.context.request) {
            Some(cost) => Some(cost),
            None => cost(limit, self.context)?,
        };
        match cost {
            Some(cost) => Ok(Numbers { spec, cost, key }),
            None => Err(Otherwise::Not(Inapplicability::NoValue)),
        }
    }

    /// The level that names the subject of a request on a limit, whatever it costs or may have;
    /// `None` where it has no key.
    pub(crate) fn subject(&self, index: usize, limit: &Limit) -> Option<Level> {
        let shared = |(_, part)| {
            let missing = missing(limit, part, self.context.policy());
            missing == Missing::Share
                || missing == Missing::Skip && self.context.is_unreadable(part)
        };
        let applies = limit.when.holds(self.context) && self.missing_parts(limit).all(shared);
        if applies { self.keyed(index, limit) } else { None }
    }

    /// The same whatever the conditions of the limit say; `None` where nobody is limited.
    pub(crate) fn keyed(&self, index: usize, limit: &Limit) -> Option<Level> {
        let spec = effective(limit, self.context).ok().flatten().copied();
        let spec = spec.or_else(|| limit.settings.first_spec())?;
        let key = self.outline(index).keys.key(limit, self.context);
        Some(self.level(index, limit, &Numbers { spec: &spec, cost: Amount::ZERO, key }))
    }

    /// The parts of a limit's key that the request does not have.
    fn missing_parts<'l>(&self, limit: &'l Limit) -> impl Iterator<Item = (usize, &'l Part)> {
        limit.by.iter().enumerate().filter(|(_, part)| !self.context.has(part))
    }

    #[inline(always)]
    fn level(&self, index: usize, limit: &Limit, numbers: &Numbers<'_>) -> Level {
        let Numbers { spec, cost, key } = *numbers;
        let context = self.context;
        let (windows, zone) = (&context.active.windows, &context.policy().zone);
        let spec = spec.within(|unit| windows.at(unit, zone, context.now.unix_us));
        let is_scaled = limit.scaled && self.factor != Multiplier::ONE;
        let spec = if is_scaled { spec.scaled(self.factor) } else { spec };
        self.outline(index).level(limit, context, key, spec, cost)
    }
}

/// The names of the keys of levels.
pub(crate) fn key_names(
    context: &Context<'_>,
    secret: &HashKey,
    levels: &[Level],
) -> Vec<Arc<str>> {
    let name = |level: &Level| {
        // The level is one of the context's policy.
        let limit = &context.policy().limits[usize::from(level.limit)];
        key::name(secret, limit, context, Raw::Shown, || level.key).into()
    };
    levels.iter().map(name).collect()
}

/// The spec that holds for this request; `None` for unlimited. An attribute that selects it must be
/// readable, or a client could choose the default.
#[inline(always)]
fn effective<'l>(limit: &'l Limit, context: &Context<'_>) -> Result<Option<&'l Spec>, Otherwise> {
    let setting = match &limit.settings {
        Settings::Everyone(setting) => setting,
        Settings::ByTier(settings) => {
            let tier = usize::try_from(context.tier).ok();
            let setting = tier.and_then(|tier| settings.get(tier)).and_then(Option::as_ref);
            let Some(setting) = setting else { return Ok(None) };
            setting
        }
        Settings::ByAttribute { attribute, settings, default } => match context.find(*attribute) {
            AttributeValue::Absent => default,
            AttributeValue::Text(value) => settings.get(&*value).unwrap_or(default),
            AttributeValue::Unreadable(why) => {
                return Err(unreadable(*attribute, why, context));
            }
        },
    };
    match setting {
        Setting::Unlimited => Ok(None),
        Setting::Limited(spec) => Ok(Some(spec)),
    }
}

fn unreadable(attribute: AttributeId, why: Unreadable, context: &Context<'_>) -> Otherwise {
    let name = context.policy().attribute_names.name(attribute);
    Otherwise::wrong(RequestError::new(
        format!("attributes.{name}"),
        format!("cannot be read: {why}"),
    ))
}

/// What the request costs on this limit; `None` for a ceiling without a value.
#[inline]
fn cost(limit: &Limit, context: &Context<'_>) -> Result<Option<Amount>, Otherwise> {
    let place = limit.algorithm == Algorithm::Concurrency;
    match limit.cost {
        _ if limit.value.is_some() => value(limit, context),
        // Whoever holds a place holds one, however much the request costs elsewhere.
        Cost::Requested if place => {
            Ok(Some(context.request.cost.unwrap_or(Amount::ONE).min(Amount::ONE).whole_up()))
        }
        Cost::Requested => Ok(Some(context.request.cost.unwrap_or(Amount::ONE))),
        Cost::Fixed(amount) => Ok(Some(amount)),
        Cost::Attribute(attribute) => match amount_of(attribute, context)? {
            Some(amount) if place => Ok(Some(amount.whole_up())),
            Some(amount) => Ok(Some(amount)),
            None => Err(absent(attribute, "charges", limit, context)),
        },
    }
}

/// What a ceiling compares.
fn value(limit: &Limit, context: &Context<'_>) -> Result<Option<Amount>, Otherwise> {
    let Some(attribute) = limit.value else { return Ok(None) };
    let value = amount_of(attribute, context)?;
    if value.is_none() && limit.missing == Some(Missing::Refuse) {
        return Err(absent(attribute, "compares", limit, context));
    }
    Ok(value)
}

fn absent(attribute: AttributeId, verb: &str, limit: &Limit, context: &Context<'_>) -> Otherwise {
    let name = context.policy().attribute_names.name(attribute);
    let detail = format!("is missing, and is what the limit `{}` {verb}", limit.name);
    Otherwise::wrong(RequestError::new(format!("attributes.{name}"), detail))
}

fn amount_of(attribute: AttributeId, context: &Context<'_>) -> Result<Option<Amount>, Otherwise> {
    let name = context.policy().attribute_names.name(attribute);
    let refused =
        |detail: String| Otherwise::wrong(RequestError::new(format!("attributes.{name}"), detail));
    match context.find(attribute) {
        AttributeValue::Absent => Ok(None),
        AttributeValue::Text(text) => {
            Amount::parse(&text).map(Some).map_err(|error| refused(error.to_string()))
        }
        AttributeValue::Unreadable(why) => Err(unreadable(attribute, why, context)),
    }
}

/// What a limit does where this part of its key is missing.
fn missing(limit: &Limit, part: &Part, policy: &Policy) -> Missing {
    limit.missing.unwrap_or_else(|| missing_by_default(part, policy))
}

/// Clients cannot make what they send vanish to escape a limit: all without it share.
fn missing_by_default(part: &Part, policy: &Policy) -> Missing {
    match part {
        Part::Header(_) => Missing::Share,
        Part::Attribute(id) => {
            let attribute = usize::try_from(*id).ok().and_then(|id| policy.attributes.get(id));
            match attribute.map(|attribute| &attribute.source) {
                Some(Source::Given) | None => Missing::Skip,
                Some(_) => Missing::Share,
            }
        }
        _ => Missing::Skip,
    }
}

/// What is said of a request without a part that a limit needs.
fn refused(limit: &Limit, part: &Part, context: &Context<'_>) -> RequestError {
    let unreadable = part.attribute().and_then(|id| context.find(id).unreadable());
    let is = unreadable.map_or("is missing".to_owned(), |why| format!("cannot be read: {why}"));
    let detail = format!("{is}, and the limit `{}` needs it", limit.name);
    RequestError::new(field_of(part, &part.name(context.policy())), detail)
}

/// The field of a request that a part is read from.
pub(crate) fn field_of(part: &Part, name: &str) -> String {
    match part {
        Part::Attribute(_) => format!("attributes.{name}"),
        Part::Header(header) => format!("headers.{header}"),
        _ => name.to_owned(),
    }
}

impl Part {
    /// The part as a policy writes it.
    pub(crate) fn name(&self, policy: &Policy) -> String {
        match self {
            Self::Ip => "ip".to_owned(),
            Self::User => "user".to_owned(),
            Self::Client => "client".to_owned(),
            Self::Tier => "tier".to_owned(),
            Self::Operation => "operation".to_owned(),
            Self::Method => "method".to_owned(),
            Self::Path => "path".to_owned(),
            Self::Country => "country".to_owned(),
            Self::Header(name) => format!("header.{name}"),
            Self::Attribute(id) | Self::Row { attribute: id, .. } => {
                policy.attribute_names.name(*id).to_owned()
            }
            Self::Global => "global".to_owned(),
        }
    }
}
