//! The limiter: one request through all stages, in one direction.
//!
//! request → identity and operation ([`facts`](crate::facts)) → standing → plan → store (or
//! fallback) → decision.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwap;

use crate::clock::{Clock, Now, SystemClock};
use crate::decision::{Decision, LimitReport, Outcome};
use crate::facts::Facts;
use crate::fallback;
use crate::key::{self, HashKey};
use crate::lease::{Lease, Settlement};
use crate::plan::{self, Applies, Level, Mode, Plan};
use crate::policy::Policy;
use crate::request::{Request, RequestError};
use crate::standing::{Standing, standing};
use crate::store::{Amended, Amendment, Answer, Change, ImmediateStore, Memory, Store, StoreError};

/// Decides requests by one or several policies on a store. Clones share everything.
///
/// ```
/// use tidegate::{Limiter, Policy, Request};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::parse("api.yaml", "
/// tidegate: 1
/// name: api
/// limits:
///   per-client: { by: client, token_bucket: 2/s burst 2 }
/// ")?;
/// let limiter = Limiter::new(policy);
/// let request = Request::new("GET", "/things").user("u1");
/// assert!(limiter.check(&request)?.is_allowed());
/// assert!(limiter.check(&request)?.is_allowed());
/// let refused = limiter.check(&request)?;
/// assert!(!refused.is_allowed());
/// assert!(refused.retry_after().is_some());
/// # Ok(())
/// # }
/// ```
pub struct Limiter<S = Memory> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    policies: ArcSwap<Vec<Loaded>>,
    store: S,
    fallback: Memory,
    nodes: AtomicU32,
    clock: Arc<dyn Clock>,
    secret: HashKey,
    holders: Holders,
}

/// A policy in force.
pub(crate) struct Loaded {
    pub(crate) policy: Arc<Policy>,
    pub(crate) families: Vec<u64>,
}

