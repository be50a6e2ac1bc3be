//! The limiter: everything that callers do, each job in a file of its own.
//!
//! | file | job |
//! |---|---|
//! | `pipeline` | one request through all stages: context, precheck, plan, ask, conclude, penalise |
//! | `conclude` | the stage from the store's answer to the decision |
//! | `penalise` | the stage from a final decision, an answer or a report to penalties |
//! | `batch` | many requests in one call |
//! | `waiting` | requests that wait for their turn |
//! | `reservations` | settling, releasing, renewing and claiming |
//! | `policies` | putting policies in force, and finding the one of a request |
//! | `operator` | bans, flags, resets and load, by hand |
//! | `recovery` | what a store is owed that was lost |
//! | `client_keys` | whom a challenge's token is for |
//! | `builder`, `error` | putting a limiter together |

mod batch;
mod builder;
mod client_keys;
mod conclude;
mod error;
mod operator;
mod penalise;
mod pipeline;
mod policies;
mod recovery;
mod reservations;
mod waiting;

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll, Waker};

use arc_swap::ArcSwap;

pub use builder::LimiterBuilder;
pub use client_keys::ClientKeys;
pub use error::{BuildError, ResetError};
pub use operator::NewMark;
pub use pipeline::{Pending, Progress, Wait};
pub use recovery::{MergeSummary, StoreDebt};
pub use reservations::Claim;
pub(crate) use waiting::Turn;
pub use waiting::{Acquisition, Timer};

use waiting::SharedQueue;

use crate::active_policy::ActivePolicy;
use crate::clock::{Clock, Now};
use crate::fallback::Fallback;
use crate::key::HashKey;
use crate::policy::Policy;
use crate::protection::marks::Marks;
use crate::protection::step_cache::StepCache;
use crate::store::{Memory, Store};

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
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    policies: ArcSwap<Vec<Arc<ActivePolicy>>>,
    /// Held while policies or the secret change.
    replacing: Mutex<()>,
    store: S,
    fallback: Fallback,
    /// How many nodes divide the limits while the store is lost.
    nodes: AtomicU32,
    clock: Arc<dyn Clock>,
    marks: Marks,
    /// What this node knows of the steps of ladders.
    steps: StepCache,
    /// The load that was set last, for policies that come into force later.
    load_ppm: AtomicU64,
    secret: ArcSwap<HashKey>,
    holders: Holders,
    waiting: Arc<SharedQueue>,
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
    /// Sets how many nodes divide the limits while the store is lost.
    pub fn set_nodes(&self, nodes: u32) {
        self.inner.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// The store behind the limiter.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    #[inline]
    pub(crate) fn now(&self) -> Now {
        self.inner.clock.now()
    }

    pub(crate) fn secret(&self) -> Arc<HashKey> {
        self.inner.secret.load_full()
    }
}

/// Runs a future that never waits, because nothing in it does.
pub(crate) fn block_on_ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = task::Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// Ids for holders of places. They count from a random start, so that no two nodes use the same.
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
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> =
            self.inner.policies.load().iter().map(|active| active.policy.name.clone()).collect();
        f.debug_struct("Limiter").field("policies", &names).finish_non_exhaustive()
    }
}
