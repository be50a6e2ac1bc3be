//! What a policy shows to the public: its limits, their subjects and their rates.
//!
//! Limits with `publish: false` and limits in shadow mode are left out. So is what only operators
//! should know: networks, keys in stores, headers that distinguish operations, secrets. Values of
//! attributes that clients send in headers or in the query are left out, because API keys travel there.

use super::compile::settings::{Audience, DefaultTiers};
use super::model::{
    Algorithm, AttributeId, Cost, Counts, Limit, OperationId, Policy, Setting, Settings, Source,
};
use super::when::When;
use crate::algorithm::Spec;
use crate::clock::Now;
use crate::response::{HeaderStyle, template_text};
use crate::units::Amount;

/// A policy for the public.
#[derive(Clone, Debug)]
pub struct Published<'p> {
    /// The policy's name.
    pub policy: &'p str,
    /// Its version.
    pub version: Option<&'p str>,
    /// True if its limits are on.
    pub enabled: bool,
    /// Where days, weeks and months turn over.
    pub timezone: &'p str,
    /// All tiers that a request can have.
    pub tiers: Vec<&'p str>,
    /// Which headers tell the state of a limit.
    pub headers: HeaderStyle,
    /// The operations of which a published limit speaks, in the policy's order.
    pub operations: Vec<PublishedOperation<'p>>,
    /// The published limits, in the policy's order.
    pub limits: Vec<PublishedLimit<'p>>,
}

/// A kind of request.
#[derive(Clone, Debug)]
pub struct PublishedOperation<'p> {
    /// Its name; `default` is the operation of requests that match no other.
    pub name: &'p str,
    /// What it matches; nothing where only callers of the API name it.
    pub patterns: Vec<PublishedPattern<'p>>,
}

/// One pattern of an operation.
#[derive(Clone, Debug)]
pub struct PublishedPattern<'p> {
    /// The methods; none where any will do.
    pub methods: Vec<&'p str>,
    /// The path, as the policy writes it.
    pub path: String,
}

/// A limit for the public.
#[derive(Clone, Debug)]
pub struct PublishedLimit<'p> {
    /// Its name.
    pub name: &'p str,
    /// What its author says of it.
    pub describe: Option<&'p str>,
    /// How it counts.
    pub algorithm: Algorithm,
    /// The parts of its key, as the policy writes them.
    pub by: Vec<String>,
    /// The operations it is for; none where it is for every request.
    pub operations: Vec<&'p str>,
    /// What else must be the case.
    pub when: Conditions<'p>,
    /// How much.
    pub rows: Rows<'p>,
    /// What a request costs.
    pub cost: PublishedCost<'p>,
    /// With a ceiling: the attribute that is compared.
    pub value: Option<&'p str>,
    /// `all`, `failures` or `successes`.
    pub counts: &'static str,
    /// `reject`, `warn`, `wait 2s` or `challenge`.
    pub exceed: String,
    /// What a refusal says, as the policy writes it.
    pub message: String,
    /// The status of a refusal.
    pub status: u16,
}

/// How much a limit allows.
#[derive(Clone, Debug)]
pub enum Rows<'p> {
    /// The same for all; `None` is unlimited.
    Everyone(Option<Spec>),
    /// By tier: those that can reach the limit, in the policy's order.
    ByTier(Vec<Row<'p>>),
    /// By the value of an attribute.
    ByAttribute {
        /// The attribute's name.
        attribute: &'p str,
        /// Each value that has a spec of its own, sorted.
        rows: Vec<Row<'p>>,
        /// For all other values; `None` is unlimited.
        default: Option<Spec>,
    },
}

/// How much a limit allows one tier or value.
#[derive(Clone, Debug)]
pub struct Row<'p> {
    /// The tier, or the attribute's value.
    pub name: &'p str,
    /// `None` is unlimited.
    pub spec: Option<Spec>,
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedCost<'p> {
    /// 1, unless the caller of the API says otherwise.
    Requested,
    /// Always this.
    Fixed(Amount),
    /// The number in this attribute.
    Attribute(&'p str),
}

/// Conditions besides the operation; what is left out does not matter.
#[derive(Clone, Debug, Default)]
pub struct Conditions<'p> {
    /// One of these operations; only within `not`.
    pub operations: Vec<&'p str>,
    /// One of these tiers.
    pub tiers: Vec<&'p str>,
    /// One of these methods.
    pub methods: Vec<&'p str>,
    /// A path like one of these.
    pub paths: Vec<String>,
    /// The address is in networks that are not shown.
    pub addresses: bool,
    /// One of these countries.
    pub countries: Vec<&'p str>,
    /// With or without a user.
    pub authenticated: Option<bool>,
    /// Called by the owner's own services, or not.
    pub internal: Option<bool>,
    /// Attributes with one of these values; no values where they are not public.
    pub attributes: Vec<(&'p str, Vec<&'p str>)>,
    /// What must not be the case.
    pub not: Option<Box<Conditions<'p>>>,
}