impl Limiter<Memory> {
    /// A limiter in this process's memory, on the machine's clock.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        LimiterBuilder::default().policy(policy).assemble()
    }

    /// A limiter with its own store, clock or secret, or with several policies.
    #[must_use]
    pub fn builder() -> LimiterBuilder<Memory> {
        LimiterBuilder::default()
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a request, and charges it if it passes. The store may have to be waited for.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs: a 400.
    pub async fn decide(
        &self,
        request: &Request<'_>,
        mode: Mode,
    ) -> Result<Decision, RequestError> {
        let shared = &*self.shared;
        let policies = shared.policies.load();
        let loaded = select(&policies, request)?;
        let policy = Arc::clone(&loaded.policy);
        let now = shared.clock.now();
        let facts = Facts::gather(&loaded.policy, request)?;
        let (operation, tier) = (facts.operation, facts.tier);
        let without_limits =
            |policy, outcome| Ok(Decision::without_limits(policy, outcome, operation, tier, now));
        match standing(&facts) {
            Standing::Exempt => return without_limits(policy, Outcome::Exempt),
            Standing::Blocked => return without_limits(policy, Outcome::Blocked),
            Standing::Ordinary if !policy.enabled => {
                return without_limits(policy, Outcome::Allowed);
            }
            Standing::Ordinary => {}
        }
        let levels = plan::levels(&facts, now, &shared.secret, &loaded.families)?;
        if levels.is_empty() {
            return without_limits(policy, Outcome::Allowed);
        }
        drop(facts);
        let plan = Plan { mode, now, holder: shared.holders.next(), levels };
        drop(policies);
        let (plan, answer, degraded) = shared.ask(plan).await;
        let mut decision =
            Decision::from_limits(policy, reports(&plan, &answer), operation, tier, answer.now);
        decision.lease = Lease::of(&decision.policy, &plan, &answer, request.reserve, degraded);
        decision.degraded = degraded;
        Ok(decision)
    }

    /// Tells what became of an admitted request. What is settled once is not settled again.
    ///
    /// # Errors
    /// The store cannot answer; what should have been given back stays charged.
    pub async fn tell(&self, lease: &mut Lease, settlement: Settlement) -> Result<(), StoreError> {
        let amendments = lease.settle(settlement);
        self.amend(lease.local, &amendments).await.map(|_| ())
    }

    /// Gives the lease's concurrency places back; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer; the places free themselves when their lease runs out.
    pub async fn give_back(&self, lease: &mut Lease) -> Result<bool, StoreError> {
        let amendments = lease.release();
        Ok(self.amend(lease.local, &amendments).await?.iter().all(|held| *held))
    }

    /// Keeps the lease's concurrency places for another `lease:`; returns whether all were still
    /// held. A place that was lost stays lost.
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn keep(&self, lease: &Lease) -> Result<bool, StoreError> {
        Ok(self.amend(lease.local, &lease.renew()).await?.iter().all(|held| *held))
    }

    /// Forgets what one limit knows of the subject of a request, as an operator would; returns
    /// whether there was anything to forget.
    ///
    /// # Errors
    /// The limit is not known or does not apply to the request, or the store cannot answer.
    pub async fn forget(&self, limit: &str, request: &Request<'_>) -> Result<bool, ResetError> {
        let level = self.level_of(limit, request)?;
        let amendment = Amendment { level, charged_at_us: 0, holder: 0, change: Change::Reset };
        let amended = self.amend(false, &[amendment]).await.map_err(ResetError::Store)?;
        Ok(amended.iter().any(|found| *found))
    }

    /// Puts other policies in force. Counters of limits that keep their name, algorithm and `by`
    /// stay as they are.
    ///
    /// # Errors
    /// There is no policy, or two have one name.
    pub fn replace_policies(&self, policies: Vec<Arc<Policy>>) -> Result<(), BuildError> {
        check_policies(&policies)?;
        let loaded = load(policies, &self.shared.secret);
        announce(&loaded, &self.shared.store, &self.shared.fallback);
        self.shared.policies.store(Arc::new(loaded));
        Ok(())
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Vec<Arc<Policy>> {
        self.shared.policies.load().iter().map(|loaded| Arc::clone(&loaded.policy)).collect()
    }

    /// How many nodes share the store's limits while it is lost.
    pub fn set_nodes(&self, nodes: u32) {
        self.shared.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    pub(crate) fn now(&self) -> Now {
        self.shared.clock.now()
    }

    pub(crate) fn secret(&self) -> &HashKey {
        &self.shared.secret
    }

    /// Does something with the policy that a request selects.
    pub(crate) fn with_policy<T>(
        &self,
        request: &Request<'_>,
        act: impl FnOnce(&Loaded) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        act(select(&self.shared.policies.load(), request)?)
    }

    fn level_of(&self, limit: &str, request: &Request<'_>) -> Result<Level, ResetError> {
        let (now, secret) = (self.now(), self.secret());
        let found = self.with_policy(request, |loaded| {
            let facts = Facts::gather(&loaded.policy, request)?;
            let mut limits = loaded.policy.limits.iter().enumerate();
            let Some((index, limit)) = limits.find(|(_, candidate)| candidate.name == limit) else {
                return Ok(None);
            };
            plan::applies(index, limit, &facts, now, secret, &loaded.families).map(Some)
        });
        match found.map_err(ResetError::Request)? {
            Some(Applies::Yes(level)) => Ok(level),
            Some(Applies::No(_)) => Err(ResetError::DoesNotApply(limit.to_owned())),
            None => Err(ResetError::UnknownLimit(limit.to_owned())),
        }
    }

    async fn amend(&self, local: bool, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        let shared = &*self.shared;
        let now = shared.clock.now();
        if amendments.is_empty() {
            return Ok(Amended::new());
        }
        if local {
            shared.fallback.amend_now(now, amendments)
        } else {
            shared.store.amend(now, amendments).await
        }
    }
}

/// The same on a store that answers at once.
impl<S: ImmediateStore> Limiter<S> {
    /// Decides a request, and charges it if it passes.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs: a 400.
    pub fn check(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        at_once(self.decide(request, Mode::Charge))
    }

    /// Decides a request without charging it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn peek(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        at_once(self.decide(request, Mode::Peek))
    }

    /// Tells what became of an admitted request.
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn settle(&self, lease: &mut Lease, settlement: Settlement) -> Result<(), StoreError> {
        at_once(self.tell(lease, settlement))
    }

    /// Gives concurrency places back; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn release(&self, lease: &mut Lease) -> Result<bool, StoreError> {
        at_once(self.give_back(lease))
    }

    /// Keeps concurrency places for another lease; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer.
    pub fn renew(&self, lease: &Lease) -> Result<bool, StoreError> {
        at_once(self.keep(lease))
    }

    /// Forgets what one limit knows of the subject of a request.
    ///
    /// # Errors
    /// The limit is not known or does not apply to the request, or the store cannot answer.
    pub fn reset(&self, limit: &str, request: &Request<'_>) -> Result<bool, ResetError> {
        at_once(self.forget(limit, request))
    }
}

impl<S: Store> Shared<S> {
    /// Asks the store, or decides without it. The plan comes back as it was decided.
    async fn ask(&self, mut plan: Plan) -> (Plan, Answer, bool) {
        if let Ok(answer) = self.store.decide(&plan).await {
            return (plan, answer, false);
        }
        let nodes = self.nodes.load(Ordering::Relaxed);
        let answer = fallback::decide(&mut plan, &self.fallback, nodes);
        let answer =
            answer.unwrap_or_else(|_| Answer { now: plan.now, replies: Default::default() });
        (plan, answer, true)
    }
}

/// Runs a future that never waits, because nothing in it does.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

fn reports<const N: usize>(plan: &Plan, answer: &Answer) -> arrayvec::ArrayVec<LimitReport, N> {
    let report = |(level, reply): (&Level, &crate::store::Reply)| LimitReport {
        limit: level.limit,
        spec: level.spec,
        cost: level.cost,
        verdict: reply.verdict,
        charged: reply.charged,
        available: reply.reading.available,
        reset_us: reply.reading.reset_us,
        enforcement: level.enforcement,
    };
    plan.levels.iter().zip(&answer.replies).map(report).take(N).collect()
}

