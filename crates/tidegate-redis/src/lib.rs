//! The shared store: Redis or Valkey, one truth for many nodes.
//!
//! A plan is encoded ([`codec`]), travels with all others that are under way ([`batch`]) and is decided by
//! one script, all levels or none. What goes wrong opens a breaker ([`breaker`]), above which the engine
//! does what each limit's `on_store_failure` says.

mod codec;
#[doc(hidden)]
pub mod direct;
mod keys;
mod script;

pub use script::Time;
