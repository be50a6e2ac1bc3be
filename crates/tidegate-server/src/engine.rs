//! The engine on the store that the daemon was given. Memory answers in a plain call, as fast as it
//! can; a store that nodes share must be waited for, in a future of its own.

mod building;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::marks::{Mark, MarkKind, Marks, Subject};
use tidegate::plan::{Level, Mode};
use tidegate::policy::Policy;
use tidegate::store::{Amended, Memory, StoreError};
use tidegate::{
    Acquisition, ActivePolicies, BuildError, Claim, ClientKeys, Consequences, Decision, HashKey,
    IdentityFormat, Key, Limiter, LogIdentity, MergeSummary, NewMark, Report, Request,
    RequestError, Reservation, Settlement, StoreDebt, Timer,
};

pub(crate) use building::{Building, Built};

use crate::shared::SharedStore;

/// How many requests of a batch a shared store is asked for at once: as many as travel in one call.
const AT_ONCE: usize = 64;

/// A limiter on the memory of this process, or on a store that it shares with others.
pub(crate) enum Engine {
    Memory(Limiter),
    Shared(Limiter<SharedStore>),
}

/// The same call on either.
macro_rules! on_either {
    ($engine:expr, $limiter:ident => $call:expr) => {
        match $engine {
            Engine::Memory($limiter) => $call,
            Engine::Shared($limiter) => $call,
        }
    };
}

impl Engine {
    /// Decides a request where that needs no waiting; `None` where the store must be waited for.
    pub(crate) fn decide_now(
        &self,
        request: &Request<'_>,
    ) -> Option<Result<Decision, RequestError>> {
        match self {
            Self::Memory(limiter) => Some(limiter.check(request)),
            Self::Shared(limiter) => limiter.decide_at_once(request).transpose(),
        }
    }

    /// Decides a request. None waits for its turn.
    pub(crate) async fn decide(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        match self {
            Self::Memory(limiter) => limiter.check(request),
            Self::Shared(limiter) => Box::pin(limiter.decide(request, Mode::Charge)).await,
        }
    }

