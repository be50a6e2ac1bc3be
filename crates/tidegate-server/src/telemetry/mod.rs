//! Metrics and logs.

mod log;
mod metrics;
mod request_id;

pub(crate) use log::{Flush, Log, LogSettings, LogThrottle, store_failed, timestamp};
pub(crate) use metrics::{
    CONTENT_TYPE, ChallengeResult, Metrics, Present, ReloadResult, SharedPresent, StoreCall,
    TokenFailure, UpstreamFailure,
};
pub(crate) use request_id::RequestId;

#[cfg(test)]
mod tests;
