//! The published limits as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate::engine::HeaderStyle;
use tidegate::engine::algorithm::Spec as LimitSpec;
use tidegate::engine::policy::{
    Conditions, Published, PublishedCost, PublishedLimit, PublishedOperation, Row, Rows,
};
use utoipa::ToSchema;

use crate::wire::json::{JsonNumber, to_json};

/// The published limits as JSON text.
pub(super) fn render(published: &Published<'_>) -> String {
    to_json(&Limits::of(published))
}

/// The published limits of a policy.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Limits<'p> {
    /// The policy's name.
    policy: &'p str,
    /// The policy's own version.
    #[schema(required)]
    version: Option<&'p str>,
    /// False where the policy's limits are switched off.
    enabled: bool,
    /// Where days, weeks and months turn over: an IANA name.
    timezone: &'p str,
    /// All tiers that a request can have.
    tiers: &'p [&'p str],
    /// Which rate limit headers answers carry.
    #[schema(value_type = HeadersSent)]
    headers: &'static str,
    /// The published limits, in the policy's order.
    limits: Vec<PublicLimit<'p>>,
}

/// Which rate limit headers answers carry: `X-RateLimit-*`, `RateLimit` and `RateLimit-Policy`, or both.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "names the values for the document alone")]
pub(in crate::wire) enum HeadersSent {
    X,
    Ietf,
    Both,
}

/// A published limit.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PublicLimit<'p> {
    /// The name that headers and refusals use.
    name: &'p str,
    /// What its author says of it.
    #[schema(required)]
    describe: Option<&'p str>,
    /// How it counts: `token_bucket`, `sliding_window`, …
    algorithm: &'static str,
    /// Whom it counts: the parts of its key. `global` is everyone together.
    by: &'p [String],
    /// The operations it is for; empty where it is for every request.
    operations: Vec<PublicOperation<'p>>,
    /// What else must be the case.
    conditions: PublicConditions<'p>,
    /// What everyone has; null where tiers or values differ.
    #[schema(required)]
    everyone: Option<Spec>,
    /// What each tier has that can reach the limit; null where tiers do not differ.
    #[schema(required)]
    tiers: Option<BTreeMap<&'p str, Spec>>,
    /// What each value of an attribute has; null where values do not differ.
    #[schema(required)]
    values: Option<Values<'p>>,
    /// What a request costs: 1 unless the caller says otherwise (null), a number, or the name of an
    /// attribute.
    #[schema(required, value_type = Option<CostTold>)]
    cost: Option<Cost<'p>>,
    /// With a ceiling, the attribute that is compared.
    #[schema(required)]
    value: Option<&'p str>,
    /// Which answers count: `all`, `failures` or `successes`.
    counts: &'static str,
    /// What happens beyond the limit: `reject`, `warn` or `wait 2s`.
    exceed: &'p str,
    /// What a refusal says, with `{placeholders}` as the policy writes them.
    message: &'p str,
    /// The status of a refusal.
    status: u16,
}

/// A kind of request.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PublicOperation<'p> {
    /// Its name; `default` is whatever matches no other.
    name: &'p str,
    /// What it matches; empty for `default` and where only callers of this API name it.
    patterns: Vec<PublicPattern<'p>>,
}

/// A method and a path.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PublicPattern<'p> {
    /// Empty where any method matches.
    methods: &'p [&'p str],
    /// `*` is one segment, `**` any number, `{name}` one that is an attribute.
    path: &'p str,
}

/// How much.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Spec {
    /// As policies write it: `10/min`, `20/s burst 40`, `unlimited`.
    spec: String,
    /// The number in it; null where unlimited.
    #[schema(required, value_type = Option<f64>)]
    limit: Option<JsonNumber>,
    /// How long its window is; the present one, for a calendar.
    #[schema(required)]
    window_ms: Option<u64>,
    /// How many can be spent at once; only with a token bucket.
    #[schema(required, value_type = Option<f64>)]
    burst: Option<JsonNumber>,
}

/// How much, by the value of an attribute.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Values<'p> {
    /// The attribute.
    attribute: &'p str,
    /// Each value that has a spec of its own.
    values: BTreeMap<&'p str, Spec>,
    /// For all others.
    default: Spec,
}

