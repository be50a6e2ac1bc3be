//! The daemon's status: the policies in force, the last reload, the store and the listeners.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::marks::MarkKind;
use tidegate::engine::store::Memory;
use tidegate_redis::{LoanHealth, ShardHealth};
use utoipa::ToSchema;

use crate::app::App;
use crate::engine::{DaemonStore, Engine};
use crate::policies::{LoadedPolicy, PolicyBundle};
use crate::shared::state_name;
use crate::state::StateHealth;
use crate::telemetry::{Present, SharedPresent, timestamp};

/// The status of the daemon.
pub(crate) struct Status {
    started: Now,
    listeners: Vec<ListenerStatus>,
    max_keys: usize,
    /// The warnings of the listeners.
    warnings: Vec<String>,
    state_dir: Option<Arc<StateHealth>>,
    policies: Mutex<PoliciesStatus>,
}

/// The part of the status that a reload changes.
#[derive(Default)]
struct PoliciesStatus {
    policies: Vec<PolicyStatus>,
    /// The warnings of the policies.
    warnings: Vec<String>,
    loaded_unix_us: u64,
    /// The time of the last reload, and its error.
    last_reload: Option<(u64, Option<String>)>,
}

/// A listener and its number of open connections.
#[derive(Serialize, ToSchema)]
pub(crate) struct ListenerStatus {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    #[schema(value_type = usize)]
    pub(crate) connections: Arc<AtomicUsize>,
}

#[derive(Serialize, ToSchema)]
struct PolicyStatus {
    name: String,
    version: Option<String>,
    hash: String,
    file: String,
    enabled: bool,
    limits: usize,
}

/// The answer of `GET /admin/v1/status`.
#[derive(Serialize, ToSchema)]
#[schema(as = Status)]
pub(crate) struct StatusView<'s> {
    version: &'static str,
    uptime_seconds: u64,
    draining: bool,
    policies: &'s [PolicyStatus],
    reload: Reload<'s>,
    store: Store,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_dir: Option<StateDir>,
    listeners: &'s [ListenerStatus],
    waiting: usize,
    leases: usize,
    warnings: Vec<String>,
}

#[derive(Serialize, ToSchema)]
struct Reload<'s> {
    loaded_at: String,
    tried_at: Option<String>,
    error: Option<&'s str>,
}

/// The state directory.
#[derive(Serialize, ToSchema)]
struct StateDir {
    path: String,
    state: &'static str,
    saved_at: Option<String>,
    failure: Option<String>,
}