    /// Decides requests as if one after the other. Those that a shared store is asked for travel
    /// together, in their order, up to the first whose refusal may ban whoever comes next; one at a
    /// time where they would be carried out in another.
    pub(crate) async fn decide_all(
        &self,
        requests: &[Request<'_>],
    ) -> Vec<Result<Decision, RequestError>> {
        let limiter = match self {
            Self::Memory(limiter) => return limiter.check_batch(requests),
            Self::Shared(limiter) => limiter,
        };
        let mut decided = Vec::with_capacity(requests.len());
        while let Some(rest) = requests.get(decided.len()..).filter(|rest| !rest.is_empty()) {
            let (together, _) = rest.split_at(together(limiter, rest));
            let each = together.iter().map(|request| limiter.decide(request, Mode::Charge));
            decided.extend(join_all(each).await);
        }
        decided
    }

    /// Decides a request in its turn.
    pub(crate) async fn acquire<T: Timer>(
        &self,
        request: &Request<'_>,
        max_wait: Option<Duration>,
        timer: &T,
    ) -> Result<Acquisition, RequestError> {
        match self {
            Self::Memory(limiter) => limiter.acquire(request, max_wait, timer).await,
            Self::Shared(limiter) => Box::pin(limiter.acquire(request, max_wait, timer)).await,
        }
    }

    /// Counts an event that an application tells of.
    pub(crate) async fn report(&self, report: &Report<'_>) -> Result<Consequences, RequestError> {
        match self {
            Self::Memory(limiter) => limiter.report_now(report),
            Self::Shared(limiter) => Box::pin(limiter.report(report)).await,
        }
    }

    /// Counts the events that an upstream's answer makes.
    pub(crate) async fn answered(
        &self,
        request: &Request<'_>,
        status: u16,
    ) -> Result<Consequences, RequestError> {
        match self {
            Self::Memory(limiter) => limiter.answered_now(request, status),
            Self::Shared(limiter) => Box::pin(limiter.answered(request, status)).await,
        }
    }

    /// A request without what its policy does not read.
    pub(crate) fn pared<'r>(&self, request: &Request<'r>) -> Result<Request<'r>, RequestError> {
        on_either!(self, limiter => limiter.pared(request))
    }

    /// Bans, flags and factors.
    pub(crate) fn marks(&self) -> &Marks {
        on_either!(self, limiter => limiter.marks())
    }

    /// Bans somebody, for an operator.
    pub(crate) fn ban(&self, order: &NewMark) -> Result<Mark, RequestError> {
        on_either!(self, limiter => limiter.ban(order))
    }

    /// Flags somebody, for an operator.
    pub(crate) fn flag(&self, flag: &str, order: &NewMark) -> Result<Mark, RequestError> {
        on_either!(self, limiter => limiter.flag(flag, order))
    }

    /// Somebody in each way that marks may say it, in one policy or in any.
    pub(crate) fn spellings(&self, policy: Option<&str>, subject: &Subject) -> Vec<Subject> {
        on_either!(self, limiter => limiter.spellings(policy, subject))
    }

    /// Takes a mark away; whether there was one.
    pub(crate) fn unmark(&self, kind: MarkKind, id: Key) -> bool {
        on_either!(self, limiter => limiter.unmark(kind, id))
    }

    /// Whom a mark is of, part by part.
    pub(crate) fn format_subject(
        &self,
        subject: &Subject,
        identities: IdentityFormat,
    ) -> Vec<(String, String)> {
        on_either!(self, limiter => limiter.format_subject(subject, identities))
    }

    /// How loaded the deployment is, in millionths.
    pub(crate) fn set_load(&self, ppm: u64) {
        on_either!(self, limiter => limiter.set_load(ppm));
    }

    pub(crate) async fn settle(
        &self,
        lease: &mut Reservation,
        settlement: Settlement,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(limiter) => limiter.settle(lease, settlement),
            Self::Shared(limiter) => Box::pin(limiter.settle_async(lease, settlement)).await,
        }
    }

    /// Whether a lease that travelled may be settled, which it may once.
    pub(crate) async fn claim(&self, lease: &Reservation) -> Result<bool, StoreError> {
        on_either!(self, limiter => Box::pin(limiter.claim(lease)).await)
    }

    /// Whether something that may be used once is used for the first time.
    pub(crate) async fn claim_once(&self, purpose: &str, number: u128, lasts_us: u64) -> Claim {
        on_either!(self, limiter => Box::pin(limiter.claim_once(purpose, number, lasts_us)).await)
    }

    /// Whom a token for this request is for.
    pub(crate) fn client_keys(
        &self,
        request: &Request<'_>,
    ) -> Result<Option<ClientKeys>, RequestError> {
        on_either!(self, limiter => limiter.client_keys(request))
    }

    /// Whether the client of a request is blocked or banned.
    pub(crate) fn is_shut_out(&self, request: &Request<'_>) -> Result<bool, RequestError> {
        on_either!(self, limiter => limiter.is_shut_out(request))
    }

    pub(crate) async fn release(&self, lease: &mut Reservation) -> Result<bool, StoreError> {
        match self {
            Self::Memory(limiter) => limiter.release(lease),
            Self::Shared(limiter) => Box::pin(limiter.release_async(lease)).await,
        }
    }

    pub(crate) async fn renew(&self, lease: &Reservation) -> Result<bool, StoreError> {
        match self {
            Self::Memory(limiter) => limiter.renew(lease),
            Self::Shared(limiter) => Box::pin(limiter.renew_async(lease)).await,
        }
    }

    /// Forgets what is known of keys; whether there was anything to forget.
    pub(crate) async fn forget(
        &self,
        keys: &[(Level, Option<Arc<str>>)],
    ) -> Result<Amended, StoreError> {
        on_either!(self, limiter => Box::pin(limiter.forget(keys)).await)
    }

    pub(crate) fn replace_policies(&self, policies: Vec<Arc<Policy>>) -> Result<(), BuildError> {
        on_either!(self, limiter => limiter.replace_policies(policies))
    }

    pub(crate) fn policies(&self) -> Vec<Arc<Policy>> {
        on_either!(self, limiter => limiter.policies())
    }

    pub(crate) fn first_policy(&self) -> Option<Arc<Policy>> {
        on_either!(self, limiter => limiter.first_policy())
    }

    pub(crate) fn active_policies(&self) -> ActivePolicies {
        on_either!(self, limiter => limiter.active_policies())
    }

    pub(crate) fn wants_body(&self, request: &Request<'_>) -> bool {
        on_either!(self, limiter => limiter.wants_body(request))
    }

    pub(crate) fn waiters(&self) -> usize {
        on_either!(self, limiter => limiter.waiters())
    }

    pub(crate) fn log_identity(
        &self,
        decision: &Decision,
        request: &Request<'_>,
        identities: IdentityFormat,
    ) -> LogIdentity {
        on_either!(self, limiter => limiter.log_identity(decision, request, identities))
    }

    /// This process's own store, if there is no other.
    pub(crate) fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Memory(limiter) => Some(limiter.store()),
            Self::Shared(_) => None,
        }
    }

    /// The store that nodes share, if there is one.
    pub(crate) fn shared(&self) -> Option<&SharedStore> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(limiter) => Some(limiter.store()),
        }
    }

    /// Whether limits do without the store that nodes share.
    pub(crate) fn is_degraded(&self) -> bool {
        self.shared().is_some_and(SharedStore::is_lost)
    }

    /// What this node admitted without the store, and has not told it yet.
    pub(crate) fn owed(&self) -> StoreDebt {
        on_either!(self, limiter => limiter.owed())
    }

    /// Tells the store of it.
    pub(crate) async fn merge(&self) -> MergeSummary {
        on_either!(self, limiter => Box::pin(limiter.merge()).await)
    }

    /// Forgets it: the store was only late to answer.
    pub(crate) fn forgive(&self) {
        on_either!(self, limiter => limiter.forgive());
    }

    /// How many keys this node counts by itself while the store is lost.
    pub(crate) fn local_keys(&self) -> usize {
        on_either!(self, limiter => limiter.local_keys())
    }

    /// Hashes keys with another secret from now on.
    pub(crate) fn set_hash_key(&self, secret: HashKey) {
        on_either!(self, limiter => limiter.set_hash_key(secret));
    }

    /// How many nodes share the limits while the shared store is lost.
    pub(crate) fn set_nodes(&self, nodes: u32) {
        on_either!(self, limiter => limiter.set_nodes(nodes));
    }
}

/// How many of these requests can be asked for at once: those before the first whose refusal would be
/// counted, or that one alone.
fn together(limiter: &Limiter<SharedStore>, requests: &[Request<'_>]) -> usize {
    let some =
        requests.iter().take(if limiter.store().redis().keeps_order() { AT_ONCE } else { 1 });
    some.take_while(|request| !limiter.counts_refusals(request)).count().max(1)
}

#[cfg(test)]
impl Engine {
    /// What a request would be told by the memory.
    pub(crate) fn peek(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        match self {
            Self::Memory(limiter) => limiter.peek(request),
            Self::Shared(_) => panic!("only memory can be looked at in a plain call"),
        }
    }
}
