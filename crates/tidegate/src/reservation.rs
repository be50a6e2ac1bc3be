//! Reservations: what an admitted request may still settle, release or renew.

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use crate::algorithm;
use crate::context::Context;
use crate::plan::{LEVELS_MAX, Level, Plan};
use crate::policy::model::{Cost, Counts};
use crate::store::{Amendment, Answer, Change};
use crate::units::Amount;

/// One reservation covers all limits of its decision. It cannot be copied: what is given back is given
/// back once. Dropping it leaves everything charged.
///
/// It can be written down, for another node on the same store. Whoever reads it then
/// [claims](crate::Limiter::claim) it before settling it, as others may have read it too; places
/// are given back once in any case.
///
/// ```
/// use tidegate::Amount;
/// use tidegate::{LimitBuilder, Limiter, Policy, Request, Settlement};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::builder("llm")
///     .limit(LimitBuilder::token_bucket("tokens", "1000/min").by("user"))
///     .limit(LimitBuilder::concurrency("streams", 2).by("user"))
///     .build()?;
/// let limiter = Limiter::new(policy);
/// let estimate = Request::operation("default").user("u1").cost(Amount::parse("500")?).reserve();
/// if let Some(mut reservation) = limiter.check(&estimate)?.reservation {
///     // … the work is done, and turns out to be smaller …
///     limiter.settle(&mut reservation, Settlement::Cost(Amount::parse("120")?))?;
///     limiter.release(&mut reservation)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// On the heap: most decisions have no reservation, and an empty one would still be large.
    pub(crate) receipts: Vec<Receipt>,
    /// Charged by this node's fallback, so corrected there too.
    pub(crate) local: bool,
    pub(crate) holder: u64,
}

/// A charge, as far as it may still change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    level: Level,
    /// What its key is called, for a store that names them.
    name: Option<Arc<str>>,
    charged_at_us: u64,
    /// The true cost may still be told.
    cost_open: bool,
    /// The answer's status may still be told.
    counts: Counts,
}

/// What is told of an admitted request afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settlement {
    /// The true cost, on limits that name none: charges or refunds the difference.
    Cost(Amount),
    /// The answer's HTTP status: gives back what `counts:` does not count. 4xx and 5xx are failures.
    Status(u16),
    /// Both in one call, which is what a reservation that travels needs: it is settled once.
    CostAndStatus(Amount, u16),
    /// The request was cut off: a failure.
    Aborted,
    /// It never happened: what was first charged is given back, and places are. What a later
    /// [`Cost`](Self::Cost) charged on top stays.
    Refund,
}

impl Reservation {
    /// A reservation on what was charged, if anything of it may still change.
    pub(crate) fn new(
        context: &Context<'_>,
        plan: &Plan,
        answer: &Answer,
        local: bool,
    ) -> Option<Self> {
        let limits = &context.policy().limits;
        let charged = || {
            let levels = plan.levels.iter().zip(&answer.replies).enumerate();
            levels.filter(|(_, (_, reply))| reply.charged).filter_map(|(at, (level, reply))| {
                let limit = limits.get(usize::from(level.limit))?;
                Some((level, limit, plan.names.get(at), reply.charged_at_us))
            })
        };
        let may_change =
            charged().any(|(level, limit, ..)| is_place(level) || limit.counts != Counts::All);
        if !context.request.reserve && !may_change {
            return None;
        }
        let receipts = charged().map(|(level, limit, name, charged_at_us)| Receipt {
            level: *level,
            name: name.cloned(),
            charged_at_us,
            cost_open: limit.cost == Cost::Requested && !is_place(level),
            counts: if is_place(level) { Counts::All } else { limit.counts },
        });
        let receipts: Vec<Receipt> = receipts.collect();
        (!receipts.is_empty()).then_some(Self { receipts, local, holder: plan.holder })
    }

    /// Whether it was charged by this node alone, while the shared store was lost: no other node knows
    /// of it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// Whether it holds a place in a `concurrency` limit.
    #[must_use]
    pub fn holds_place(&self) -> bool {
        self.receipts.iter().any(Receipt::is_place)
    }

    /// How long anything of it may still change, counted from now: places live on while they are
    /// renewed, and a charge is void once its window is over.
    #[must_use]
    pub fn void_after(&self) -> Duration {
        let span_us = |receipt: &Receipt| receipt.level.spec.forgets_within_us();
        let open = self.receipts.iter().filter(|receipt| receipt.may_change()).map(span_us).max();
        let last_us = open.or_else(|| self.receipts.iter().map(span_us).max());
        Duration::from_micros(last_us.unwrap_or_default())
    }

