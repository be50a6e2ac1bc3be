//! The shared store: one state for many nodes, on Redis or Valkey.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tidegate::{HashKey, LimitBuilder, Limiter, Policy, Request};
//! use tidegate_redis::{Config, RedisStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect(&Config::parse("redis://127.0.0.1:6379")?);
//! // All nodes hash keys with one secret, which the server keeps.
//! let secret = HashKey::new(store.secret(Duration::from_secs(1)).await?);
//! let per_user = LimitBuilder::sliding_window("per-user", "100/min").by("user");
//! let policy = Policy::builder("api").limit(per_user).build()?;
//! let limiter = Limiter::builder().policy(policy).store(store).hash_key(secret).build()?;
//! let decision = limiter.check_async(&Request::new("GET", "/things").user("u1")).await?;
//! # let _ = decision;
//! # Ok(())
//! # }
//! ```
//!
//! A plan passes these files on its way to the server. Each step answers, or passes the plan on:
//!
//! ```text
//!  RedisStore::decide            store.rs
//!    │ still refused?            negative_cache.rs   ── answers without the server
//!    │ tokens on loan?           loans/              ── answers without the server, or in part
//!    ▼
//!  Topology: slots of its keys   store/routing.rs
//!    │ several slots             store/cross_slot.rs ── peeks everywhere, then charges slot by slot
//!    ▼ one slot
//!  Batcher of that server        batch.rs            ── joins the commands that wait
//!    ▼
//!  Shard                         store/send.rs       ── one script call per slot, with a number
//!    │ is the server lost?       breaker.rs          ── fails at once while it is open
//!    ▼
//!  Connection                    connection.rs       ── EVALSHA, again if the connection breaks
//!    ▼
//!  the script                    scripts/*.lua       ── all levels of a plan, or none
//! ```
//!
//! `codec` turns commands into the script's arguments and its reply into answers. In the background,
//! `heartbeat` counts the nodes, `replication` keeps marks the same on all nodes, and `connection` and
//! `store/slot_refresh` find servers again. A failure opens a shard's breaker; the engine above then does
//! what each limit's `on_store_failure` says.

mod batch;
mod breaker;
mod codec;
mod config;
mod connection;
mod health;
mod heartbeat;
mod keys;
#[doc(hidden)]
pub mod loans;
mod negative_cache;
mod replication;
mod scan;
mod script;
#[doc(hidden)]
pub mod script_store;
mod slot;
mod store;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use breaker::BreakerState;
pub use config::{Config, ConfigError};
pub use connection::Reason;
pub use health::{Health, NegativeCacheHealth, ShardHealth};
pub use loans::LoanHealth;
pub use replication::{MarkChange, MarkOperation, MarkReplica, ReplicatedMark};
pub use scan::{Cursor, CursorError, Page, StoredKey};
pub use script::Time;
pub use store::{AmendError, RedisStore, ShardStatus, refunds};

/// Locks a mutex of this crate. None of its critical sections panics, so poison means nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
