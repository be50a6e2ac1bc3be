//! The shared stores that there are.

use std::sync::Arc;

use crate::config::SharedStoreConfig;
use crate::error::StartError;
use crate::shared::Remote;

/// Connects to the store that the flags name.
pub(crate) fn connect(config: &SharedStoreConfig) -> Result<Arc<dyn Remote>, StartError> {
    let SharedStoreConfig { prefix, .. } = config;
    Err(StartError::new(format!("--store: no shared store can be used yet (prefix `{prefix}`)")))
}
