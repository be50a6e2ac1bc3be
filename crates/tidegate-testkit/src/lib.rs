//! What Tidegate's tests share: one list of behaviours that every store must pass, checkers of the
//! promises over a log of decisions, and faults of a shared store.
//!
//! - [`behaviours`]: run [`every_behaviour`](behaviours::every_behaviour) on a new store.
//! - [`checkers`]: whether the log of a run keeps the promises.
//! - [`lender`]: a naive bucket that lends, as a reference.
//! - [`geography`]: databases of countries, in the form that they have on disk.
//! - [`log`]: the answers that callers received, collected from many threads.
//! - [`scripted`]: a store whose answers are late, lost or errors when the script says so.
//! - [`simulation`]: many nodes on a modelled store and network, in virtual time, by seed.
//! - [`servers`]: real servers, to be killed, paused, restarted and failed over.
//! - [`proxy`]: a bad network in front of one.
//! - [`deployment`]: the load of many nodes on their store.
//!
//! Nothing here needs an async runtime: [`block_on`] waits for one future on this thread.

pub mod behaviours;
pub mod checkers;
pub mod deployment;
mod executor;
pub mod geography;
pub mod lender;
pub mod log;
pub mod proxy;
pub mod scripted;
pub mod servers;
pub mod simulation;

pub use executor::block_on;
