//! What the daemon tells of itself: metrics and logs.

mod log;
mod metrics;
mod request_id;

pub(crate) use log::timestamp;
pub use log::{Flush, Format, Log, Settings};
pub use metrics::{CONTENT_TYPE, Metrics, StoreFigures};
pub use request_id::RequestId;
