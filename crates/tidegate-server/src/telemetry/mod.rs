//! What the daemon tells of itself: metrics and logs.

pub mod log;
pub mod metrics;
pub mod request_id;
