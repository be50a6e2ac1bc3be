//! What Tidegate's tests share: one list of behaviours that every store must pass, checkers of the
//! promises over a log of decisions, and a store that is slow and fails by script.
//!
//! - [`behaviours`]: run [`every_behaviour`](behaviours::every_behaviour) on a new store.
//! - [`checkers`]: log what a run decided, then ask whether it kept its promises.
//! - [`scripted`]: a store whose answers are late, lost or errors when the script says so.
//!
//! Nothing here needs an async runtime: [`block_on`] waits for one future on this thread.

pub mod behaviours;
pub mod checkers;
mod executor;
pub mod log;
pub mod proxy;
pub mod scripted;
pub mod servers;

pub use executor::block_on;
