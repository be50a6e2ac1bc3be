//! The shared store: Redis or Valkey, one truth for many nodes.
//!
//! A plan is encoded, goes to whoever has its keys, travels with all others that are under way and is
//! decided by one script, all levels or none. What goes wrong opens a breaker, above which the engine
//! does what each limit's `on_store_failure` says.

mod batch;
mod breaker;
mod codec;
mod config;
mod connection;
#[doc(hidden)]
pub mod direct;
mod health;
mod heartbeat;
mod keys;
mod known;
#[doc(hidden)]
pub mod leases;
mod marks;
mod scan;
mod script;
mod slot;
mod store;

pub use breaker::State;
pub use config::{Config, ConfigError};
pub use connection::Reason;
pub use health::{Health, KnownHealth, ShardHealth};
pub use known::Changed;
pub use leases::LeaseHealth;
pub use marks::{HeardMark, How, MarkChange, Replica};
pub use scan::{Cursor, Found, NoCursor, Page};
pub use script::Time;
pub use store::{RedisStore, Status, Uncorrected, refunds};
