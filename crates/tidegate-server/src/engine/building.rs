//! Putting the engine together on the store that the flags name.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Clock as _, Now, SystemClock};
use tidegate::engine::marks::Marks;
use tidegate::engine::store::{ImportSummary, Memory};
use tidegate::{HashKey, Limiter, LimiterBuilder, Policy};

use super::{DaemonStore, Engine};
use crate::config::Config;
use crate::error::StartError;
use crate::shared::{SharedStore, connect, wait_until_answering};
use crate::state::{Journals, StateDir};
use crate::telemetry::{Metrics, store_failed};

/// How long the start waits for a shared store. It goes on without one.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// The parts that an engine is made of.
pub(crate) struct EngineParts<'b> {
    pub(crate) config: &'b Config,
    pub(crate) policies: &'b [Arc<Policy>],
    pub(crate) metrics: &'b Arc<Metrics>,
    pub(crate) clock: &'b SystemClock,
}

/// An engine at its start.
pub(crate) struct EngineStart {
    pub(crate) engine: Engine,
    /// What keys are hashed with: this node's own secret, or that of all nodes.
    pub(crate) secret: HashKey,
    /// Where a state directory goes on.
    pub(crate) journals: Option<Journals>,
}

impl EngineParts<'_> {
    /// Builds the engine, and loads the saved state into it.
    pub(crate) async fn build(
        &self,
        state: Option<&StateDir>,
        own: &HashKey,
    ) -> Result<EngineStart, StartError> {
        match self.config.shared_store() {
            None => {
                let memory = Memory::with_max_keys(self.config.max_keys);
                let engine = self.limiter(DaemonStore::Memory(memory), own, None)?;
                let load = |state| load(state, &engine, own, self.clock.now());
                let journals = state.map(load).transpose()?;
                Ok(EngineStart { engine, secret: own.clone(), journals })
            }
            Some(shared) => {
                let (metrics, clock) = (Arc::clone(self.metrics), self.clock.clone());
                let store = SharedStore::new(connect(shared)?, metrics, clock);
                let secret = agreed(self.config, &store, own.clone()).await;
                let store = DaemonStore::Shared(store);
                let engine = self.limiter(store, &secret, shared.nodes)?;
                let load = |state| load_marks(state, engine.marks(), &secret, self.clock.now());
                let journals = state.map(load).transpose()?;
                Ok(EngineStart { engine, secret, journals })
            }
        }
    }

    fn limiter(
        &self,
        store: DaemonStore,
        secret: &HashKey,
        nodes: Option<NonZeroU32>,
    ) -> Result<Engine, StartError> {
        let builder = Limiter::builder()
            .store(store)
            .clock(self.clock.clone())
            .hash_key(secret.clone())
            .nodes(nodes.map_or(1, NonZeroU32::get))
            .local_keys_max(self.config.max_keys)
            .max_waiters(self.config.bounds.max_waiters);
        let with_policy =
            |builder: LimiterBuilder<DaemonStore>, policy| builder.policy(Arc::clone(policy));
        self.policies.iter().fold(builder, with_policy).build().map_err(StartError::new)
    }
}

/// The secret that all nodes hash keys with. It is asked for however the store is: whoever keeps it may
/// answer while others are lost. If nobody does in time, this node's own does until then.
async fn agreed(config: &Config, store: &SharedStore, own: HashKey) -> HashKey {
    if config.hash_key.is_some() {
        store.adopt_secret(&own);
    }
    let asking =
        async { if store.lacks_secret() { store.secret().await.map(Some) } else { Ok(None) } };
    let (answers, asked) = tokio::join!(wait_until_answering(store, CONNECT_WAIT), asking);
    if !answers {
        let error = store.redis().health().last_error().unwrap_or_default();
        let state = "lost";
        let message = "the store does not answer: each limit does what its on_store_failure says";
        tracing::error!(event = "store_state", state, error, "{message}");
    }
    match asked {
        Ok(Some(secret)) => {
            store.adopt_secret(&secret);
            secret
        }
        Ok(None) => own,
        Err(error) => {
            if answers {
                let until = "keys are hashed with this node's own secret until it answers";
                store_failed(&error, until);
            }
            own
        }
    }
}

/// Brings counters and marks back from the state directory.
fn load(
    state: &StateDir,
    engine: &Engine,
    secret: &HashKey,
    now: Now,
) -> Result<Journals, StartError> {
    let loaded = state.load_marks(engine.marks(), secret, now);
    let (marks_journal, marks) = loaded?;
    let Some(memory) = engine.store().memory() else {
        return Ok(Journals { counters: None, marks: marks_journal });
    };
    let loaded = state.load_counters(memory, secret, now);
    let (counters, imported) = loaded?;
    match imported {
        Some(ImportSummary { restored, meaningless, strangers }) => tracing::info!(
            event = "state_loaded",
            restored,
            meaningless,
            strangers,
            marks,
            "counters, bans and flags are back from the state directory"
        ),
        None => {
            tracing::info!(event = "state_empty", "the state directory holds no counters yet");
        }
    }
    Ok(Journals { counters: Some(counters), marks: marks_journal })
}

/// Brings back what the store was not told before the last end; what it knows comes on top.
fn load_marks(
    state: &StateDir,
    marks: &Marks,
    secret: &HashKey,
    now: Now,
) -> Result<Journals, StartError> {
    let loaded = state.load_marks(marks, secret, now);
    let (journal, marks) = loaded?;
    let message = "bans and flags are back from the state directory";
    tracing::info!(event = "state_loaded", marks, "{message}");
    Ok(Journals { counters: None, marks: journal })
}
