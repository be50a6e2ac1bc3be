//! The library against governor and limitador, as ratios within one run: `cargo bench -p
//! tidegate-peers`. Each ratio has its required value beside it.
//!
//! A crate of its own, so that it builds without the daemon and its dependencies.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a benchmark may stop at the first surprise"
)]

pub mod decision;
pub mod fill;
pub mod keyed;
pub mod population;
pub mod rounds;
pub mod simulated;
pub mod table;
