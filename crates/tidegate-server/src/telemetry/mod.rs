//! What the daemon tells of itself: metrics and logs.

mod log;
mod metrics;
mod request_id;

pub(crate) use log::{Flush, Log, Sparingly, store_failed, timestamp};
pub use log::{Format, Settings};
pub(crate) use metrics::{CONTENT_TYPE, Challenged, Metrics, Present, SharedPresent, StoreCall};
pub(crate) use request_id::RequestId;

#[cfg(test)]
mod tests;
