//! Leases: tokens that this node borrowed from the store's buckets, and spends without asking.
//!
//! A [`Table`] holds what was borrowed, key by key. It knows no network and no clock: whoever uses it
//! tells it the node's own steady time, sends its [`Loan`]s, each once and never again, and tells it
//! what became of them. `Leases` does that on the shared store.
//!
//! A node spends at most what it was granted, and only before that runs out, counted from when the
//! loan was asked for: so level and loans of a bucket together never exceed its burst, and nobody can
//! tell the nodes from one bucket. A refusal is never given here, only by the store.

mod batch;
mod demand;
mod entry;
mod health;
mod id;
mod keeper;
mod loan;
mod spending;
mod table;

pub use health::LeaseHealth;
pub(crate) use keeper::Leases;
pub use loan::{Lent, Loan, Report};
pub use spending::Begun;
pub use table::Table;

#[cfg(test)]
mod tests;
