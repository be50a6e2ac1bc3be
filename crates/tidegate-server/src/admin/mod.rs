//! What the admin listener serves.

pub mod metrics;
