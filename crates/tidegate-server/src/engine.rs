//! The engine of the daemon: one limiter, on the store that the flags name.

mod building;

use std::time::Duration;

use tidegate::Limiter;
use tidegate::clock::Now;
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{
    Amendment, AmendmentResults, Answer, ImmediateStore as _, Memory, Store, StoreError, Tables,
};

pub(crate) use building::{EngineParts, EngineStart};

use crate::shared::SharedStore;

/// The limiter that all surfaces decide with.
pub(crate) type Engine = Limiter<DaemonStore>;

/// The memory of this process, or a store that nodes share.
pub(crate) enum DaemonStore {
    Memory(Memory),
    Shared(SharedStore),
}

impl DaemonStore {
    /// This process's own store, if there is no other.
    pub(crate) const fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Shared(_) => None,
        }
    }

    /// The store that nodes share, if there is one.
    pub(crate) const fn shared(&self) -> Option<&SharedStore> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(store) => Some(store),
        }
    }

    /// True if limits do without the store that nodes share.
    pub(crate) fn is_degraded(&self) -> bool {
        self.shared().is_some_and(SharedStore::is_lost)
    }
}

impl Store for DaemonStore {
    fn names_keys(&self) -> bool {
        self.shared().is_some()
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.shared().and_then(Store::poll_interval)
    }

    fn is_never_lost(&self) -> bool {
        self.shared().is_none()
    }

    fn is_immediate(&self) -> bool {
        self.shared().is_none()
    }

    #[inline]
    fn try_decide(
        &self,
        plan: &Plan,
        tables: Option<&Tables>,
        answer: &mut Answer,
    ) -> Option<Result<(), StoreError>> {
        match self {
            Self::Memory(memory) => memory.try_decide(plan, tables, answer),
            Self::Shared(store) => store.try_decide(plan, tables, answer),
        }
    }

    async fn decide(&self, plan: &Plan) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(memory) => memory.decide_now(plan),
            Self::Shared(store) => store.decide(plan).await,
        }
    }

    async fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        match self {
            Self::Memory(memory) => memory.amend_now(now, amendments),
            Self::Shared(store) => store.amend(now, amendments).await,
        }
    }

    fn announce(&self, families: &[u64]) {
        match self {
            Self::Memory(memory) => memory.announce_now(families),
            Self::Shared(store) => store.announce(families),
        }
    }

    fn tables(&self, families: &[u64]) -> Tables {
        match self {
            Self::Memory(memory) => memory.tables_now(families),
            Self::Shared(store) => store.tables(families),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use futures_util::FutureExt as _;
    use tidegate::{Decision, Request, RequestError};

    use super::Engine;

    /// Decides a request on the memory, which is never waited for.
    pub(crate) fn check(engine: &Engine, request: &Request<'_>) -> Result<Decision, RequestError> {
        engine.check_async(request).now_or_never().unwrap()
    }

    /// Looks at what a request would be told by the memory.
    pub(crate) fn peek(engine: &Engine, request: &Request<'_>) -> Result<Decision, RequestError> {
        engine.peek_async(request).now_or_never().unwrap()
    }
}