impl StateDir {
    fn of(health: &StateHealth) -> Self {
        let present = health.status();
        let failure = |(of, error): &(&str, String)| format!("{of}: {error}");
        let errors: Vec<String> = present.failures.iter().map(failure).collect();
        Self {
            path: health.path().display().to_string(),
            state: if errors.is_empty() { "saving" } else { "failing" },
            saved_at: present.saved_unix_us.map(timestamp),
            failure: (!errors.is_empty()).then(|| errors.join("; ")),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Store {
    Memory {
        kind: &'static str,
        state: &'static str,
        keys: usize,
        max_keys: usize,
        evicted_keys: u64,
    },
    Shared {
        kind: &'static str,
        state: &'static str,
        degraded: bool,
        since: String,
        nodes: Option<u32>,
        last_error: Option<String>,
        shards: Vec<Shard>,
        known_refusals: usize,
        corrections_waiting: usize,
        owed_keys: usize,
        leases: Leases,
    },
}

/// The token loans of this node.
#[derive(Serialize, ToSchema)]
struct Leases {
    held: usize,
    tokens: u64,
    spent: u64,
    exact: u64,
    granted: u64,
    refused: u64,
}

impl Leases {
    fn of(health: &LoanHealth) -> Self {
        let LoanHealth { held, spent, exact, granted, refused, .. } = *health;
        let tokens = health.outstanding / Amount::ONE.micros();
        Self { held, tokens, spent, exact, granted, refused }
    }
}

/// One server of a shared store.
#[derive(Serialize, ToSchema)]
struct Shard {
    address: String,
    state: &'static str,
    since: String,
    last_error: Option<String>,
    queued: usize,
}

impl Status {
    pub(crate) fn new(
        started: Now,
        listeners: Vec<ListenerStatus>,
        max_keys: usize,
        bundle: &PolicyBundle,
        warnings: Vec<String>,
        state_dir: Option<Arc<StateHealth>>,
    ) -> Self {
        let policies = PoliciesStatus {
            policies: describe(&bundle.policies),
            warnings: bundle.warnings.clone(),
            loaded_unix_us: started.unix_us,
            last_reload: None,
        };
        let policies = Mutex::new(policies);
        Self { started, listeners, max_keys, warnings, state_dir, policies }
    }

    /// The listeners, in the order in which they were bound.
    pub(crate) fn listeners(&self) -> &[ListenerStatus] {
        &self.listeners
    }

    /// The present values of the gauges, for the metrics.
    pub(crate) fn present(&self, app: &App) -> Present {
        let open = |one: &ListenerStatus| (one.name, one.connections.load(Ordering::Relaxed));
        let (memory, shared) = (app.engine.store().memory(), app.engine.store().shared());
        let (keys, marks) = (memory.map(Memory::keys), app.engine.marks());
        let count = |(name, kind)| (name, marks.count(kind), marks.refused(kind));
        Present {
            steady_us: app.now().steady_us,
            store: shared.map(|store| SharedPresent {
                health: store.redis().health(),
                corrections: store.corrections(),
                owed_keys: app.engine.owed().keys,
            }),
            leases: shared.map(|store| store.redis().loan_health()).unwrap_or_default(),
            active_keys: keys.unwrap_or_else(|| app.engine.local_keys()),
            evicted_keys: memory.map(Memory::evicted_keys).unwrap_or_default(),
            waiting: app.engine.waiters(),
            held: app.delayed_answers.count(),
            marks: [("ban", MarkKind::Ban), ("flag", MarkKind::Flag)].map(count).into(),
            notices: app.notifier.counts(),
            state: self.state_dir.as_ref().map(|health| health.status()),
            connections: self.listeners.iter().map(open).collect(),
        }
    }

    /// Other policies are in force; returns those of their warnings that are new.
    pub(crate) fn reloaded(&self, now: Now, bundle: &PolicyBundle) -> Vec<String> {
        let mut status = self.lock();
        status.policies = describe(&bundle.policies);
        status.loaded_unix_us = now.unix_us;
        let known = std::mem::replace(&mut status.warnings, bundle.warnings.clone());
        status.warnings.iter().filter(|warning| !known.contains(warning)).cloned().collect()
    }

    /// Records a reload and its error.
    pub(crate) fn tried(&self, now: Now, error: Option<String>) {
        self.lock().last_reload = Some((now.unix_us, error));
    }

    pub(crate) fn render(&self, app: &App) -> String {
        let PoliciesStatus { policies, warnings, loaded_unix_us, last_reload } = &*self.lock();
        let warnings = warnings.iter().chain(&self.warnings).cloned();
        let last_reload = last_reload.as_ref();
        let view = StatusView {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: app.now().steady_us.saturating_sub(self.started.steady_us) / 1_000_000,
            draining: app.drain.is_announced(),
            policies,
            reload: Reload {
                loaded_at: timestamp(*loaded_unix_us),
                tried_at: last_reload.map(|(unix_us, _)| timestamp(*unix_us)),
                error: last_reload.and_then(|(_, error)| error.as_deref()),
            },
            store: Store::of(&app.engine, self.max_keys),
            state_dir: self.state_dir.as_deref().map(StateDir::of),
            listeners: &self.listeners,
            waiting: app.engine.waiters(),
            leases: app.leases.len(),
            warnings: warnings.chain(secret_warning(&app.engine)).collect(),
        };
        // Strings and numbers into memory: neither can fail.
        serde_json::to_string_pretty(&view).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, PoliciesStatus> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Status {
    /// The status of a daemon that serves nothing.
    pub(crate) fn for_tests(started: Now) -> Self {
        let (listeners, warnings, policies) = (Vec::new(), Vec::new(), Mutex::default());
        Self { started, listeners, max_keys: 1, warnings, state_dir: None, policies }
    }
}

impl Store {
    fn of(engine: &Engine, max_keys: usize) -> Self {
        match engine.store() {
            DaemonStore::Memory(memory) => Self::Memory {
                kind: "memory",
                state: "healthy",
                keys: memory.keys(),
                max_keys,
                evicted_keys: memory.evicted_keys(),
            },
            DaemonStore::Shared(store) => {
                let redis = store.redis();
                let (health, leases) = (redis.health(), redis.loan_health());
                let (corrections_waiting, _) = store.corrections();
                Self::Shared {
                    kind: "redis",
                    state: state_name(health.state()),
                    degraded: !health.state().allows_calls(),
                    since: timestamp(health.since_us()),
                    nodes: health.nodes,
                    last_error: health.last_error(),
                    shards: health.shards.iter().map(Shard::of).collect(),
                    known_refusals: health.negative_cache.refusals,
                    corrections_waiting,
                    owed_keys: engine.owed().keys,
                    leases: Leases::of(&leases),
                }
            }
        }
    }
}

impl Shard {
    fn of(health: &ShardHealth) -> Self {
        Self {
            address: health.address.clone(),
            state: health.state.name(),
            since: timestamp(health.since_us),
            last_error: health.reported_error(),
            queued: health.queued,
        }
    }
}

/// A warning if other nodes hash keys with another secret.
fn secret_warning(engine: &Engine) -> Option<String> {
    let nodes = engine.store().shared()?.redis().health().foreign_nodes;
    (nodes > 0).then(|| {
        format!(
            "{nodes} nodes hash keys with another secret than this one, so that they count the \
             same subject apart: give all nodes the same --hash-key, or none of them any"
        )
    })
}

fn describe(policies: &[LoadedPolicy]) -> Vec<PolicyStatus> {
    let status = |loaded: &LoadedPolicy| PolicyStatus {
        name: loaded.policy.name().to_owned(),
        version: loaded.policy.version().map(str::to_owned),
        hash: loaded.sha256.clone(),
        file: loaded.file.clone(),
        enabled: loaded.policy.is_enabled(),
        limits: loaded.policy.limits().len(),
    };
    policies.iter().map(status).collect()
}
