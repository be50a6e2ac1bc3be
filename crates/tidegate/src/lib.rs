//! Tidegate: multi-level rate limiting, driven by one readable policy.
pub mod algorithm;
pub mod clock;
pub mod identity;
pub mod operation;
pub mod units;
