//! Putting a limiter together.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;

use super::error::BuildError;
use super::policies::{announce, check_policies, prepare};
use super::waiting::{SharedQueue, WAITERS_MAX_DEFAULT};
use super::{Holders, Inner, Limiter};
use crate::clock::{Clock, SystemClock};
use crate::fallback::Fallback;
use crate::key::HashKey;
use crate::policy::Policy;
use crate::protection::marks::{BANS_MAX_DEFAULT, Marks};
use crate::protection::step_cache::StepCache;
use crate::store::{Memory, Store};

/// How many keys a node counts by itself unless told otherwise.
const LOCAL_KEYS_MAX_DEFAULT: usize = 1_000_000;

/// Puts a [`Limiter`] together.
pub struct LimiterBuilder<S> {
    policies: Vec<Arc<Policy>>,
    store: S,
    clock: Arc<dyn Clock>,
    secret: HashKey,
    nodes: u32,
    local_keys_max: usize,
    max_waiters: usize,
    max_bans: usize,
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
            local_keys_max: LOCAL_KEYS_MAX_DEFAULT,
            max_waiters: WAITERS_MAX_DEFAULT,
            max_bans: BANS_MAX_DEFAULT,
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
        let Self { policies, clock, secret, nodes, local_keys_max, max_waiters, max_bans, .. } =
            self;
        LimiterBuilder {
            policies,
            store,
            clock,
            secret,
            nodes,
            local_keys_max,
            max_waiters,
            max_bans,
        }
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

    /// How many keys this node counts by itself while the store is lost, a million unless told
    /// otherwise.
    #[must_use]
    pub fn local_keys_max(mut self, keys: usize) -> Self {
        self.local_keys_max = keys;
        self
    }

    /// How many requests may [wait](Limiter::acquire) at once, 10,000 unless told otherwise; what
    /// comes beyond is refused without waiting.
    #[must_use]
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.max_waiters = max_waiters;
        self
    }

    /// How many bans there may be at once, a million unless told otherwise. None that is in force
    /// makes room for another.
    #[must_use]
    pub fn max_bans(mut self, max_bans: usize) -> Self {
        self.max_bans = max_bans;
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
        let Self { policies, store, clock, secret, nodes, local_keys_max, max_waiters, max_bans } =
            self;
        let active: Vec<_> = prepare(policies, &secret).into_iter().map(Arc::new).collect();
        let fallback = Fallback::new(local_keys_max);
        announce(&active, &store, &fallback);
        let policies = ArcSwap::from_pointee(active);
        let (nodes, holders) = (AtomicU32::new(nodes), Holders::new());
        Limiter {
            inner: Arc::new(Inner {
                replacing: Mutex::default(),
                policies,
                store,
                fallback,
                nodes,
                clock,
                marks: Marks::new(secret.clone(), max_bans),
                steps: StepCache::default(),
                load_ppm: AtomicU64::new(0),
                secret: ArcSwap::from_pointee(secret),
                holders,
                waiting: Arc::new(SharedQueue::new(max_waiters)),
            }),
        }
    }
}

impl<S> fmt::Debug for LimiterBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.policies.iter().map(|policy| policy.name()).collect();
        f.debug_struct("LimiterBuilder").field("policies", &names).finish_non_exhaustive()
    }
}