    /// Whether a place can still be given back, or a cost or status still be told.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.receipts.iter().any(Receipt::may_change)
    }

    /// How soon its places must be renewed, lest they be lost; `None` if it holds none.
    #[must_use]
    pub fn renew_within(&self) -> Option<Duration> {
        let lease_us = |receipt: &Receipt| match receipt.level.spec {
            algorithm::Spec::Concurrency(spec) => Some(spec.lease_us),
            _ => None,
        };
        self.receipts.iter().filter_map(lease_us).min().map(Duration::from_micros)
    }

    /// The corrections that a settlement asks for; the reservation forgets what is thereby settled.
    pub(crate) fn settle(&mut self, settlement: Settlement) -> ArrayVec<Amendment, LEVELS_MAX> {
        let holder = self.holder;
        let amend = |receipt: &mut Receipt| {
            receipt.settle(settlement).map(|change| receipt.amendment(holder, change))
        };
        let amendments = self.receipts.iter_mut().filter_map(amend).collect();
        if settlement == Settlement::Refund {
            self.receipts.clear();
        }
        amendments
    }

    /// Gives all places back; the reservation forgets them.
    pub(crate) fn release(&mut self) -> ArrayVec<Amendment, LEVELS_MAX> {
        let amendments = self.places(Change::Release);
        self.receipts.retain(|receipt| !receipt.is_place());
        amendments
    }

    /// Keeps all places for another reservation.
    pub(crate) fn renew(&self) -> ArrayVec<Amendment, LEVELS_MAX> {
        self.places(Change::Renew)
    }

    fn places(&self, change: Change) -> ArrayVec<Amendment, LEVELS_MAX> {
        let places = self.receipts.iter().filter(|receipt| receipt.is_place());
        places.map(|receipt| receipt.amendment(self.holder, change)).collect()
    }
}

impl Receipt {
    fn is_place(&self) -> bool {
        is_place(&self.level)
    }

    fn may_change(&self) -> bool {
        self.is_place() || self.cost_open || self.counts != Counts::All
    }

    fn amendment(&self, holder: u64, change: Change) -> Amendment {
        let (level, name, charged_at_us) = (self.level, self.name.clone(), self.charged_at_us);
        Amendment { level, name, charged_at_us, holder, change }
    }

    fn settle(&mut self, settlement: Settlement) -> Option<Change> {
        match settlement {
            Settlement::Cost(actual) => self.settle_cost(actual),
            Settlement::Status(status) => self.settle_outcome(status >= 400),
            Settlement::CostAndStatus(actual, status) => {
                // What does not count at all is given back whole, whatever it cost in the end.
                let given_back = self.settle_outcome(status >= 400);
                given_back.or_else(|| self.settle_cost(actual))
            }
            Settlement::Aborted => self.settle_outcome(true),
            Settlement::Refund if self.is_place() => Some(Change::Release),
            Settlement::Refund if self.level.cost.is_zero() => None,
            Settlement::Refund => Some(Change::Refund(self.level.cost)),
        }
    }

    fn settle_cost(&mut self, actual: Amount) -> Option<Change> {
        if !std::mem::take(&mut self.cost_open) || actual == self.level.cost {
            return None;
        }
        if actual > self.level.cost {
            // What can be refunded later stays what was first charged: a surcharge may have been
            // cut short at the bound on debt, and giving it all back would hand out too much.
            return Some(Change::Surcharge(actual.saturating_sub(self.level.cost)));
        }
        let difference = self.level.cost.saturating_sub(actual);
        self.level.cost = actual;
        Some(Change::Refund(difference))
    }

    fn settle_outcome(&mut self, failed: bool) -> Option<Change> {
        let counts = std::mem::replace(&mut self.counts, Counts::All);
        let uncounted = match counts {
            Counts::All => false,
            Counts::Failures => !failed,
            Counts::Successes => failed,
        };
        if !uncounted {
            return None;
        }
        // Nothing is left of the charge that could be corrected or given back once more.
        self.cost_open = false;
        Some(Change::Refund(std::mem::take(&mut self.level.cost)))
    }
}

fn is_place(level: &Level) -> bool {
    matches!(level.spec, algorithm::Spec::Concurrency(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::{Limiter, Request};

    const LIMITS: &str = "
tidegate: 1
name: api
limits:
  tokens: { by: user, total: 100 }
  logins: { by: user, total: 5, cost: 1, counts: failures }
  failed: { by: user, total: 100, counts: failures }
";

    /// What is left of each limit once a request of 60 turned out to cost 10.
    fn left_after(status: u16) -> Vec<u64> {
        let limiter = Limiter::new(Policy::parse("p.yaml", LIMITS).unwrap());
        let units = |units| Amount::from_units(units).unwrap();
        let request = Request::operation("default").user("u1").cost(units(60)).reserve();
        let mut reservation = limiter.check(&request).unwrap().reservation.unwrap();
        limiter.settle(&mut reservation, Settlement::CostAndStatus(units(10), status)).unwrap();
        limiter.settle(&mut reservation, Settlement::CostAndStatus(units(1), status)).unwrap();
        let seen = limiter.peek(&Request::operation("default").user("u1")).unwrap();
        seen.limits.iter().map(crate::LimitReport::remaining).collect()
    }

    #[test]
    fn cost_and_status_are_settled_together_and_once() {
        assert_eq!(left_after(401), [90, 4, 90]);
    }

    #[test]
    fn what_does_not_count_is_given_back_whatever_it_cost() {
        assert_eq!(left_after(200), [90, 5, 100]);
    }
}