/// A number, or the name of an attribute that holds it.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[serde(untagged)]
#[expect(dead_code, reason = "describes the values for the document alone")]
enum CostTold {
    Fixed(f64),
    Attribute(String),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Cost<'p> {
    Fixed(JsonNumber),
    Attribute(&'p str),
}

/// Conditions; what is left out does not matter.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PublicConditions<'p> {
    /// One of these operations; only within `not`.
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<&'p [&'p str]>,
    /// One of these tiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    tiers: Option<&'p [&'p str]>,
    /// One of these methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    methods: Option<&'p [&'p str]>,
    /// A path like one of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<&'p [String]>,
    /// Certain addresses only; they are not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    some_addresses: Option<bool>,
    /// One of these countries.
    #[serde(skip_serializing_if = "Option::is_none")]
    countries: Option<&'p [&'p str]>,
    /// With or without a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    authenticated: Option<bool>,
    /// Called by the owner's own services, or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    internal: Option<bool>,
    /// Attributes with one of these values; empty where the values are not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<BTreeMap<&'p str, &'p [&'p str]>>,
    /// What must not be the case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    not: Option<Box<PublicConditions<'p>>>,
}

impl<'p> Limits<'p> {
    fn of(published: &'p Published<'p>) -> Self {
        let limit = |limit| PublicLimit::of(limit, &published.operations);
        Self {
            policy: published.policy,
            version: published.version,
            enabled: published.enabled,
            timezone: published.timezone,
            tiers: &published.tiers,
            headers: match published.headers {
                HeaderStyle::X => "x",
                HeaderStyle::Ietf => "ietf",
                HeaderStyle::Both => "both",
            },
            limits: published.limits.iter().map(limit).collect(),
        }
    }
}

impl<'p> PublicLimit<'p> {
    fn of(limit: &'p PublishedLimit<'p>, operations: &'p [PublishedOperation<'p>]) -> Self {
        let mine = |operation: &&PublishedOperation<'_>| limit.operations.contains(&operation.name);
        let (everyone, tiers, values) = specs(&limit.rows);
        Self {
            name: limit.name,
            describe: limit.describe,
            algorithm: limit.algorithm.name(),
            by: &limit.by,
            operations: operations.iter().filter(mine).map(PublicOperation::of).collect(),
            conditions: PublicConditions::of(&limit.when),
            everyone,
            tiers,
            values,
            cost: match limit.cost {
                PublishedCost::Requested => None,
                PublishedCost::Fixed(amount) => Some(Cost::Fixed(JsonNumber(amount))),
                PublishedCost::Attribute(name) => Some(Cost::Attribute(name)),
            },
            value: limit.value,
            counts: limit.counts,
            exceed: &limit.exceed,
            message: &limit.message,
            status: limit.status,
        }
    }
}

type Specs<'p> = (Option<Spec>, Option<BTreeMap<&'p str, Spec>>, Option<Values<'p>>);

fn specs<'p>(rows: &'p Rows<'p>) -> Specs<'p> {
    let map = |rows: &'p [Row<'p>]| {
        rows.iter().map(|row| (row.name, Spec::of(row.spec.as_ref()))).collect()
    };
    match rows {
        Rows::Everyone(spec) => (Some(Spec::of(spec.as_ref())), None, None),
        Rows::ByTier(rows) => (None, Some(map(rows)), None),
        Rows::ByAttribute { attribute, rows, default } => {
            let default = Spec::of(default.as_ref());
            (None, None, Some(Values { attribute, values: map(rows), default }))
        }
    }
}

impl<'p> PublicOperation<'p> {
    fn of(operation: &'p PublishedOperation<'p>) -> Self {
        let patterns = operation
            .patterns
            .iter()
            .map(|pattern| PublicPattern { methods: &pattern.methods, path: &pattern.path });
        Self { name: operation.name, patterns: patterns.collect() }
    }
}

impl Spec {
    fn of(spec: Option<&LimitSpec>) -> Self {
        let burst = match spec {
            Some(LimitSpec::TokenBucket(bucket)) => Some(JsonNumber(bucket.burst)),
            _ => None,
        };
        Self {
            spec: spec.map_or_else(|| "unlimited".to_owned(), ToString::to_string),
            limit: spec.map(|spec| JsonNumber(spec.number())),
            window_ms: spec.and_then(LimitSpec::window_us).map(|us| us.div_ceil(1_000)),
            burst,
        }
    }
}

impl<'p> PublicConditions<'p> {
    fn of(when: &'p Conditions<'p>) -> Self {
        fn some<T>(list: &[T]) -> Option<&[T]> {
            Some(list).filter(|list| !list.is_empty())
        }
        let attributes =
            when.attributes.iter().map(|(name, values)| (*name, values.as_slice())).collect();
        Self {
            operations: some(&when.operations),
            tiers: some(&when.tiers),
            methods: some(&when.methods),
            paths: some(&when.paths),
            some_addresses: when.addresses.then_some(true),
            countries: some(&when.countries),
            authenticated: when.authenticated,
            internal: when.internal,
            attributes: Some(attributes).filter(|map: &BTreeMap<_, _>| !map.is_empty()),
            not: when.not.as_deref().map(|not| Box::new(Self::of(not))),
        }
    }
}
