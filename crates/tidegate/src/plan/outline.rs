//! What the levels of a limit have in common, whoever asks: worked out once, not for every request.

use super::{Enforcement, Level};
use crate::algorithm;
use crate::context::Context;
use crate::key::{HashKey, Key, LimitKeys};
use crate::policy::model::{Algorithm, Cost, Counts, Exceed, Limit, OnStoreFailure, Policy};
use crate::request::Request;
use crate::units::Amount;

/// A limit of a policy in force, as levels are made of it.
#[derive(Debug)]
pub(crate) struct Outline {
    /// What its keys begin with.
    pub(crate) keys: LimitKeys,
    /// Whether the limit holds for all requests of its operations.
    pub(super) whole_operations: bool,
    /// What a request costs, where that takes no more than a look.
    price: Price,
    index: u16,
    refundable: bool,
    leased: bool,
    enforcement: Enforcement,
    /// The same for those who have solved a challenge.
    enforcement_passed: Enforcement,
    on_store_failure: OnStoreFailure,
}

/// What a request costs on a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Price {
    /// What it says, or 1.
    Requested,
    Fixed(Amount),
    /// It takes a closer look.
    Asked,
}

impl Outline {
    /// Of the limit at a place of its policy.
    pub(crate) fn new(secret: &HashKey, policy: &Policy, index: usize, limit: &Limit) -> Self {
        Self {
            keys: LimitKeys::new(secret, policy, limit),
            whole_operations: limit.when.is_only_operations(),
            price: Price::of(limit),
            index: u16::try_from(index).unwrap_or(u16::MAX),
            refundable: limit.counts != Counts::All,
            leased: limit.is_leased(),
            enforcement: enforcement(limit, false),
            enforcement_passed: enforcement(limit, true),
            on_store_failure: limit.on_store_failure,
        }
    }

    /// What a request costs; `None` where it takes a closer look.
    #[inline(always)]
    pub(super) fn cost(&self, request: &Request<'_>) -> Option<Amount> {
        match self.price {
            Price::Requested => Some(request.cost.unwrap_or(Amount::ONE)),
            Price::Fixed(amount) => Some(amount),
            Price::Asked => None,
        }
    }

    /// The level of a request.
    #[inline(always)]
    pub(super) fn level(
        &self,
        limit: &Limit,
        context: &Context<'_>,
        key: Key,
        spec: algorithm::Spec,
        cost: Amount,
    ) -> Level {
        Level {
            limit: self.index,
            family: self.keys.family,
            key,
            spec,
            cost,
            refundable: self.refundable,
            reserved: context.request.reserve && limit.cost == Cost::Requested,
            leased: self.leased,
            enforcement: if context.has_pass { self.enforcement_passed } else { self.enforcement },
            on_store_failure: self.on_store_failure,
        }
    }
}

impl Price {
    fn of(limit: &Limit) -> Self {
        match limit.cost {
            _ if limit.value.is_some() => Self::Asked,
            Cost::Fixed(amount) => Self::Fixed(amount),
            Cost::Requested if limit.algorithm != Algorithm::Concurrency => Self::Requested,
            Cost::Requested | Cost::Attribute(_) => Self::Asked,
        }
    }
}

/// Who has solved a challenge is only warned where others must solve one.
fn enforcement(limit: &Limit, passed: bool) -> Enforcement {
    match limit.exceed {
        _ if limit.shadow => Enforcement::Shadow,
        Exceed::Warn => Enforcement::Warn,
        Exceed::Challenge if passed => Enforcement::Warn,
        Exceed::Challenge | Exceed::Reject | Exceed::Wait { .. } => Enforcement::Reject,
    }
}
