//! What the daemon tells of itself: metrics and logs.

pub mod metrics;
