//! Explains a decision: the request's identity and operation, every limit that applies, and why the
//! others do not.

mod penalties;

use std::borrow::Cow;

use crate::body_need::check_ambiguity;
use crate::context::Context;
use crate::identity::{self, Unreadable};
use crate::key::{self, HashKey, Raw};
use crate::limiter::Limiter;
use crate::plan::{Applicability, Enforcement, Inapplicability, Level, Planner};
use crate::policy::model::Limit;
use crate::precheck::{Precheck, precheck};
use crate::protection::factors;
use crate::protection::marks::Marks;
use crate::request::{Request, RequestError};
use crate::store::Store;

pub use penalties::{Counting, PenaltyExplanation};

/// All that is known of a request without the state of any limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The policy that would decide.
    pub policy: String,
    /// True if its limits are on.
    pub enabled: bool,
    /// The operation.
    pub operation: String,
    /// The user, if there is one.
    pub user: Option<String>,
    /// The client's address as limits see it: an IPv6 client is its prefix.
    pub address: Option<String>,
    /// The tier.
    pub tier: String,
    /// The tier that the request states, if the policy has none of that name.
    pub unknown_tier: Option<String>,
    /// True if another service of the same owner calls.
    pub internal: bool,
    /// The headers that name the client and were not believed: the peer is no trusted proxy.
    pub ignored_headers: Vec<String>,
    /// The method that counts: the one that an override names where the policy follows overrides.
    pub method: Option<String>,
    /// The path that counts: normalised, and in lower case where case is ignored.
    pub path: Option<String>,
    /// `exempt`, `blocked`, `banned` or `ordinary`.
    pub standing: &'static str,
    /// The factors that apply, in millionths. Specs are as they make them.
    pub factors: Vec<(String, u64)>,
    /// The attributes that these limits and penalties read and that cannot be read, with the reason.
    pub unreadable: Vec<(String, Unreadable)>,
    /// Every limit of the policy, in its order.
    pub limits: Vec<LimitExplanation>,
    /// Every penalty of the policy, in its order.
    pub penalties: Vec<PenaltyExplanation>,
}

/// One limit and this request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitExplanation {
    /// The limit's name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// How it applies, or why it does not.
    pub applies: Result<Application, String>,
}

/// How a limit applies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Application {
    /// The key's name in a store.
    pub key: String,
    /// The parts of its key.
    pub by: Vec<String>,
    /// The spec in force.
    pub spec: String,
    /// What the request costs; for a ceiling, the value compared.
    pub cost: String,
    /// `reject`, `warn`, `wait 2s`, `challenge` or `shadow`.
    pub exceed: String,
}

impl<S: Store> Limiter<S> {
    /// Explains a request. No state is read or changed.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs.
    pub fn explain(&self, request: &Request<'_>) -> Result<Explanation, RequestError> {
        let mut context = self.context(request)?;
        check_ambiguity(&context, self.marks())?;
        let mut explanation = explain(&context, &self.secret(), self.marks());
        let unreadable = context.unreadable_attributes().into_iter();
        explanation.unreadable = unreadable.map(|(name, why)| (name.to_owned(), why)).collect();
        Ok(explanation)
    }
}

fn explain(context: &Context<'_>, secret: &HashKey, marks: &Marks) -> Explanation {
    let policy = context.policy();
    let mut planner = Planner::new(context);
    planner.factor = factors::of_request(context, marks);
    let applying = factors::applying(context, marks);
    let applying = applying.map(|(factor, ppm)| (factor.name.clone(), ppm)).collect();
    let mut limits = Vec::with_capacity(policy.limits.len());
    for (index, limit) in policy.limits.iter().enumerate() {
        let applies = match planner.applies(index, limit) {
            Ok(Applicability::Yes(level)) => Ok(application(limit, &level, context, secret)),
            Ok(Applicability::No(why)) => Err(explain_inapplicable(why, limit, context)),
            Err(error) => Err(format!("asked, it would answer 400: {error}")),
        };
        limits.push(LimitExplanation {
            name: limit.name.clone(),
            algorithm: limit.algorithm.name(),
            applies,
        });
    }
    let subject = |ip| identity::client_network(ip, policy.identity.ipv6_prefix).to_string();
    Explanation {
        policy: policy.name.clone(),
        enabled: policy.enabled,
        operation: policy.operations.name(context.operation).to_owned(),
        user: context.user.map(str::to_owned),
        address: context.address.map(subject),
        tier: policy.tiers.name(context.tier).to_owned(),
        unknown_tier: context
            .stated_tier
            .filter(|tier| policy.tiers.id(tier).is_none())
            .map(str::to_owned),
        internal: context.internal,
        ignored_headers: ignored_headers(context),
        method: context.method().map(str::to_owned),
        path: context.counted_path().map(Cow::into_owned),
        standing: match precheck(context, marks) {
            Precheck::Exempt => "exempt",
            Precheck::Blocked => "blocked",
            Precheck::Banned(_) => "banned",
            Precheck::Ordinary => "ordinary",
        },
        factors: applying,
        unreadable: Vec::new(),
        penalties: penalties::penalties(context, &limits),
        limits,
    }
}

/// Headers that only a trusted proxy may send, and that came from somebody else.
fn ignored_headers(context: &Context<'_>) -> Vec<String> {
    let (policy, request) = (context.policy(), context.request());
    let forwarded = policy.identity.forwarded.header_name();
    let forwarded = Some(forwarded).filter(|_| request.ip.is_none());
    let mut ignored: Vec<String> = Vec::new();
    for name in policy.claim_headers().chain(forwarded).filter(|_| !context.headers_believed()) {
        let is_new = !ignored.iter().any(|known| known.eq_ignore_ascii_case(name));
        if is_new && request.header_value(name).is_some() {
            ignored.push(name.to_owned());
        }
    }
    ignored
}

fn application(
    limit: &Limit,
    level: &Level,
    context: &Context<'_>,
    secret: &HashKey,
) -> Application {
    Application {
        key: key::name(secret, limit, context, Raw::Shown, || level.key),
        by: limit.by.iter().map(|part| part.name(context.policy())).collect(),
        spec: level.spec.to_string(),
        cost: level.cost.to_string(),
        exceed: match level.enforcement {
            Enforcement::Shadow => "shadow".to_owned(),
            Enforcement::Reject | Enforcement::Warn => limit.exceed.to_string(),
        },
    }
}

fn explain_inapplicable(why: Inapplicability, limit: &Limit, context: &Context<'_>) -> String {
    match why {
        Inapplicability::Unmet(unmet) => unmet.explain(context.policy(), context),
        Inapplicability::Missing { part } => {
            let name =
                limit.by.get(part).map(|part| part.name(context.policy())).unwrap_or_default();
            format!("it counts by `{name}`, and there is none")
        }
        Inapplicability::Unlimited => "it is unlimited here".to_owned(),
        Inapplicability::NoValue => "there is no value to compare".to_owned(),
        Inapplicability::Lacking => {
            "the request lacks what it counts, and it is on trial".to_owned()
        }
    }
}