fn select<'p>(policies: &'p [Loaded], request: &Request<'_>) -> Result<&'p Loaded, RequestError> {
    let selected = match request.policy.as_deref() {
        None => policies.first(),
        Some(name) => policies.iter().find(|loaded| loaded.policy.name == name),
    };
    selected.ok_or_else(|| {
        let name = request.policy.as_deref().unwrap_or_default();
        RequestError::new(
            "policy",
            format!("found `{name}`, expected the name of a policy in force"),
        )
    })
}

fn load(policies: Vec<Arc<Policy>>, secret: &HashKey) -> Vec<Loaded> {
    let load = |policy: Arc<Policy>| {
        let families =
            policy.limits.iter().map(|limit| key::family(secret, &policy, limit)).collect();
        Loaded { policy, families }
    };
    policies.into_iter().map(load).collect()
}

fn announce<S: Store>(policies: &[Loaded], store: &S, fallback: &Memory) {
    let families: Vec<u64> =
        policies.iter().flat_map(|loaded| loaded.families.iter().copied()).collect();
    store.announce(&families);
    fallback.announce_now(&families);
}

fn check_policies(policies: &[Arc<Policy>]) -> Result<(), BuildError> {
    if policies.is_empty() {
        return Err(BuildError::NoPolicy);
    }
    for (index, policy) in policies.iter().enumerate() {
        if policies[..index].iter().any(|earlier| earlier.name == policy.name) {
            return Err(BuildError::SameName(policy.name.clone()));
        }
    }
    Ok(())
}

/// Ids for holders of places: from a random start, so that no two nodes meet.
#[derive(Debug)]
struct Holders(AtomicU64);

impl Holders {
    fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().build_hasher().finish()))
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> =
            self.shared.policies.load().iter().map(|loaded| loaded.policy.name.clone()).collect();
        f.debug_struct("Limiter").field("policies", &names).finish_non_exhaustive()
    }
}

/// Puts a [`Limiter`] together.
pub struct LimiterBuilder<S> {
    policies: Vec<Arc<Policy>>,
    store: S,
    clock: Arc<dyn Clock>,
    secret: HashKey,
    nodes: u32,
}

impl Default for LimiterBuilder<Memory> {
    fn default() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self {
            policies: Vec::new(),
            store: Memory::new(),
            clock,
            secret: HashKey::random(),
            nodes: 1,
        }
    }
}

impl<S> LimiterBuilder<S> {
    /// Adds a policy; requests that name none are decided by the first.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<Arc<Policy>>) -> Self {
        self.policies.push(policy.into());
        self
    }

    /// Keeps states in this store.
    #[must_use]
    pub fn store<T: Store>(self, store: T) -> LimiterBuilder<T> {
        let Self { policies, clock, secret, nodes, .. } = self;
        LimiterBuilder { policies, store, clock, secret, nodes }
    }

    /// Reads the time from this clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Hashes keys with this secret instead of one that only this process knows.
    #[must_use]
    pub fn hash_key(mut self, secret: HashKey) -> Self {
        self.secret = secret;
        self
    }

    /// How many nodes share the limits while the store is lost.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes.max(1);
        self
    }
}

impl<S: Store> LimiterBuilder<S> {
    /// The limiter.
    ///
    /// # Errors
    /// There is no policy, or two have one name.
    pub fn build(self) -> Result<Limiter<S>, BuildError> {
        check_policies(&self.policies)?;
        Ok(self.assemble())
    }

    /// The limiter, of policies that are known to be fit.
    pub(crate) fn assemble(self) -> Limiter<S> {
        let Self { policies, store, clock, secret, nodes } = self;
        let (loaded, fallback) = (load(policies, &secret), Memory::new());
        announce(&loaded, &store, &fallback);
        let policies = ArcSwap::from_pointee(loaded);
        let (nodes, holders) = (AtomicU32::new(nodes), Holders::new());
        Limiter {
            shared: Arc::new(Shared { policies, store, fallback, nodes, clock, secret, holders }),
        }
    }
}

/// A limiter that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// There is no policy to decide by.
    NoPolicy,
    /// Two policies have this name.
    SameName(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy => f.write_str("a limiter needs at least one policy"),
            Self::SameName(name) => write!(f, "two policies are called `{name}`"),
        }
    }
}

impl std::error::Error for BuildError {}

/// A state that could not be reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetError {
    /// The request cannot be understood.
    Request(RequestError),
    /// The policy has no limit of this name.
    UnknownLimit(String),
    /// The limit does not apply to the request, so that it has no key.
    DoesNotApply(String),
    /// The store cannot answer.
    Store(StoreError),
}

impl fmt::Display for ResetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::UnknownLimit(name) => write!(f, "the policy has no limit `{name}`"),
            Self::DoesNotApply(name) => {
                write!(f, "the limit `{name}` does not apply to this request")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResetError {}
