//! The limiter: one request through all stages, in one direction.
//!
//! request → identity and operation ([`context`](crate::context)) → standing → plan → store (or
//! fallback) → decision.

mod activate;
mod batch;
mod builder;
mod claim;
mod client_keys;
mod conclude;
mod decide;
mod error;
mod immediate;
mod judged;
mod merge;
mod operator;
mod pared;
mod protect;
mod queue;
mod turn;
mod waiting;

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll, Waker};

use arc_swap::ArcSwap;

pub use builder::LimiterBuilder;
pub use claim::Claim;
pub use client_keys::ClientKeys;
pub use error::{BuildError, ResetError};
pub use merge::{MergeSummary, StoreDebt};
pub use operator::NewMark;
pub(crate) use turn::Turn;
pub use turn::{Acquisition, Timer};

use activate::{announce, check_policies, load, select};
use decide::{Patience, Prepared};
use queue::{NEWCOMER, Ticket};
use waiting::Waiting;

use crate::active_policy::{ActivePolicies, ActivePolicy};
use crate::clock::{Clock, Moment, Now};
use crate::context::Context;
use crate::decision::Decision;
use crate::fallback::Fallback;
use crate::key::HashKey;
use crate::plan::{LEVELS_MAX, Level, Mode, Plan, Planner};
use crate::policy::Policy;
use crate::protection::marks::Marks;
use crate::protection::steps::Known;
use crate::request::{Request, RequestError};
use crate::reservation::{Reservation, Settlement};
use crate::store::{Amended, Amendment, Change, Memory, Store, StoreError};

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
    policies: ArcSwap<Vec<ActivePolicy>>,
    replacing: Mutex<()>,
    store: S,
    fallback: Fallback,
    nodes: AtomicU32,
    clock: Arc<dyn Clock>,
    marks: Marks,
    /// What this node knows of the steps of ladders.
    steps: Known,
    /// What was last told, for policies that come into force later.
    load_ppm: AtomicU64,
    secret: ArcSwap<HashKey>,
    holders: Holders,
    waiting: Arc<Waiting>,
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
    /// Where others [wait](Self::acquire) for one of its keys, it is refused until they have had
    /// their turn.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs: a 400.
    pub fn decide(
        &self,
        request: &Request<'_>,
        mode: Mode,
    ) -> impl Future<Output = Result<Decision, RequestError>> + Send {
        self.decide_to_the_end(request, mode)
    }

    /// Decides a request, and counts the events that the decision makes.
    async fn decide_to_the_end(
        &self,
        request: &Request<'_>,
        mode: Mode,
    ) -> Result<Decision, RequestError> {
        let mut plan = Plan::new(mode);
        let decision = self.decide_in_turn(request, NEWCOMER, &mut plan).await?;
        if self.counts(request, &decision, mode) {
            // Boxed, as is all that few need: every request has room for the rest.
            return Ok(Box::pin(self.penalised(request, decision, &mut plan)).await);
        }
        Ok(decision)
    }

    /// Decides a request unless an older ticket waits for one of its keys.
    async fn decide_in_turn(
        &self,
        request: &Request<'_>,
        ticket: Ticket,
        plan: &mut Plan,
    ) -> Result<Decision, RequestError> {
        let shared = &self.shared;
        // Only what is open is kept while the store is waited for.
        let open = match shared.prepare(request, ticket, Patience::Waits, plan)? {
            Prepared::Open(open) => open,
            Prepared::Decided(decided) => return Ok(decided.decision()),
            Prepared::Answered(open, mut answer) => {
                return Ok(open.conclude(plan, &mut answer, None));
            }
        };
        let answered = shared.store.decide(plan).await;
        Ok(shared.conclude(open, plan, answered))
    }

    /// Decides a request, and charges it if it passes, where the store need not be waited for; `None`
    /// where it must be, and nothing has happened.
    ///
    /// # Errors
    /// The request cannot be understood, or lacks what a limit needs: a 400.
    pub fn decide_at_once(&self, request: &Request<'_>) -> Result<Option<Decision>, RequestError> {
        let (shared, mut plan) = (&self.shared, Plan::new(Mode::Charge));
        if !self.with_policy(request, |active| Ok(active.leased))? {
            return Ok(None);
        }
        let prepared = shared.prepare(request, NEWCOMER, Patience::None, &mut plan)?;
        let decision = match prepared {
            Prepared::Decided(decided) => Some(decided.decision()),
            Prepared::Open(_) => None,
            Prepared::Answered(open, mut answer) => Some(open.conclude(&plan, &mut answer, None)),
        };
        // A refusal charges nothing: it can be decided again where its event must be counted.
        Ok(decision.filter(|decision| !self.counts(request, decision, Mode::Charge)))
    }

    /// Tells what became of an admitted request. What is settled once is not settled again.
    ///
    /// # Errors
    /// The store cannot answer; what should have been given back stays charged.
    pub async fn settle_async(
        &self,
        reservation: &mut Reservation,
        settlement: Settlement,
    ) -> Result<(), StoreError> {
        let amendments = reservation.settle(settlement);
        self.amend(reservation.local, &amendments).await.map(|_| ())
    }

    /// Gives the reservation's concurrency places back; returns whether all were still held.
    ///
    /// # Errors
    /// The store cannot answer; the places free themselves when their reservation runs out.
    pub async fn release_async(&self, reservation: &mut Reservation) -> Result<bool, StoreError> {
        let amendments = reservation.release();
        let held = self.amend(reservation.local, &amendments).await?;
        Ok(!held.is_empty() && held.iter().all(|held| *held))
    }

    /// Keeps the reservation's concurrency places for another `lease:`; returns whether all were still
    /// held. A place that was lost stays lost.
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn renew_async(&self, reservation: &Reservation) -> Result<bool, StoreError> {
        let held = self.amend(reservation.local, &reservation.renew()).await?;
        Ok(!held.is_empty() && held.iter().all(|held| *held))
    }

    /// Forgets what one limit knows of the subject of a request, as an operator would; returns
    /// whether there was anything to forget.
    ///
    /// # Errors
    /// The limit is not known or does not apply to the request, or the store cannot answer.
    pub async fn reset_async(
        &self,
        limit: &str,
        request: &Request<'_>,
    ) -> Result<bool, ResetError> {
        let key = self.level_of(limit, request)?;
        let forgotten = self.forget(&[key]).await.map_err(ResetError::Store)?;
        Ok(forgotten.iter().any(|found| *found))
    }

    /// Forgets what is known of keys, at most [`LEVELS_MAX`] of them, each by itself; whether there
    /// was anything to forget. Names are for a store that [has them](Store::NAMES_KEYS).
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn forget(&self, keys: &[(Level, Option<Arc<str>>)]) -> Result<Amended, StoreError> {
        // This node's own count first: it decides while the shared store cannot be asked.
        let local = self.forget_here(keys).await?;
        let shared = self.amend(false, &resets(keys)).await?;
        Ok(local.iter().zip(&shared).map(|(local, shared)| *local || *shared).collect())
    }

    /// Forgets what this node alone knows of keys.
    async fn forget_here(&self, keys: &[(Level, Option<Arc<str>>)]) -> Result<Amended, StoreError> {
        self.amend(true, &resets(keys)).await
    }

    /// Puts other policies in force. Counters of limits that keep their name, algorithm and `by`
    /// stay as they are.
    ///
    /// # Errors
    /// There is no policy, or two have one name.
    pub fn replace_policies(&self, policies: Vec<Arc<Policy>>) -> Result<(), BuildError> {
        check_policies(&policies)?;
        // Two at once would announce one set of limits and put the other in force.
        let _replacing = self.shared.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.activate(policies);
        Ok(())
    }

    /// Hashes keys with another secret from now on, such as one that a shared store keeps and that
    /// could not be had before. All keys are others then, so that everything starts afresh.
    pub fn set_hash_key(&self, secret: HashKey) {
        let _replacing = self.shared.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.marks.rekey(secret.clone(), self.now());
        self.shared.secret.store(Arc::new(secret));
        self.shared.activate(self.policies());
        self.shared.marks.drop_old_ids(self.now());
        // Nobody else knows the keys that it was counted under.
        self.forgive();
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Vec<Arc<Policy>> {
        self.shared.policies.load().iter().map(|active| Arc::clone(&active.policy)).collect()
    }

    /// The policy that decides requests which name none.
    #[must_use]
    pub fn first_policy(&self) -> Option<Arc<Policy>> {
        self.shared.policies.load().first().map(|active| Arc::clone(&active.policy))
    }

    /// The policies in force, to read and decide a request by the same ones.
    #[must_use]
    pub fn active_policies(&self) -> ActivePolicies {
        ActivePolicies::new(self.shared.policies.load_full())
    }

    /// How many nodes share the store's limits while it is lost.
    pub fn set_nodes(&self, nodes: u32) {
        self.shared.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// How many requests wait for their turn.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.shared.waiting.count()
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    pub(crate) fn now(&self) -> Now {
        self.shared.clock.now()
    }

    pub(crate) fn secret(&self) -> Arc<HashKey> {
        self.shared.secret.load_full()
    }

    /// Does something with the policy that a request selects.
    pub(crate) fn with_policy<T>(
        &self,
        request: &Request<'_>,
        act: impl FnOnce(&ActivePolicy) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        match request.policies {
            Some(active_policies) => act(select(active_policies.policies(), request)?),
            None => act(select(&self.shared.policies.load(), request)?),
        }
    }

    fn level_of(
        &self,
        limit: &str,
        request: &Request<'_>,
    ) -> Result<(Level, Option<Arc<str>>), ResetError> {
        let moment = Moment::of(&*self.shared.clock);
        let found = self.with_policy(request, |active| {
            let context = Context::gather(&active.policy, request)?;
            let mut limits = active.policy.limits.iter().enumerate();
            let found = limits.find(|(_, candidate)| candidate.name == limit);
            let planner = Planner::new(&context, &moment, active);
            let level = found.map(|(index, limit)| planner.subject(index, limit));
            Ok(level.map(|level| {
                let level = level?;
                let names = S::NAMES_KEYS.then(|| planner.names(&self.secret(), &[level]));
                Some((level, names.and_then(|names| names.into_iter().next())))
            }))
        });
        match found.map_err(ResetError::Request)? {
            Some(Some(level)) => Ok(level),
            Some(None) => Err(ResetError::DoesNotApply(limit.to_owned())),
            None => Err(ResetError::UnknownLimit(limit.to_owned())),
        }
    }

    async fn amend(&self, local: bool, amendments: &[Amendment]) -> Result<Amended, StoreError> {
        let shared = &*self.shared;
        let now = shared.clock.now();
        if amendments.is_empty() {
            return Ok(Amended::new());
        }
        let amended = if local {
            Ok(shared.fallback.amend(now, amendments))
        } else {
            shared.store.amend(now, amendments).await
        };
        shared.waiting.wake(amendments);
        amended
    }
}

impl<S: Store> Shared<S> {
    /// Whoever calls it holds the lock on replacing.
    fn activate(&self, policies: Vec<Arc<Policy>>) {
        let secret = self.secret.load();
        let mut active = load(policies, &secret);
        let before = self.policies.load();
        for active in &mut active {
            let same = |before: &&ActivePolicy| before.policy.name == active.policy.name;
            if let Some(before) = before.iter().find(same) {
                active.guard.keep_tripped(&active.policy, &before.guard, &before.policy);
                let (policy, bans) = (&active.policy, &mut active.guard.bans);
                bans.keep_bans(&secret, policy, &self.marks, &before.guard.bans, &before.policy);
            }
            active.guard.load(&active.policy, self.load_ppm.load(Ordering::Relaxed));
        }
        let active = Arc::new(active);
        self.policies.store(Arc::clone(&active));
        announce(&active, &self.store, &self.fallback);
        self.waiting.wake_all();
    }
}

fn resets(keys: &[(Level, Option<Arc<str>>)]) -> Vec<Amendment> {
    let reset = |(level, name): &(Level, Option<Arc<str>>)| Amendment {
        level: *level,
        name: name.clone(),
        charged_at_us: 0,
        holder: 0,
        change: Change::Reset,
    };
    keys.iter().take(LEVELS_MAX).map(reset).collect()
}

/// Runs a future that never waits, because nothing in it does.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut task_context = task::Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut task_context) {
            return value;
        }
        std::thread::yield_now();
    }
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
            self.shared.policies.load().iter().map(|active| active.policy.name.clone()).collect();
        f.debug_struct("Limiter").field("policies", &names).finish_non_exhaustive()
    }
}
