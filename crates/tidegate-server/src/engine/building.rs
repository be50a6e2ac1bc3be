//! Putting the engine together on the store that the flags name.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Clock as _, Now, SystemClock};
use tidegate::store::{Imported, Memory, Store};
use tidegate::{HashKey, Limiter, LimiterBuilder, Policy};

use super::Engine;
use crate::config::{Config, StoreConfig};
use crate::error::StartError;
use crate::remote::connect;
use crate::shared::{SharedStore, StoreState, settled};
use crate::state::StateDir;
use crate::telemetry::{Metrics, store_failed};

/// How long the start waits for a shared store. It goes on without one.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// What an engine is made of.
pub(crate) struct Building<'b> {
    pub(crate) config: &'b Config,
    pub(crate) policies: &'b [Arc<Policy>],
    pub(crate) metrics: &'b Arc<Metrics>,
    pub(crate) clock: &'b SystemClock,
}

impl Building<'_> {
    /// The engine, and the secret that it hashes keys with: this node's own, or that of all nodes.
    pub(crate) async fn engine(
        &self,
        state: Option<&StateDir>,
        own: &HashKey,
    ) -> Result<(Engine, HashKey), StartError> {
        match &self.config.store {
            StoreConfig::Memory => {
                let memory = Memory::with_max_keys(self.config.max_keys);
                let limiter = self.limiter(memory, own, None)?;
                if let Some(state) = state {
                    load(state, &limiter, own, self.clock.now())?;
                }
                Ok((Engine::Memory(limiter), own.clone()))
            }
            StoreConfig::Shared(shared) => {
                let (metrics, clock) = (Arc::clone(self.metrics), self.clock.clone());
                let store = SharedStore::new(connect(shared)?, metrics, clock);
                let secret = agreed(self.config, &store, own.clone()).await;
                let limiter = self.limiter(store, &secret, shared.nodes)?;
                if let Some(state) = state {
                    // What the store was not told before the last end; what it knows comes on top.
                    let marks = state.load_marks(limiter.marks(), self.clock.now());
                    let marks = marks.map_err(StartError::new)?;
                    let message = "bans and flags are back from the state directory";
                    tracing::info!(event = "state_loaded", marks, "{message}");
                }
                Ok((Engine::Shared(limiter), secret))
            }
        }
    }

    fn limiter<S: Store>(
        &self,
        store: S,
        secret: &HashKey,
        nodes: Option<NonZeroU32>,
    ) -> Result<Limiter<S>, StartError> {
        let builder = Limiter::builder()
            .store(store)
            .clock(self.clock.clone())
            .hash_key(secret.clone())
            .nodes(nodes.map_or(1, NonZeroU32::get))
            .local_keys_max(self.config.max_keys)
            .max_waiters(self.config.bounds.waiters_max);
        let with_policy = |builder: LimiterBuilder<S>, policy| builder.policy(Arc::clone(policy));
        self.policies.iter().fold(builder, with_policy).build().map_err(StartError::new)
    }
}

/// The secret that all nodes hash keys with. It is asked for however the store is: whoever keeps it may
/// answer while others are lost. If nobody does in time, this node's own does until then.
async fn agreed(config: &Config, store: &SharedStore, own: HashKey) -> HashKey {
    if config.hash_key.is_some() {
        store.secret_is_known(&own);
    }
    let asking =
        async { if store.lacks_secret() { store.secret().await.map(Some) } else { Ok(None) } };
    let (answers, asked) = tokio::join!(settled(store, CONNECT_WAIT), asking);
    if !answers {
        let error = store.health().last_error.unwrap_or_default();
        let state = StoreState::Lost.name();
        let message = "the store does not answer: each limit does what its on_store_failure says";
        tracing::error!(event = "store_state", state, error, "{message}");
    }
    match asked {
        Ok(Some(secret)) => {
            store.secret_is_known(&secret);
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
fn load(state: &StateDir, limiter: &Limiter, secret: &HashKey, now: Now) -> Result<(), StartError> {
    let marks = state.load_marks(limiter.marks(), now).map_err(StartError::new)?;
    match state.load(limiter.store(), secret, now).map_err(StartError::new)? {
        Some(Imported { restored, meaningless, strangers }) => tracing::info!(
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
    Ok(())
}