impl Policy {
    /// What this policy shows to the public. Calendar windows are as long as those of `now`.
    #[must_use]
    pub fn published(&self, now: Now) -> Published<'_> {
        let public = |limit: &&Limit| limit.publish && !limit.shadow;
        let limits: Vec<&Limit> = self.limits.iter().filter(public).collect();
        let spoken_of = |id: &OperationId| {
            let names = |limit: &&Limit| {
                limit.when.operations.as_ref().is_some_and(|ids| ids.binary_search(id).is_ok())
            };
            limits.iter().any(names)
        };
        let ids = (0..self.operations.names().len()).filter_map(|id| u32::try_from(id).ok());
        Published {
            policy: &self.name,
            version: self.version.as_deref(),
            enabled: self.enabled,
            timezone: self.zone.iana_name().unwrap_or("UTC"),
            tiers: self.tiers.iter().collect(),
            headers: self.response.headers,
            operations: ids.filter(spoken_of).map(|id| self.published_operation(id)).collect(),
            limits: limits.into_iter().map(|limit| self.published_limit(limit, now)).collect(),
        }
    }

    fn published_operation(&self, id: OperationId) -> PublishedOperation<'_> {
        let patterns = self.operations.patterns_of(id).map(|pattern| PublishedPattern {
            methods: pattern.methods().names().collect(),
            path: pattern.path().to_string(),
        });
        PublishedOperation { name: self.operations.name(id), patterns: patterns.collect() }
    }

    fn published_limit<'p>(&'p self, limit: &'p Limit, now: Now) -> PublishedLimit<'p> {
        let message = limit.refusal.message.as_deref().unwrap_or(&self.response.message);
        PublishedLimit {
            name: &limit.name,
            describe: limit.describe.as_deref(),
            algorithm: limit.algorithm,
            by: limit.by.iter().map(|part| part.name(self)).collect(),
            operations: self.operation_names(&limit.when),
            when: Conditions { operations: Vec::new(), ..self.conditions(&limit.when) },
            rows: self.rows(limit, now),
            cost: match limit.cost {
                Cost::Requested => PublishedCost::Requested,
                Cost::Fixed(amount) => PublishedCost::Fixed(amount),
                Cost::Attribute(id) => PublishedCost::Attribute(self.attribute_names.name(id)),
            },
            value: limit.value.map(|id| self.attribute_names.name(id)),
            counts: match limit.counts {
                Counts::All => "all",
                Counts::Failures => "failures",
                Counts::Successes => "successes",
            },
            exceed: limit.exceed.to_string(),
            message: template_text(message),
            status: limit.refusal.status.unwrap_or(429),
        }
    }

    fn operation_names(&self, when: &When) -> Vec<&str> {
        when.operations.iter().flatten().map(|id| self.operations.name(*id)).collect()
    }

    fn rows<'p>(&'p self, limit: &'p Limit, now: Now) -> Rows<'p> {
        let spec = |setting: &Setting| match setting {
            Setting::Unlimited => None,
            Setting::Limited(spec) => Some(spec.at(now, &self.zone)),
        };
        let rules = &self.identity;
        let defaults =
            DefaultTiers { anonymous: rules.anonymous_tier, default: rules.default_tier };
        match &limit.settings {
            Settings::Everyone(setting) => Rows::Everyone(spec(setting)),
            Settings::ByTier(settings) => {
                let reached = (0..).zip(settings).filter_map(|(tier, setting)| {
                    let setting = setting.as_ref()?;
                    let row = Row { name: self.tiers.name(tier), spec: spec(setting) };
                    Audience::of(limit).includes(tier, defaults).then_some(row)
                });
                Rows::ByTier(reached.collect())
            }
            Settings::ByAttribute { attribute, settings, default } => {
                let told = settings.iter().filter(|_| self.is_public(*attribute));
                let mut rows: Vec<Row<'_>> =
                    told.map(|(value, setting)| Row { name: value, spec: spec(setting) }).collect();
                rows.sort_unstable_by_key(|row| row.name);
                let attribute = self.attribute_names.name(*attribute);
                Rows::ByAttribute { attribute, rows, default: spec(default) }
            }
        }
    }

    fn conditions<'p>(&'p self, when: &'p When) -> Conditions<'p> {
        fn texts(list: Option<&Vec<String>>) -> Vec<&str> {
            list.into_iter().flatten().map(String::as_str).collect()
        }
        let attribute = |(id, values): &'p (AttributeId, Vec<String>)| {
            let values = if self.is_public(*id) { texts(Some(values)) } else { Vec::new() };
            (self.attribute_names.name(*id), values)
        };
        Conditions {
            operations: self.operation_names(when),
            tiers: when.tiers.iter().flatten().map(|id| self.tiers.name(*id)).collect(),
            methods: texts(when.methods.as_ref()),
            paths: when.paths.iter().flatten().map(ToString::to_string).collect(),
            addresses: when.networks.is_some(),
            countries: texts(when.countries.as_ref()),
            authenticated: when.authenticated,
            internal: when.internal,
            attributes: when.attributes.iter().map(attribute).collect(),
            not: when.not.as_deref().map(|not| Box::new(self.conditions(not))),
        }
    }

    /// True if values of an attribute may be shown. API keys travel in headers, queries, bodies and
    /// claims. What only a trusted proxy or the caller itself can say is no secret.
    fn is_public(&self, id: AttributeId) -> bool {
        let attribute = usize::try_from(id).ok().and_then(|id| self.attributes.get(id));
        attribute.is_some_and(|attribute| {
            matches!(attribute.source, Source::Given | Source::Header { trusted: true, .. })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, FakeClock};

    const POLICY: &str = r#"
tidegate: 1
name: shop
version: 1.10
timezone: Europe/Berlin
tiers: [free, paid]
identity:
  trusted_proxies: [10.0.0.0/8]
  default_tier: free
  anonymous_tier: guest
  internal: { cidrs: [10.1.0.0/16] }
  attributes:
    api_key: { header: X-Api-Key }
    kyc: { header: X-Kyc, trusted: true }
    kind: given
operations:
  buy: { match: ["POST|PUT /buy/{item}", "/old/**"], header: { X-Secret: hush } }
  hidden: GET /hidden
block: { ips: [203.0.113.0/24] }
limits:
  buys:
    when: { operation: buy, ip: [192.0.2.0/24], attributes: { api_key: k-123, kind: video } }
    by: user
    key: secret:template:{user}
    token_bucket: { free: 2/min burst 4, paid: unlimited }
    describe: Buying
    message: "At most {limit}"
  kyc: { by: user, tier_by: kyc, quota: { 1: 10/day, default: 5/day } }
  keys: { by: client, tier_by: api_key, total: { k-123: 10, default: 5 } }
  secret: { when: hidden, by: ip, total: 1, publish: false }
  trial: { when: hidden, by: ip, total: 1, shadow: true }
"#;

    fn published(policy: &Policy) -> Published<'_> {
        policy.published(FakeClock::at_unix_seconds(0).now())
    }

    #[test]
    fn what_is_hidden_or_on_trial_is_not_told_and_neither_are_its_operations() {
        let policy = Policy::parse("p.yaml", POLICY).unwrap();
        let published = published(&policy);
        let names: Vec<&str> = published.limits.iter().map(|limit| limit.name).collect();
        assert_eq!(names, ["buys", "kyc", "keys"]);
        assert_eq!(published.operations.len(), 1);
        let patterns: Vec<_> = published.operations[0].patterns.iter().collect();
        assert_eq!(
            (&*patterns[0].methods, &*patterns[0].path),
            (&["POST", "PUT"][..], "/buy/{item}")
        );
        assert_eq!((&*patterns[1].methods, &*patterns[1].path), (&[][..], "/old/**"));
    }

    #[test]
    fn nothing_private_is_public() {
        let policy = Policy::parse("p.yaml", POLICY).unwrap();
        let all = format!("{:?}", published(&policy));
        for private in ["10.0.0", "10.1.0", "192.0.2", "203.0.113", "hush", "template", "k-123"] {
            assert!(!all.contains(private), "{private}: {all}");
        }
        assert!(all.contains("video"), "{all}");
    }

    #[test]
    fn a_limit_is_public_row_by_row_for_those_whom_it_can_reach() {
        let policy = Policy::parse("p.yaml", POLICY).unwrap();
        let published = published(&policy);
        let Rows::ByTier(rows) = &published.limits[0].rows else { panic!() };
        let rows: Vec<(&str, Option<String>)> =
            rows.iter().map(|row| (row.name, row.spec.map(|spec| spec.to_string()))).collect();
        assert_eq!(rows, [("free", Some("2/min burst 4".to_owned())), ("paid", None)]);
        assert_eq!(published.limits[0].message, "At most {limit}");
        let Rows::ByAttribute { attribute, rows, .. } = &published.limits[1].rows else { panic!() };
        assert_eq!((*attribute, rows[0].name), ("kyc", "1"));
    }
}
